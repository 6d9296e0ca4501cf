// Device: a GPU as the engine sees it: memory that peers map, and whole calls that are enqueued on streams.
// Room: backend · host. No CUDA type crosses this header.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/deadline.hpp"
#include "base/unique_fd.hpp"
#include "model/device_shape.hpp"
#include "moebus/types.hpp"
#include "sync/device_block.hpp"

namespace moebus::backend {

struct DeviceFacts {
  int ordinal = 0;
  std::string name;            ///< e.g. "NVIDIA H200"
  std::string uuid;            ///< "GPU-..."; two ranks with the same share a device
  int compute_capability = 0;  ///< major * 10 + minor
  int num_multiprocessors = 0;
  std::size_t memory_bytes = 0;
  int driver_version = 0;  ///< CUDA version that the driver supports, major * 1000 + minor * 10
};

/// Memory of one kind with one owner; given back by the destructor.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  DeviceMemory() = default;
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  /// As this process and its kernels address it.
  [[nodiscard]] virtual std::byte* data() const noexcept = 0;
  [[nodiscard]] virtual std::size_t size_bytes() const noexcept = 0;
};

/// A rank's window and its peers', in one stretch of addresses: that of rank r begins at base() + r * stride_bytes().
class DeviceWindow {
 public:
  virtual ~DeviceWindow() = default;
  DeviceWindow() = default;
  DeviceWindow(const DeviceWindow&) = delete;
  DeviceWindow& operator=(const DeviceWindow&) = delete;

  [[nodiscard]] virtual std::byte* base() const noexcept = 0;
  [[nodiscard]] virtual std::size_t stride_bytes() const noexcept = 0;

  /// Lets peers take hold of the own window. Owned by this object.
  [[nodiscard]] virtual int descriptor() const noexcept = 0;

  /// Maps a peer's window; `descriptor` is what its process gave (or, in one process, a duplicate).
  /// Errors:  Error{transport_failure} names the peer and what the driver says.
  virtual void map_peer(int peer, base::UniqueFd descriptor) = 0;
};

/// A tensor as kernels read or write it: row r, item i at data + r * row_stride + i * item_stride.
struct DeviceRows {
  std::byte* data = nullptr;
  std::int64_t row_stride_bytes = 0;
  std::int64_t item_stride_bytes = 0;  ///< scales only
  std::int64_t group_rows = 0;         ///< scales, column-major: rows that share one transposed block; 0 = no groups
  std::int64_t group_stride_bytes = 0;
};

/// What one dispatch leaves for its combines, in device memory. R ranks, T most tokens, K choices.
struct DeviceHandle {
  std::int32_t* ids = nullptr;        // [T, K] experts that this rank's tokens chose, -1 = none
  float* weights = nullptr;           // [T, K] theirs
  std::uint8_t* home = nullptr;       // [T, 2] slots that a token has, and the one of this rank plus 1 (0 = none)
  std::int32_t* positions = nullptr;  // [R, T, K] result row of each choice that sits here, -1 = none or dropped
  float* recv_weights = nullptr;      // [R, T, K] weights of those choices
  std::int8_t* slots = nullptr;       // [R, T] home slot of the row that goes back, -1 = none
};

/// What the kernels of a context share.
struct DeviceContext {
  std::byte* windows = nullptr;  ///< DeviceWindow::base(), plus the context's offset
  std::size_t window_stride_bytes = 0;
  std::size_t parity_stride_bytes = 0;   ///< parities of the context begin behind its DeviceControl
  sync::DeviceState* state = nullptr;    ///< device memory
  sync::DeviceReport* report = nullptr;  ///< host memory that the device maps
};

struct DeviceDispatch {
  model::DeviceShape shape;
  DeviceContext context;
  DeviceHandle handle;

  std::int32_t num_tokens = 0;
  DeviceRows tokens;  ///< the caller's rows; null data if there are none
  DeviceRows scales;
  DeviceRows side[kMaxSideTensors];
  const std::byte* topk_idx = nullptr;  // [num_tokens, K]; null = cached: handle.ids and handle.weights are used
  bool has_wide_ids = false;            ///< topk_idx is i64
  const float* topk_weights = nullptr;  // [num_tokens, K] or null
  bool has_weights = false;             ///< with cached calls too
  std::uint32_t refusal = 0;  ///< ErrorCode of a call that the host refuses: nothing is sent, what comes is dropped

