// CudaWindow: windows of a group as one stretch of addresses, each allocated by its rank and shared by descriptor.
// Room: backend/cuda · host.
// Source: [ours] design 4.1 (the same offset everywhere), the driver's virtual memory calls.

#pragma once

#include <vector>

#include "backend/cuda/current.hpp"
#include "backend/device.hpp"

namespace moebus::backend::cuda {

class CudaWindow final : public DeviceWindow {
 public:
  /// `fill_stream` is one that no caller knows. Errors: Error{invalid_argument} rank or size;
  /// Error{resource_exhausted}; Error{device_failure}.
  CudaWindow(ContextRef context, cudaStream_t fill_stream, int rank, int num_ranks, std::size_t size_bytes);
  ~CudaWindow() override;

  [[nodiscard]] std::byte* base() const noexcept override;

  [[nodiscard]] std::size_t stride_bytes() const noexcept override { return stride_; }

  [[nodiscard]] int descriptor() const noexcept override { return descriptor_.get(); }

  void map_peer(int peer, base::UniqueFd descriptor) override;

 private:
  void allocate_own(cudaStream_t fill_stream);
  void check_peer(int peer, const base::UniqueFd& descriptor) const;
  void check_location(int peer, CUmemGenericAllocationHandle memory) const;
  void map(int rank, CUmemGenericAllocationHandle memory);
  void release() noexcept;

  [[nodiscard]] CUdeviceptr address_of(int rank) const noexcept;

  ContextRef context_;
  int rank_;
  std::size_t stride_ = 0;
  CUdeviceptr base_ = 0;
  std::vector<bool> is_mapped_;  // [ranks]
  base::UniqueFd descriptor_;
};

}  // namespace moebus::backend::cuda
