// CudaLibrary: finds and loads libmoebus_cuda.so when somebody asks for a GPU, or says why there is none.
// Room: api · host.

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend/cuda/library.hpp"

namespace moebus::api {

/// One of the two is set.
struct LoadedCuda {
  const backend::CudaLibrary* library = nullptr;  ///< never unloaded
  std::string reason;                             ///< what is wrong, and what would mend it
};

/// Loads the file, which needs not exist. `path` is said in the reason.
LoadedCuda load_cuda_library(const std::string& path);

/// MOEBUS_CUDA_LIBRARY, else the file beside this library or beside the running program; empty if neither is there.
std::string find_cuda_library();

/// Loads it at the first call; every later one gets the same.
const LoadedCuda& cuda_library();

/// The devices of this machine; if there is none, `devices` is empty and `reason` says why. Makes no context on any.
struct CudaDevices {
  std::vector<backend::DeviceFacts> devices;
  int toolkit_version = 0;  ///< as CudaLibrary's
  std::string reason;
};

CudaDevices cuda_devices() noexcept;

/// Errors:  Error{unsupported} with the reason; those of cuda::make_device.
std::unique_ptr<backend::Device> open_cuda_device(int ordinal);

}  // namespace moebus::api
