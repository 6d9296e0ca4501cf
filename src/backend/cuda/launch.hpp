// Launch: how large grids are, and the one place where kernels are started.
// Room: backend/cuda · host.

#pragma once

#include <cuda_runtime.h>

#include <algorithm>

#include "backend/cuda/cuda_check.hpp"
#include "backend/device.hpp"

namespace moebus::backend::cuda {

/// Threads of every block: whole warps, each of which works on pieces of rows.
inline constexpr int kThreads = 512;

struct LaunchShape {
  int num_blocks = 1;
  std::size_t shared_bytes = 0;
};

/// Returns how many blocks carry rows: a token each, if the device has as many multiprocessors to give.
[[nodiscard]] inline int shares_for(const model::DeviceShape& shape,
                                    const DeviceLaunch& launch,
                                    const DeviceFacts& facts) {
  const int wanted =
      launch.num_blocks > 0 ? launch.num_blocks : std::min(shape.max_tokens, facts.num_multiprocessors - 1);
  return std::clamp(wanted, 1, std::min(sync::kMaxDeviceBlocks, std::max(1, shape.max_tokens)));
}

/// Loads a kernel and lets it have its shared memory.
template <class Args>
void load_kernel(void (*kernel)(Args), std::size_t shared_bytes) {
  MOEBUS_CUDA_CALL(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes)));
}

template <class Args>
void launch_kernel(void (*kernel)(Args), const Args& args, const LaunchShape& shape, StreamHandle stream) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(shape.num_blocks));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = static_cast<cudaStream_t>(stream.value);
  MOEBUS_CUDA_CALL(cudaLaunchKernelEx(&config, kernel, args));
}

void load_dispatch(const model::DeviceShape& shape);
void load_combine(const model::DeviceShape& shape);

}  // namespace moebus::backend::cuda
