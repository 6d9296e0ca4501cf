// Device rank: one rank's side of an exchange case on a GPU, below the engine: its buffers, its calls, and the
// comparison with the oracle. Their kernels wait for each other: ranks may be driven by one thread, be threads or be
// processes. Room: tests · host.

#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backend/device.hpp"
#include "cases/exchange_case.hpp"
#include "model/layout.hpp"

namespace moebus::tests {

/// A piece of device memory with an element type.
template <class T>
class DeviceArray {
 public:
  DeviceArray(backend::Device& device, std::size_t num)
      : device_(&device), num_(num), memory_(device.allocate((num > 0 ? num : 1) * sizeof(T))) {}

  [[nodiscard]] T* data() const { return reinterpret_cast<T*>(memory_->data()); }

  void fill(std::uint8_t value) { device_->fill(memory_->data(), value, num_ * sizeof(T)); }

  void put(const T* source, std::size_t num) {
    if (num > 0) device_->copy(memory_->data(), reinterpret_cast<const std::byte*>(source), num * sizeof(T));
  }

  [[nodiscard]] std::vector<T> get() const {
    std::vector<T> values(num_);
    if (num_ > 0) device_->copy(reinterpret_cast<std::byte*>(values.data()), memory_->data(), num_ * sizeof(T));
    return values;
  }

 private:
  backend::Device* device_;
  std::size_t num_;
  std::unique_ptr<backend::DeviceMemory> memory_;
};

class DeviceRank {
 public:
  /// Makes the rank's window; peers must be connected before the first call. `stream` is the device's own.
  DeviceRank(std::unique_ptr<backend::Device> device, StreamHandle stream, const cases::ExchangeCase& one, int rank);

  /// Lets peers map this rank's window. Owned by this object.
  [[nodiscard]] int descriptor() const { return window_->descriptor(); }

  /// Maps the window of a peer, of this process or another, whose descriptor (or a duplicate) this is.
  void map_peer(int peer, base::UniqueFd descriptor) { window_->map_peer(peer, std::move(descriptor)); }

  /// Maps the windows of all ranks, which one thread drives, into each of them.
  static void connect(std::vector<std::unique_ptr<DeviceRank>>& ranks);

  [[nodiscard]] const model::DeviceShape& shape() const { return device_shape_; }

  [[nodiscard]] const sync::DeviceReport& report() const { return *context_.report; }

  [[nodiscard]] backend::Device& device() { return *device_; }

  [[nodiscard]] StreamHandle stream() const { return stream_; }

  void set_limits(std::uint64_t arrival_ns, std::uint64_t progress_ns);

  /// Copies inputs to the device; results are poisoned.
  void load(const cases::DispatchTruth& truth);
  void load(const cases::DispatchTruth& dispatched, const cases::CombineTruth& truth);

  /// Enqueue what was loaded. `num_blocks` 0 = the device's choice.
  void enqueue_dispatch(int num_blocks, std::uint32_t refusal = 0);
  void enqueue_combine(int num_blocks);

  /// What the next calls are made with.
  [[nodiscard]] const backend::DeviceDispatch& dispatch_call() const { return dispatch_; }

  [[nodiscard]] const backend::DeviceCombine& combine_call() const { return combine_; }

  /// True once everything enqueued here is done; false if that took longer than any call may.
  [[nodiscard]] bool synchronize();

  /// Returns what differs from the oracle, or nothing.
  [[nodiscard]] std::optional<std::string> difference(const cases::DispatchTruth& truth) const;
  [[nodiscard]] std::optional<std::string> difference(const cases::CombineTruth& truth) const;

  /// True if every word of the windows for rows is armed, as it must be between calls.
  [[nodiscard]] bool is_armed() const;

 private:
  void allocate();
  [[nodiscard]] std::size_t window_bytes() const;

  std::unique_ptr<backend::Device> device_;
  StreamHandle stream_;
  const cases::ExchangeCase& one_;
  int rank_;
  model::Shape shape_;
  model::DeviceShape device_shape_;
  model::ResultLayout layout_;
  backend::DeviceContext context_;
  std::unique_ptr<backend::DeviceWindow> window_;
  std::unique_ptr<backend::DeviceMemory> state_;
  std::unique_ptr<backend::DeviceMemory> report_;
  backend::DeviceDispatch dispatch_;
  backend::DeviceCombine combine_;
  std::vector<std::unique_ptr<backend::DeviceMemory>> memory_;
  std::vector<std::unique_ptr<DeviceArray<std::byte>>> inputs_;

  std::optional<DeviceArray<std::byte>> result_;
  std::optional<DeviceArray<std::int32_t>> idx_;
  std::optional<DeviceArray<float>> weights_;
  std::optional<DeviceArray<std::int32_t>> src_rank_;
  std::optional<DeviceArray<std::int32_t>> src_token_;
  std::optional<DeviceArray<std::int32_t>> counts_;
  std::optional<DeviceArray<std::int32_t>> wanted_;
  std::optional<DeviceArray<std::int64_t>> offsets_;
  std::optional<DeviceArray<std::int32_t>> rank_counts_;
  std::optional<DeviceArray<std::int64_t>> row_counts_;
  std::optional<DeviceArray<std::byte>> output_;
  std::optional<DeviceArray<std::uint64_t>> missing_;
};

}  // namespace moebus::tests
