#include "model/receive_plan.hpp"

#include <algorithm>

#include "model/send_plan.hpp"

namespace moebus::model {

using base::idx;

int max_copies(const Shape& shape) noexcept {
  return shape.config.layout == Layout::rank_major ? 1 : std::min(shape.config.num_topk, shape.max_local_experts);
}

void ReceivePlan::carve(base::Carver& carver, const Shape& shape) noexcept {
  const std::size_t rows = idx(shape.max_recv_rows);
  const std::size_t choices = rows * idx(shape.config.num_topk);
  const std::size_t local = idx(shape.max_local_experts);
  const bool has_experts = shape.config.layout != Layout::rank_major;
  token = carver.take<std::int32_t>(rows);
  home_slot = carver.take<std::int32_t>(rows);
  position = carver.take<std::int32_t>(has_experts ? choices : 0);
  choice = carver.take<std::int32_t>(choices);
  weight = carver.take<float>(choices);
  own_row = carver.take<std::int32_t>(idx(shape.config.max_tokens_per_rank));
  result_src_rank = carver.take<std::int32_t>(idx(shape.result_rows));
  result_src_token = carver.take<std::int32_t>(has_experts ? idx(shape.result_rows) : 0);
  result_weight = carver.take<float>(has_experts ? idx(shape.result_rows) : 0);
  counts = carver.take<std::int32_t>(local);
  wanted = carver.take<std::int32_t>(local);
  offsets = carver.take<std::int64_t>(local + 1);
  rank_counts = carver.take<std::int32_t>(idx(shape.num_ranks));
  marks = carver.take<std::int32_t>(local);
  next = carver.take<std::int32_t>(local);
}

namespace {

/// Reads the tables: tokens, home slots, local choices and weights of all wire rows, in order; counts rows per local
/// expert.
void read_tables(const Shape& shape,
                 const TableRowFormat& format,
                 int rank,
                 std::span<const TableView> tables,
                 ReceivePlan& plan) noexcept {
  const std::size_t topk = idx(shape.config.num_topk);
  const auto first_expert = static_cast<std::uint32_t>(shape.placement.first_expert(rank));
  const auto num_local = static_cast<std::uint32_t>(shape.placement.num_local(rank));
  std::fill_n(plan.wanted.begin(), num_local, 0);
  std::fill_n(plan.marks.begin(), num_local, -1);
  std::int32_t row = 0;
  for (int src = 0; src < shape.num_ranks; ++src) {
    const TableView& table = tables[idx(src)];
    plan.first_row[idx(src)] = row;
    plan.rank_counts[idx(src)] = table.num_rows;
    const std::byte* at = table.rows;
    for (std::int32_t i = 0; i < table.num_rows; ++i, ++row, at += format.stride_bytes) {
      std::memcpy(&plan.token[idx(row)], at, sizeof(std::int32_t));
      std::memcpy(&plan.home_slot[idx(row)], at + sizeof(std::int32_t), sizeof(std::int32_t));
      // Written by write_tables at these offsets, 4-byte aligned.
      const auto* ids = reinterpret_cast<const std::int32_t*>(at + format.ids_offset_bytes);
      const auto* weights = reinterpret_cast<const float*>(at + format.weights_offset_bytes);
      std::int32_t* choice = plan.choice.data() + idx(row) * topk;
      float* weight = plan.weight.data() + idx(row) * topk;
      for (std::size_t k = 0; k < topk; ++k) {
        const std::uint32_t seat = static_cast<std::uint32_t>(ids[k]) - first_expert;
        const bool is_here = seat < num_local;  // -1 wraps to a large number
        choice[k] = is_here ? static_cast<std::int32_t>(seat) : -1;
        weight[k] = is_here && table.has_weights ? weights[k] : 0.0F;
        if (is_here) {
          plan.wanted[seat] += plan.marks[seat] != row ? 1 : 0;
          plan.marks[seat] = row;
        }
      }
    }
  }
  plan.first_row[idx(shape.num_ranks)] = row;
}

void order_by_rank(const Shape& shape, ReceivePlan& plan) noexcept {
  const std::int64_t wire_rows = plan.num_wire_rows(shape);
  plan.num_rows = std::min(wire_rows, plan.capacity_rows);
  plan.num_overflowed = wire_rows - plan.num_rows;
  for (int src = 0; src < shape.num_ranks; ++src) {
    const std::int64_t end = std::min<std::int64_t>(plan.first_row[idx(src) + 1], plan.num_rows);
    for (std::int64_t row = plan.first_row[idx(src)]; row < end; ++row) plan.result_src_rank[idx(row)] = src;
  }
  // Kept rows per expert: what was wanted, less the choices of dropped rows.
  std::copy(plan.wanted.begin(), plan.wanted.end(), plan.counts.begin());
  const std::size_t topk = idx(shape.config.num_topk);
  for (std::int64_t row = plan.num_rows; row < wire_rows; ++row) {
    const std::int32_t* choice = plan.choice.data() + idx(row) * topk;
    for (std::size_t k = 0; k < topk; ++k) {
      if (choice[k] >= 0 && std::find(choice, choice + k, choice[k]) == choice + k) --plan.counts[idx(choice[k])];
    }
  }
}

/// Offsets of the groups, and padding rows marked (expert_major).
void lay_groups(const Shape& shape, int num_local, ReceivePlan& plan) noexcept {
  std::int64_t offset = 0;
  const bool is_padded = shape.config.layout == Layout::expert_padded;
  for (int seat = 0; seat < num_local; ++seat) {
    plan.offsets[idx(seat)] = is_padded ? seat * plan.capacity_rows : offset;
    const std::int64_t end = offset + plan.wanted[idx(seat)];
    offset = base::align_up(end, std::int64_t{shape.config.expert_alignment});
    if (is_padded) continue;
    for (std::int64_t row = end; row < std::min(offset, plan.capacity_rows); ++row) {
      plan.result_src_rank[idx(row)] = -1;
      plan.result_src_token[idx(row)] = -1;
      plan.result_weight[idx(row)] = 0.0F;
    }
  }
  plan.offsets[idx(num_local)] = is_padded ? num_local * plan.capacity_rows : offset;
  plan.num_rows = is_padded ? 0 : std::min(offset, plan.capacity_rows);
}

void order_by_expert(const Shape& shape, int rank, ReceivePlan& plan) noexcept {
  const std::size_t topk = idx(shape.config.num_topk);
  const int num_local = shape.placement.num_local(rank);
  lay_groups(shape, num_local, plan);
  std::fill_n(plan.next.begin(), num_local, 0);
  std::fill_n(plan.counts.begin(), num_local, 0);
  std::fill_n(plan.marks.begin(), num_local, -1);
  plan.num_overflowed = 0;
  for (int src = 0; src < shape.num_ranks; ++src) {
    for (std::int32_t row = plan.first_row[idx(src)]; row < plan.first_row[idx(src) + 1]; ++row) {
      for (std::size_t k = 0; k < topk; ++k) {
        std::int32_t& position = plan.position[idx(row) * topk + k];
        position = -1;
        const std::int32_t seat = plan.choice[idx(row) * topk + k];
        if (seat < 0) continue;
        const bool is_first = plan.marks[idx(seat)] != row;
        plan.marks[idx(seat)] = row;
        const std::int64_t index = is_first ? plan.next[idx(seat)]++ : plan.next[idx(seat)] - 1;
        const std::int64_t offset = plan.offsets[idx(seat)];
        const std::int64_t at = result_index(shape, plan.capacity_rows, seat, offset, index);
        position = static_cast<std::int32_t>(at);
        if (at < 0) {
          plan.num_overflowed += is_first ? 1 : 0;
          continue;
        }
        const float weight = plan.weight[idx(row) * topk + k];
        plan.result_weight[idx(at)] = is_first ? weight : plan.result_weight[idx(at)] + weight;
        plan.result_src_rank[idx(at)] = src;
        plan.result_src_token[idx(at)] = plan.token[idx(row)];
        plan.counts[idx(seat)] += is_first ? 1 : 0;
      }
    }
  }
  if (shape.config.layout != Layout::expert_padded) return;
  for (int seat = 0; seat < num_local; ++seat) plan.num_rows += plan.counts[idx(seat)];
}

}  // namespace

void plan_receive(const Shape& shape,
                  const TableRowFormat& format,
                  int rank,
                  std::span<const TableView> tables,
                  std::int64_t capacity_rows,
                  ReceivePlan& plan) noexcept {
  plan.capacity_rows = capacity_rows;
  // A source without tokens may leave its weights away; where nobody sent rows, any source tells.
  plan.has_weights =
      std::any_of(tables.begin(), tables.end(), [](const TableView& t) { return t.has_weights; }) &&
      std::all_of(tables.begin(), tables.end(), [](const TableView& t) { return t.has_weights || t.num_rows == 0; });
  read_tables(shape, format, rank, tables, plan);
  if (shape.config.layout == Layout::rank_major) {
    order_by_rank(shape, plan);
  } else {
    order_by_expert(shape, rank, plan);
  }
  std::fill(plan.own_row.begin(), plan.own_row.end(), -1);
  for (std::int32_t row = plan.first_row[idx(rank)]; row < plan.first_row[idx(rank) + 1]; ++row) {
    plan.own_row[idx(plan.token[idx(row)])] = row;
  }
}

std::size_t list_moves(const Shape& shape,
                       const ReceivePlan& plan,
                       std::int32_t first,
                       std::int32_t last,
                       MoveSource source,
                       std::span<RowMove> moves) noexcept {
  std::size_t num = 0;
  const std::size_t topk = idx(shape.config.num_topk);
  for (std::int32_t row = first; row < last; ++row) {
    const std::int32_t from = source == MoveSource::token ? plan.token[idx(row)] : row - first;
    if (shape.config.layout == Layout::rank_major) {
      if (row < plan.num_rows) moves[num++] = {from, row};
      continue;
    }
    const std::int32_t* position = plan.position.data() + idx(row) * topk;
    for (std::size_t k = 0; k < topk; ++k) {
      if (position[k] < 0 || std::find(position, position + k, position[k]) != position + k) continue;
      moves[num++] = {from, position[k]};
    }
  }
  return num;
}

std::size_t list_fan_out(const Shape& shape,
                         const ReceivePlan& plan,
                         std::int32_t first,
                         std::int32_t last,
                         std::span<RowMove> moves) noexcept {
  if (shape.config.layout == Layout::rank_major) return 0;
  std::size_t num = 0;
  const std::size_t topk = idx(shape.config.num_topk);
  for (std::int32_t row = first; row < last; ++row) {
    const std::int32_t* position = plan.position.data() + idx(row) * topk;
    std::int32_t first_kept = -1;
    for (std::size_t k = 0; k < topk; ++k) {
      if (position[k] < 0 || std::find(position, position + k, position[k]) != position + k) continue;
      if (first_kept < 0) {
        first_kept = position[k];
      } else {
        moves[num++] = {first_kept, position[k]};
      }
    }
  }
  return num;
}

}  // namespace moebus::model
