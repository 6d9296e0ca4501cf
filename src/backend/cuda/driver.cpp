#include "backend/cuda/driver.hpp"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include "moebus/error.hpp"

namespace moebus::backend::cuda {
namespace {

/// Finds every entry point; returns the first name that this driver lacks, null if it has all.
const char* find_calls(void* library, Driver& found) {
// Two steps, so that cuda.h's macros put the versioned name into the text.
#define MOEBUS_TEXT(name) #name
#define MOEBUS_FIND(name)                                                                   \
  found.name = reinterpret_cast<decltype(found.name)>(::dlsym(library, MOEBUS_TEXT(name))); \
  if (found.name == nullptr) return MOEBUS_TEXT(name)
  MOEBUS_DRIVER_CALLS(MOEBUS_FIND);
#undef MOEBUS_FIND
#undef MOEBUS_TEXT
  return nullptr;
}

std::string text_of(const Driver& found, CUresult result) {
  const char* text = nullptr;
  if (found.cuGetErrorString(result, &text) != CUDA_SUCCESS || text == nullptr) text = "unknown error";
  return fmt::format("{} ({})", text, static_cast<int>(result));
}

std::string load(Driver& found) {
  // Never closed: a driver does not bear it.
  void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return "libcuda.so.1 is missing: no NVIDIA driver is installed here";
  const auto get_version = reinterpret_cast<decltype(&::cuDriverGetVersion)>(::dlsym(library, "cuDriverGetVersion"));
  if (get_version == nullptr || get_version(&found.version) != CUDA_SUCCESS) {
    return "libcuda.so.1 does not tell its version: is it a stub of the toolkit's?";
  }
  // Within a major version an older driver runs newer code; over its border it loads nothing.
  if (found.version / 1000 < CUDART_VERSION / 1000) {
    return fmt::format("the driver supports CUDA {} and this build needs {}: a newer driver, or a build by nvcc {}.x",
                       version_text(found.version),
                       version_text(CUDART_VERSION),
                       found.version / 1000);
  }
  if (const char* missing = find_calls(library, found)) {
    return fmt::format("the driver (CUDA {}) lacks {}; it is too old", version_text(found.version), missing);
  }
  const CUresult result = found.cuInit(0);
  if (result == CUDA_ERROR_NO_DEVICE) return "the driver finds no device";
  if (result != CUDA_SUCCESS) return fmt::format("the driver does not start: {}", text_of(found, result));
  if (found.cuDeviceGetCount(&found.num_devices) != CUDA_SUCCESS || found.num_devices == 0) {
    return "the driver finds no device";
  }
  return {};
}

Driver make_driver() {
  Driver found;
  found.reason = load(found);
  return found;
}

}  // namespace

const Driver& driver() {
  static const Driver kDriver = make_driver();
  return kDriver;
}

const Driver& usable_driver() {
  if (!driver().reason.empty()) throw Error(ErrorCode::unsupported, driver().reason);
  return driver();
}

std::string version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

}  // namespace moebus::backend::cuda
