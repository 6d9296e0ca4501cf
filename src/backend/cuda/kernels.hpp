// Kernels: what the host side of this backend calls to have device code run. Each enqueues and returns.
// Room: backend/cuda · host. The device is current.

#pragma once

#include "backend/device.hpp"

namespace moebus::backend::cuda {

void launch_dispatch(const DeviceDispatch& dispatch, const DeviceLaunch& launch, const DeviceFacts& facts);
void launch_combine(const DeviceCombine& combine, const DeviceLaunch& launch, const DeviceFacts& facts);

/// Loads every kernel that calls of this shape can need.
void load_kernels(const model::DeviceShape& shape, const DeviceFacts& facts);

}  // namespace moebus::backend::cuda
