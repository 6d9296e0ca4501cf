// CudaDevice: a GPU through the CUDA runtime. Composes; memory that peers map is device_window's, kernels are launched
// by what kernels.hpp declares. Room: backend/cuda · host.

#pragma once

#include <memory>

#include "backend/device.hpp"

namespace moebus::backend::cuda {

/// Errors:  Error{unsupported} no driver, no device, or one that this version has no code for; Error{invalid_argument}
/// no
///          such device; Error{device_failure}.
std::unique_ptr<Device> make_device(int ordinal);

}  // namespace moebus::backend::cuda
