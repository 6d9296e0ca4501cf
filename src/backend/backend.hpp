// Backend: moves, casts and adds rows that are already decided. It knows no epoch, no wait and no peer, only addresses.
// Room: backend · host.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "model/row_move.hpp"
#include "model/wire.hpp"

namespace moebus::backend {

/// Rows as separate arrays, one a part: what callers give and get, and how slots lie in windows. Strides in bytes; row
/// r of `tokens` is at tokens + r * token_stride_bytes. Scale item b of row r is at scales + (r / group) * group_stride
/// + (r % group) * row_stride + b * item_stride, where group = scale_group_rows (column-major scales of expert_padded),
/// or all rows if that is 0.
template <class Byte>
struct BasicRowArrays {
  Byte* tokens = nullptr;
  std::int64_t token_stride_bytes = 0;
  Byte* scales = nullptr;
  std::int64_t scale_row_stride_bytes = 0;
  std::int64_t scale_item_stride_bytes = 0;
  std::int64_t scale_group_rows = 0;
  std::int64_t scale_group_stride_bytes = 0;
  std::array<Byte*, kMaxSideTensors> side{};
  std::array<std::int64_t, kMaxSideTensors> side_stride_bytes{};

  operator BasicRowArrays<const std::byte>() const noexcept {
    return {tokens,
            token_stride_bytes,
            scales,
            scale_row_stride_bytes,
            scale_item_stride_bytes,
            scale_group_rows,
            scale_group_stride_bytes,
            {side[0], side[1]},
            side_stride_bytes};
  }
};

using RowArrays = BasicRowArrays<std::byte>;
using ConstRowArrays = BasicRowArrays<const std::byte>;

using model::RowMove;

/// How rows are written: through the caches, where their reader finds them, or past them. A batch alone cannot tell: a
/// call may come in many small ones. Ask Backend::stores_for with the bytes that the whole call writes.
enum class Stores : std::uint8_t { cached, streamed };

/// Sums of rows: output o = bias0[o] + bias1[o] + sum over terms [first[o], first[o + 1]) in that order, in float32,
/// rounded once. Weighted: acc = fma(weight[i], term[i], acc); else acc + term[i]. acc starts at bias0 (+ bias1), or
/// +0. A null term is skipped. Zero terms give bias, or +0.
struct SumJob {
  DType dtype = DType::bf16;  ///< of terms, bias and output: bf16, f16 or f32
  int hidden = 0;
  std::int64_t num_outputs = 0;
  const std::int32_t* first = nullptr;     // [num_outputs + 1]
  const std::byte* const* term = nullptr;  // [first[num_outputs]] addresses of rows
  const float* weight = nullptr;           // [first[num_outputs]], or null = unweighted
  std::array<const std::byte*, 2> bias{};  // [num_outputs rows] or null; bias[1] only with bias[0]
  std::array<std::int64_t, 2> bias_stride_bytes{};
  std::byte* const* output_row = nullptr;  // [num_outputs] addresses, or null: output + o * output_stride_bytes
  std::byte* output = nullptr;
  std::int64_t output_stride_bytes = 0;
  Stores stores = Stores::cached;
};

/// Rows multiplied where they lie: each element of row row[i] becomes factor[i] * element, in float32 and rounded once;
/// a NaN becomes canonical.
struct ScaleJob {
  DType dtype = DType::bf16;  ///< bf16, f16 or f32
  int hidden = 0;
  std::byte* rows = nullptr;  ///< row r at rows + r * stride_bytes
  std::int64_t stride_bytes = 0;
  std::span<const std::int32_t> row;  ///< no row twice
  const float* factor = nullptr;      // [row.size()]
};

/// Dot products: dot[i] = <left row row[i], right row row[i]> in float32. 16 partial sums from +0: sum j takes columns
/// j, j + 16, j + 32, ... by fma, ascending; then sum j += sum j + 8 for j < 8, the same with 4, 2 and 1. A NaN becomes
/// canonical.
struct DotJob {
  DType dtype = DType::bf16;  ///< of both: bf16, f16 or f32
  int hidden = 0;
  const std::byte* left = nullptr;
  std::int64_t left_stride_bytes = 0;
  const std::byte* right = nullptr;
  std::int64_t right_stride_bytes = 0;
  std::span<const std::int32_t> row;
  float* dot = nullptr;  // [row.size()]
};

/// What a backend does; all of it on the calling thread (host) and without failing: sizes were checked before.
/// When a call returns, a release store by the caller publishes what it wrote (streaming stores are fenced inside).
///
/// Threads: safe from several threads on different rows.
class Backend {
 public:
  virtual ~Backend() = default;

  [[nodiscard]] virtual std::string_view name() const noexcept = 0;

  /// Returns the instruction set in use, e.g. "avx512".
  [[nodiscard]] virtual std::string_view level() const noexcept = 0;

  /// Returns how a call that writes `call_bytes` in all had better write them.
  [[nodiscard]] virtual Stores stores_for(std::size_t call_bytes) const noexcept = 0;

  /// Copies rows of `source` to rows of `sink`, casting if the format says so.
  virtual void place(const model::DispatchRowFormat& format,
                     const ConstRowArrays& source,
                     const RowArrays& sink,
                     std::span<const RowMove> moves,
                     Stores stores) noexcept = 0;

  /// Copies rows that are both in received form (no cast): out of slots, or from one expert's rows to another's.
  virtual void copy_rows(const model::DispatchRowFormat& format,
                         const ConstRowArrays& source,
                         const RowArrays& sink,
                         std::span<const RowMove> moves,
                         Stores stores) noexcept = 0;

  /// Copies `content_bytes` of rows that are contiguous bytes on both sides: row i at source + i * source_stride_bytes.
  virtual void copy_slots(const std::byte* source,
                          std::int64_t source_stride_bytes,
                          std::byte* sink,
                          std::int64_t sink_stride_bytes,
                          std::size_t content_bytes,
                          std::span<const RowMove> moves,
                          Stores stores) noexcept = 0;

  /// Writes zeros into rows [first, first + count) of `sink` (all parts).
  virtual void zero_rows(const model::DispatchRowFormat& format,
                         const RowArrays& sink,
                         std::int64_t first,
                         std::int64_t count) noexcept = 0;

  /// Copies plain bytes (tables, counts).
  virtual void copy_bytes(std::byte* sink, const std::byte* source, std::size_t size_bytes) noexcept = 0;

  virtual void sum(const SumJob& job) noexcept = 0;

  virtual void scale_rows(const ScaleJob& job) noexcept = 0;

  virtual void dot_rows(const DotJob& job) noexcept = 0;
};

}  // namespace moebus::backend
