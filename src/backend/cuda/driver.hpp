// Driver: the entry points of libcuda.so.1, found at run time, so that nothing here links it and a machine without a
// GPU loads this library all the same. Room: backend/cuda · host.

#pragma once

#include <cuda.h>

#include <string>

namespace moebus::backend::cuda {

// NOLINTBEGIN(bugprone-macro-parentheses): names of functions, not values
#define MOEBUS_DRIVER_CALLS(use)       \
  use(cuInit);                         \
  use(cuDriverGetVersion);             \
  use(cuGetErrorName);                 \
  use(cuGetErrorString);               \
  use(cuDeviceGetCount);               \
  use(cuDeviceGet);                    \
  use(cuDeviceGetName);                \
  use(cuDeviceGetUuid);                \
  use(cuDeviceTotalMem);               \
  use(cuDeviceGetAttribute);           \
  use(cuDeviceCanAccessPeer);          \
  use(cuDevicePrimaryCtxRetain);       \
  use(cuDevicePrimaryCtxRelease);      \
  use(cuCtxPushCurrent);               \
  use(cuCtxPopCurrent);                \
  use(cuMemGetAllocationGranularity);  \
  use(cuMemAddressReserve);            \
  use(cuMemAddressFree);               \
  use(cuMemCreate);                    \
  use(cuMemRelease);                   \
  use(cuMemMap);                       \
  use(cuMemUnmap);                     \
  use(cuMemSetAccess);                 \
  use(cuMemExportToShareableHandle);   \
  use(cuMemImportFromShareableHandle); \
  use(cuMemGetAllocationPropertiesFromHandle)

// NOLINTEND(bugprone-macro-parentheses)

/// Named as in cuda.h, whose macros add the version of each.
struct Driver {
#define MOEBUS_MEMBER(name) decltype(&::name) name = nullptr
  MOEBUS_DRIVER_CALLS(MOEBUS_MEMBER);
#undef MOEBUS_MEMBER

  int version = 0;  ///< CUDA version that it supports, major * 1000 + minor * 10
  int num_devices = 0;
  std::string reason;  ///< why no device can be used; empty = there is at least one
};

/// Loads and initialises the driver at the first call. Makes no context.
const Driver& driver();

/// The same for callers that need a device.
/// Errors:  Error{unsupported} with the reason.
const Driver& usable_driver();

/// "13.0" of 13000.
std::string version_text(int version);

}  // namespace moebus::backend::cuda
