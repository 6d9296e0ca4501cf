#include "backend/cuda/device_cuda.hpp"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "backend/cuda/cuda_check.hpp"
#include "backend/cuda/current.hpp"
#include "backend/cuda/device_window.hpp"
#include "backend/cuda/facts.hpp"
#include "backend/cuda/kernels.hpp"
#include "moebus/error.hpp"

namespace moebus::backend::cuda {
namespace {

constexpr int kMinComputeCapability = 80;

cudaStream_t native(StreamHandle stream) noexcept { return static_cast<cudaStream_t>(stream.value); }

/// A stream of the device's own: it waits for no other and no caller captures it.
class PrivateStream {
 public:
  explicit PrivateStream(ContextRef context) : context_(std::move(context)) {
    const Current current(*context_);
    MOEBUS_CUDA_CALL(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  }

  ~PrivateStream() {
    try {
      const Current current(*context_);
      log_failure(cudaStreamDestroy(stream_), "cudaStreamDestroy");
    } catch (const Error&) {
      return;  // the context is gone, and the stream with it
    }
  }

  PrivateStream(const PrivateStream&) = delete;
  PrivateStream& operator=(const PrivateStream&) = delete;

  [[nodiscard]] cudaStream_t get() const noexcept { return stream_; }

 private:
  ContextRef context_;
  cudaStream_t stream_ = nullptr;
};

enum class Kind { device, pinned };

class CudaMemory final : public DeviceMemory {
 public:
  CudaMemory(ContextRef context, Kind kind, std::size_t size_bytes)
      : context_(std::move(context)), kind_(kind), size_(size_bytes) {
    if (size_bytes == 0) return;
    const Current current(*context_);
    if (kind == Kind::device) {
      MOEBUS_CUDA_CALL(cudaMalloc(&data_, size_bytes));
    } else {
      MOEBUS_CUDA_CALL(cudaHostAlloc(&data_, size_bytes, cudaHostAllocMapped | cudaHostAllocPortable));
      std::fill_n(static_cast<std::byte*>(data_), size_bytes, std::byte{0});
    }
  }

  ~CudaMemory() override {
    if (data_ == nullptr) return;
    try {
      const Current current(*context_);
      if (kind_ == Kind::device) {
        log_failure(cudaFree(data_), "cudaFree");
      } else {
        log_failure(cudaFreeHost(data_), "cudaFreeHost");
      }
    } catch (const Error&) {
      return;  // the context is gone, and the memory with it
    }
  }

  [[nodiscard]] std::byte* data() const noexcept override { return static_cast<std::byte*>(data_); }

  [[nodiscard]] std::size_t size_bytes() const noexcept override { return size_; }

 private:
  ContextRef context_;
  Kind kind_;
  void* data_ = nullptr;
  std::size_t size_;
};

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(DeviceFacts facts)
      : facts_(std::move(facts)),
        context_(std::make_shared<const PrimaryContext>(facts_.ordinal)),
        own_stream_(context_) {}

  [[nodiscard]] const DeviceFacts& facts() const noexcept override { return facts_; }

  [[nodiscard]] std::unique_ptr<DeviceMemory> allocate(std::size_t size_bytes) override {
    auto memory = std::make_unique<CudaMemory>(context_, Kind::device, size_bytes);
    fill(memory->data(), 0, size_bytes);
    return memory;
  }

  [[nodiscard]] std::unique_ptr<DeviceMemory> allocate_pinned(std::size_t size_bytes) override {
    return std::make_unique<CudaMemory>(context_, Kind::pinned, size_bytes);
  }

  [[nodiscard]] std::unique_ptr<DeviceWindow> make_window(int rank, int num_ranks, std::size_t size_bytes) override {
    return std::make_unique<CudaWindow>(context_, own_stream_.get(), rank, num_ranks, size_bytes);
  }

  void copy(std::byte* sink, const std::byte* source, std::size_t size_bytes) override {
    if (size_bytes == 0) return;
    const Current current(*context_);
    MOEBUS_CUDA_CALL(cudaMemcpyAsync(sink, source, size_bytes, cudaMemcpyDefault, own_stream_.get()));
    MOEBUS_CUDA_CALL(cudaStreamSynchronize(own_stream_.get()));
  }

  void fill(std::byte* sink, std::uint8_t value, std::size_t size_bytes) override {
    if (size_bytes == 0) return;
    const Current current(*context_);
    MOEBUS_CUDA_CALL(cudaMemsetAsync(sink, value, size_bytes, own_stream_.get()));
    MOEBUS_CUDA_CALL(cudaStreamSynchronize(own_stream_.get()));
  }

  void load_kernels(const model::DeviceShape& shape) override {
    const Current current(*context_);
    cuda::load_kernels(shape, facts_);
  }

  [[nodiscard]] bool is_capturing(StreamHandle stream) override {
    const Current current(*context_);
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    const cudaError_t result = cudaStreamIsCapturing(native(stream), &status);
    if (result == cudaErrorStreamCaptureImplicit) {
      static_cast<void>(cudaGetLastError());
      throw Error(
          ErrorCode::invalid_argument,
          "stream is the device's default stream, which takes no work while another stream is captured; pass the "
          "captured stream");
    }
    check_runtime(result, "cudaStreamIsCapturing");
    return status != cudaStreamCaptureStatusNone;
  }

  void enqueue_dispatch(const DeviceDispatch& dispatch, const DeviceLaunch& launch) override {
    const Current current(*context_);
    launch_dispatch(dispatch, launch, facts_);
  }

  void enqueue_combine(const DeviceCombine& combine, const DeviceLaunch& launch) override {
    const Current current(*context_);
    launch_combine(combine, launch, facts_);
  }

  [[nodiscard]] bool synchronize(StreamHandle stream, const base::Deadline& deadline) override;

 private:
  DeviceFacts facts_;
  ContextRef context_;
  PrivateStream own_stream_;
};

/// The runtime's own wait has no deadline. A look takes a few microseconds; after the first, which catch what is nearly
/// done, this thread sleeps between them.
bool CudaDevice::synchronize(StreamHandle stream, const base::Deadline& deadline) {
  constexpr int kEagerLooks = 50;
  constexpr std::chrono::microseconds kPause{50};
  // Asking a captured stream whether it is done would end its capture.
  if (is_capturing(stream)) {
    throw Error(ErrorCode::invalid_argument, "stream is being captured: nothing runs on it that could be waited for");
  }
  const Current current(*context_);
  for (int look = 0;; ++look) {
    const bool is_last = deadline.is_over();
    const cudaError_t result = cudaStreamQuery(native(stream));
    if (result != cudaErrorNotReady) {
      check_runtime(result, "cudaStreamQuery");
      return true;
    }
    static_cast<void>(cudaGetLastError());
    if (is_last) return false;
    if (look >= kEagerLooks) {
      std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(kPause, deadline.left()));
    }
  }
}

}  // namespace

std::unique_ptr<Device> make_device(int ordinal) {
  DeviceFacts facts = device_facts(ordinal);
  if (facts.compute_capability < kMinComputeCapability) {
    throw Error(ErrorCode::unsupported,
                fmt::format("device {} ({}) has compute capability {}.{}; this version has code from 8.0 on",
                            ordinal,
                            facts.name,
                            facts.compute_capability / 10,
                            facts.compute_capability % 10));
  }
  return std::make_unique<CudaDevice>(std::move(facts));
}

}  // namespace moebus::backend::cuda