  // Result: tensors, then tables; null = not wanted.
  DeviceRows out_tokens;
  DeviceRows out_scales;
  DeviceRows out_side[kMaxSideTensors];
  std::int32_t* out_idx = nullptr;       // rank_major [rows, K]
  float* out_weights = nullptr;          // rank_major [rows, K]; expert layouts [rows]
  std::int32_t* out_src_rank = nullptr;  // [rows]
  std::int32_t* out_src_token = nullptr;
  std::int32_t* out_counts = nullptr;       // [local experts]
  std::int32_t* out_wanted = nullptr;       // [local experts]
  std::int64_t* out_offsets = nullptr;      // [local experts + 1]
  std::int32_t* out_rank_counts = nullptr;  // [ranks]
  std::int64_t* out_row_counts = nullptr;   // [2] rows, overflowed
  bool has_host_counts = false;             ///< also write DeviceReport::counts_epoch and what goes with it
};

struct DeviceCombine {
  model::DeviceShape shape;
  DeviceContext context;
  DeviceHandle handle;

  std::int32_t num_tokens = 0;                    ///< of the dispatch
  bool is_weighted = false;                       ///< expert layouts: by handle.recv_weights
  DeviceRows rows;                                ///< experts' results, by result row
  const std::byte* bias[2] = {nullptr, nullptr};  // [T] rows
  std::int64_t bias_stride_bytes[2] = {0, 0};
  DeviceRows output;
  std::uint64_t* out_missing = nullptr;  // [T], if rows can overflow
  std::uint32_t refusal = 0;
};

/// How a call is launched.
struct DeviceLaunch {
  StreamHandle stream;
  int num_blocks = 0;  ///< blocks that carry rows; 0 = chosen by the device
};

/// One rank's GPU. Calls return when work is enqueued; what goes wrong on the device is in DeviceReport.
///
/// Threads: one caller at a time. Every call makes the device current for its own duration only.
/// Errors:  Error{device_failure} with the driver's text; Error{resource_exhausted} no memory.
class Device {
 public:
  virtual ~Device() = default;
  Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  [[nodiscard]] virtual const DeviceFacts& facts() const noexcept = 0;

  /// Memory of this device only, zeroed.
  [[nodiscard]] virtual std::unique_ptr<DeviceMemory> allocate(std::size_t size_bytes) = 0;

  /// Host memory that the device maps, zeroed.
  [[nodiscard]] virtual std::unique_ptr<DeviceMemory> allocate_pinned(std::size_t size_bytes) = 0;

  /// Allocates this rank's window and reserves the addresses of all. Every byte is 0xFF: all words are armed.
  [[nodiscard]] virtual std::unique_ptr<DeviceWindow> make_window(int rank, int num_ranks, std::size_t size_bytes) = 0;

  /// Copies between host and device memory; done when it returns.
  virtual void copy(std::byte* sink, const std::byte* source, std::size_t size_bytes) = 0;
  virtual void fill(std::byte* sink, std::uint8_t value, std::size_t size_bytes) = 0;

  /// Loads every kernel that calls of this shape can need, so that no call loads anything.
  virtual void load_kernels(const model::DeviceShape& shape) = 0;

  /// True if work enqueued now would be captured into a graph.
  [[nodiscard]] virtual bool is_capturing(StreamHandle stream) = 0;

  virtual void enqueue_dispatch(const DeviceDispatch& dispatch, const DeviceLaunch& launch) = 0;
  virtual void enqueue_combine(const DeviceCombine& combine, const DeviceLaunch& launch) = 0;

  /// Waits until what was enqueued on the stream is done; false if the deadline came first.
  [[nodiscard]] virtual bool synchronize(StreamHandle stream, const base::Deadline& deadline) = 0;
};

}  // namespace moebus::backend
