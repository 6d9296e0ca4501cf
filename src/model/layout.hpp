// Layout: where everything lies in a rank's window. The same on every rank; offsets are computed here and nowhere else.
// Room: model · host+device arithmetic.
// Source: [ours] design 4.1, 4.2: two parities for what leaves before peers agreed; one copy of what is granted first.

#pragma once

#include <cstddef>
#include <cstdint>

#include "model/shape.hpp"

namespace moebus::model {

/// One row of a routing table as it travels: {token, home slot}, K expert ids, K weights.
struct TableRowFormat {
  int num_topk = 0;
  std::size_t ids_offset_bytes = 0;
  std::size_t weights_offset_bytes = 0;
  std::size_t stride_bytes = 0;
};

[[nodiscard]] TableRowFormat table_row_format(int num_topk) noexcept;

/// What a source tells each destination about a call, beside its tables. Written before the arrival signal.
struct CallFacts {
  std::int32_t num_tokens = 0;  ///< tokens of the source in this call
  std::int32_t num_rows = 0;    ///< rows of its table for this destination
  std::int64_t granted_rows =
      0;  ///< rows that it grants in its region from row 0 on (direct delivery), per expert if padded
  std::uint32_t has_weights = 0;  ///< the tables' weights are filled in
  std::uint32_t unused[11] = {};
};

static_assert(sizeof(CallFacts) == 64);

/// Bytes of the three areas of a window. Exchanges of one context overlay them: the context takes the largest of each.
struct WindowBytes {
  std::size_t parity = 0;  ///< one parity: tables, counts and latency slots
  std::size_t stage = 0;   ///< rounds of the throughput path
  std::size_t region = 0;  ///< results of direct delivery
  std::size_t outbox = 0;  ///< where rows for peers that are not mapped are made before they are put; no peer writes it

  static constexpr int kNumParities = 2;  // P >= Q + H with Q = H = 1

  [[nodiscard]] std::size_t parity_offset(std::uint32_t epoch) const noexcept {
    return (epoch % kNumParities) * parity;
  }

  [[nodiscard]] std::size_t stage_offset() const noexcept { return kNumParities * parity; }

  [[nodiscard]] std::size_t region_offset() const noexcept { return stage_offset() + stage; }

  [[nodiscard]] std::size_t outbox_offset() const noexcept { return region_offset() + region; }

  [[nodiscard]] std::size_t total() const noexcept { return outbox_offset() + outbox; }

  void cover(const WindowBytes& other) noexcept;
};

/// Offsets inside the areas for one shape.
struct WindowLayout {
  TableRowFormat table_row;
  // In the parity area:
  std::size_t facts_offset = 0;   // [ranks] CallFacts
  std::size_t tables_offset = 0;  // [ranks][max tokens] table rows
  std::size_t table_stride = 0;   // source to source
  std::size_t counts_offset = 0;  // [ranks][counts_per_source] i32 (throughput path)
  std::size_t counts_stride = 0;  // source to source
  std::size_t slots_offset = 0;   // latency path: dispatch [ranks][max tokens], combine [slots per token][max tokens]
  std::size_t relay_offset = 0;  // latency path, partial sums: [served][relay slots per token][max tokens] combine rows
  // In the stage area (dispatch and combine overlay):
  std::int64_t dispatch_round_rows = 0;   // rows per (source, destination, round); 0 = nothing comes in rounds anywhere
  std::int64_t combine_round_tokens = 0;  // home tokens per round
  std::size_t relay_stage_offset = 0;  // combine, partial sums: [served][2][relay slots per token][round tokens] rows

  WindowBytes bytes;
};

[[nodiscard]] WindowLayout window_layout(const Shape& shape) noexcept;

/// Returns the most bytes that are made in the outbox at one time to be put as one piece; four such pieces fit.
[[nodiscard]] std::size_t outbox_piece_bytes(const Shape& shape) noexcept;

/// Result memory: tokens, then scales, then sides. Used for the region and for local results alike.
struct ResultLayout {
  std::size_t token_stride = 0;  // bytes, row to row
  std::size_t scales_offset = 0;
  std::int64_t scale_group_rows = 0;  // column-major: rows that share one transposed block (per expert when padded)
  std::size_t scale_group_stride = 0;
  std::size_t scale_row_stride = 0;
  std::size_t scale_item_stride = 0;
  std::size_t side_offset[kMaxSideTensors] = {};
  std::size_t total_bytes = 0;
};

[[nodiscard]] ResultLayout result_layout(const Shape& shape) noexcept;

/// Returns the scale items of a column in memory: rows rounded up so that a column starts on 16 bytes.
[[nodiscard]] constexpr std::int64_t scale_column_items(std::int64_t rows) noexcept {
  return base::align_up(rows, std::int64_t{4});
}

}  // namespace moebus::model
