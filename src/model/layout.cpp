#include "model/layout.hpp"

#include <algorithm>

namespace moebus::model {

namespace {

using base::align_up;
using base::idx;

constexpr std::size_t kAreaAlign = 4096;

// Rounds that stay in the caches are read back before they are written out to memory: measured best between 1 and 4 MiB
// on a Zen 5 (1 MiB of L2 a core) with two ranks. A larger stage would only be registered, not used.
constexpr std::size_t kRoundBytes = std::size_t{2} << 20;

std::int64_t rows_that_fit(std::size_t bytes, std::size_t row_bytes, std::int64_t most) noexcept {
  return std::clamp<std::int64_t>(static_cast<std::int64_t>(bytes / row_bytes), 1, most);
}

/// Relay slots of all sources that a gateway serves, for one token of each.
std::size_t relay_slots_per_home_token(const Shape& shape) noexcept {
  return shape.has_partial_sums ? idx(shape.topology.max_served()) * idx(shape.relay_slots_per_token) : 0;
}

void lay_parity(const Shape& shape, WindowLayout& layout) noexcept {
  const std::size_t ranks = idx(shape.num_ranks);
  const std::size_t tokens = idx(shape.config.max_tokens_per_rank);
  layout.table_row = table_row_format(shape.config.num_topk);
  layout.table_stride = align_up(tokens * layout.table_row.stride_bytes, kSlotAlign);
  layout.tables_offset = align_up(ranks * sizeof(CallFacts), kSlotAlign);
  layout.counts_offset = layout.tables_offset + ranks * layout.table_stride;
  std::size_t end = layout.counts_offset;
  if (shape.config.path == Path::throughput) {
    layout.counts_stride = align_up((ranks + idx(shape.num_seats)) * sizeof(std::int32_t), kSlotAlign);
    end += ranks * layout.counts_stride;
  } else {
    layout.slots_offset = end;
    const std::size_t home_slots = tokens * idx(shape.combine_slots_per_token) * shape.combine_row.stride_bytes;
    const std::size_t relay_slots = tokens * relay_slots_per_home_token(shape) * shape.combine_row.stride_bytes;
    if (shape.has_partial_sums) layout.relay_offset = end + home_slots;
    end += std::max(tokens * ranks * shape.dispatch_row.stride_bytes, home_slots + relay_slots);
  }
  layout.bytes.parity = align_up(end, kAreaAlign);
}

void lay_stage(const Shape& shape, WindowLayout& layout) noexcept {
  const std::int64_t tokens = shape.config.max_tokens_per_rank;
  const std::size_t home_token = 2 * idx(shape.combine_slots_per_token) * shape.combine_row.stride_bytes;
  const std::size_t relay_token = 2 * relay_slots_per_home_token(shape) * shape.combine_row.stride_bytes;
  // A gateway takes rounds of every source it serves, beside its own: with one budget for all of them rounds of a few
  // tokens would be all signals.
  const std::size_t num_homes = shape.has_partial_sums ? idx(shape.topology.max_served()) + 1 : 1;
  const std::size_t round_bytes = std::min(shape.config.stage_bytes, kRoundBytes * num_homes);
  layout.combine_round_tokens = rows_that_fit(round_bytes, home_token + relay_token, tokens);
  if (shape.has_partial_sums) layout.relay_stage_offset = idx(layout.combine_round_tokens) * home_token;
  std::size_t bytes = idx(layout.combine_round_tokens) * (home_token + relay_token);
  if (shape.has_dispatch_rounds()) {
    const std::size_t dispatch_row = 2 * idx(shape.num_ranks) * shape.dispatch_row.stride_bytes;
    // A peer's share is as large whatever the number of ranks: rounds of a few rows would be all signals.
    const std::size_t all_shares = std::min(shape.config.stage_bytes, kRoundBytes * idx(shape.num_ranks) / 2);
    layout.dispatch_round_rows = rows_that_fit(all_shares, dispatch_row, tokens);
    bytes = std::max(bytes, idx(layout.dispatch_round_rows) * dispatch_row);
  }
  layout.bytes.stage = align_up(bytes, kAreaAlign);
}

// Pieces of these many rows are large enough that putting them costs more than the call.
constexpr std::size_t kDispatchPieceRows = 32;
constexpr std::size_t kCombinePieceRows = 128;
constexpr std::size_t kPiecesAtOnce = 4;

}  // namespace

TableRowFormat table_row_format(int num_topk) noexcept {
  TableRowFormat format;
  format.num_topk = num_topk;
  format.ids_offset_bytes = 2 * sizeof(std::int32_t);
  format.weights_offset_bytes = format.ids_offset_bytes + idx(num_topk) * sizeof(std::int32_t);
  format.stride_bytes = format.weights_offset_bytes + idx(num_topk) * sizeof(float);
  return format;
}

void WindowBytes::cover(const WindowBytes& other) noexcept {
  parity = std::max(parity, other.parity);
  stage = std::max(stage, other.stage);
  region = std::max(region, other.region);
  outbox = std::max(outbox, other.outbox);
}

WindowLayout window_layout(const Shape& shape) noexcept {
  WindowLayout layout;
  lay_parity(shape, layout);
  if (shape.config.path == Path::throughput) {
    lay_stage(shape, layout);
    if (shape.config.delivery == Delivery::direct) {
      layout.bytes.region = align_up(result_layout(shape).total_bytes, kAreaAlign);
    }
  }
  if (shape.topology.has_unmapped())
    layout.bytes.outbox = align_up(kPiecesAtOnce * outbox_piece_bytes(shape), kAreaAlign);
  return layout;
}

std::size_t outbox_piece_bytes(const Shape& shape) noexcept {
  const std::size_t tables =
      idx(shape.config.max_tokens_per_rank) * table_row_format(shape.config.num_topk).stride_bytes;
  const std::size_t counts = (idx(shape.num_ranks) + idx(shape.num_seats)) * sizeof(std::int32_t);
  const std::size_t most = std::max({kDispatchPieceRows * shape.dispatch_row.stride_bytes,
                                     kCombinePieceRows * shape.combine_row.stride_bytes,
                                     tables,
                                     counts + 4096});
  return align_up(most, kSlotAlign);
}

ResultLayout result_layout(const Shape& shape) noexcept {
  ResultLayout layout;
  const DispatchRowFormat& row = shape.dispatch_row;
  const std::size_t rows = idx(shape.result_rows);
  layout.token_stride = row.payload_bytes;
  std::size_t end = align_up(rows * row.payload_bytes, kSlotAlign);
  layout.scales_offset = end;
  const bool is_padded = shape.config.layout == Layout::expert_padded;
  if (shape.config.scale_order == ScaleOrder::column_major) {
    const std::int64_t group_rows = is_padded ? shape.capacity_rows : shape.result_rows;
    const std::size_t column_bytes = idx(scale_column_items(group_rows)) * 4;
    layout.scale_group_rows = group_rows;
    layout.scale_group_stride = column_bytes * idx(row.scale_items);
    layout.scale_row_stride = 4;
    layout.scale_item_stride = column_bytes;
    end += layout.scale_group_stride * (is_padded ? idx(shape.max_local_experts) : 1);
  } else {
    layout.scale_row_stride = row.scales_bytes;
    layout.scale_item_stride = 4;
    end += rows * row.scales_bytes;
  }
  for (std::size_t s = 0; s < kMaxSideTensors; ++s) {
    layout.side_offset[s] = align_up(end, kSlotAlign);
    end = layout.side_offset[s] + rows * row.side_bytes[s];
  }
  layout.total_bytes = align_up(end, kSlotAlign);
  return layout;
}

}  // namespace moebus::model
