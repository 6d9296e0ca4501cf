// CUDA checks: the one way to call the runtime and the driver in this room; a failure becomes an Error with their text.
// Room: backend/cuda · host.

#pragma once

#include <cuda_runtime_api.h>

#include <source_location>
#include <string_view>

#include "backend/cuda/driver.hpp"

namespace moebus::backend::cuda {

/// Does nothing on success. Errors: Error{resource_exhausted} no memory, else Error{device_failure}. The runtime
/// forgets the error, unless it is one that the context does not survive.
void check_runtime(cudaError_t result,
                   std::string_view call,
                   std::source_location location = std::source_location::current());
void check_driver(CUresult result,
                  std::string_view call,
                  std::source_location location = std::source_location::current());

/// The same for destructors: says it in the log.
void log_failure(cudaError_t result, std::string_view call) noexcept;
void log_failure(CUresult result, std::string_view call) noexcept;

/// What the driver says of a result, with its name and number.
std::string error_text(CUresult result);

}  // namespace moebus::backend::cuda

/// MOEBUS_CUDA_CALL(cudaMalloc(&data, size)) returns, or throws Error.
#define MOEBUS_CUDA_CALL(call) ::moebus::backend::cuda::check_runtime((call), #call)

/// MOEBUS_DRIVER_CALL(cuMemRelease(handle)) calls the driver's entry point of that name, or throws Error.
#define MOEBUS_DRIVER_CALL(call) ::moebus::backend::cuda::check_driver(::moebus::backend::cuda::driver().call, #call)
