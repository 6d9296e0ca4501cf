// Library: what libmoebus_cuda.so gives to who loads it, and how the two find out that they do not fit.
// Room: backend/cuda · host. No CUDA type: api includes it.

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "backend/device.hpp"

namespace moebus::backend {

struct CudaLibrary {
  /// See cuda::list_devices.
  std::vector<DeviceFacts> (*list_devices)() = nullptr;

  /// See cuda::make_device.
  std::unique_ptr<Device> (*make_device)(int ordinal) = nullptr;

  int toolkit_version = 0;  ///< CUDA version that it was built with, major * 1000 + minor * 10
};

/// Differs where the two sides were built from different headers: revision of the interface, then sizes of what
/// crosses.
inline constexpr std::uint64_t cuda_interface_mark() noexcept {
  constexpr std::uint64_t kRevision = 1;  // raised when something changes that no size shows
  std::uint64_t mark = kRevision;
  for (const std::uint64_t size : {sizeof(CudaLibrary),
                                   sizeof(DeviceFacts),
                                   sizeof(DeviceDispatch),
                                   sizeof(DeviceCombine),
                                   sizeof(DeviceLaunch),
                                   sizeof(sync::DeviceState),
                                   sizeof(sync::DeviceReport),
                                   sizeof(sync::DeviceControl)}) {
    mark = mark * 1'000'003 + size;
  }
  return mark;
}

inline constexpr const char* kCudaLibraryEntry = "moebus_cuda_open";

/// The one symbol of the library. Null if the caller is of another version or build; `own_version` is then what this
/// library is of.
using CudaLibraryEntry = const CudaLibrary* (*)(const char* version, std::uint64_t mark, const char** own_version);

}  // namespace moebus::backend
