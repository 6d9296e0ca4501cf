#include "backend/cuda/library.hpp"

#include <cuda_runtime_api.h>

#include <string_view>

#include "backend/cuda/device_cuda.hpp"
#include "backend/cuda/facts.hpp"

#ifndef MOEBUS_VERSION
#error "MOEBUS_VERSION is the version that this library is built as: it must not be asked of the one that is loaded"
#endif

extern "C" __attribute__((visibility("default"))) const moebus::backend::CudaLibrary* moebus_cuda_open(
    const char* version, std::uint64_t mark, const char** own_version) {
  static constexpr moebus::backend::CudaLibrary kLibrary{
      moebus::backend::cuda::list_devices, moebus::backend::cuda::make_device, CUDART_VERSION};
  *own_version = MOEBUS_VERSION;
  const bool fits = std::string_view(version) == MOEBUS_VERSION && mark == moebus::backend::cuda_interface_mark();
  return fits ? &kLibrary : nullptr;
}

static_assert(std::is_same_v<decltype(&moebus_cuda_open), moebus::backend::CudaLibraryEntry>);
