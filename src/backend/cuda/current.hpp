// Current: makes a device current for a call's duration. Room: backend/cuda · host.

#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "backend/cuda/driver.hpp"

namespace moebus::backend::cuda {

/// A device's primary context: the one that the runtime uses, so that a caller's streams and tensors are in it. Held as
/// long as anything made in it.
class PrimaryContext {
 public:
  explicit PrimaryContext(int ordinal);
  ~PrimaryContext();
  PrimaryContext(const PrimaryContext&) = delete;
  PrimaryContext& operator=(const PrimaryContext&) = delete;

  [[nodiscard]] CUcontext get() const noexcept { return context_; }

  [[nodiscard]] int ordinal() const noexcept { return ordinal_; }

 private:
  int ordinal_;
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
};

using ContextRef = std::shared_ptr<const PrimaryContext>;

/// Pushes the context, and pops it at the end: whatever the caller had is as before. (cudaSetDevice cannot do that:
/// going back to a device that the thread had only by default would make a context there.)
///
/// A capture that another thread has under way forbids calls like cudaMalloc to all threads; the guard's scope is
/// exempt, since such calls in it have nothing to do with what is captured.
class Current {
 public:
  explicit Current(const PrimaryContext& context);
  ~Current();
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  cudaStreamCaptureMode capture_mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace moebus::backend::cuda
