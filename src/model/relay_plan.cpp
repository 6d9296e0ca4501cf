#include "model/relay_plan.hpp"

#include <algorithm>
#include <cstring>

#include "model/node_ranks.hpp"
#include "model/table_guard.hpp"

namespace moebus::model {

using base::idx;

void RelayPlan::carve(base::Carver& carver, const Shape& shape) {
  served.clear();
  if (shape.has_gateways) served = shape.topology.served_by(shape.rank);
  const std::size_t rows = served.size() * idx(shape.config.max_tokens_per_rank);
  token = carver.take<std::int32_t>(rows);
  home_slot = carver.take<std::int32_t>(rows);
  rank_set = carver.take<std::uint64_t>(rows);
}

void plan_relay(const Shape& shape,
                const TableRowFormat& format,
                std::span<const TableView> tables,
                RelayPlan& plan) noexcept {
  plan.first_row = {};
  if (plan.served.empty()) return;
  const std::uint64_t node = node_bits(shape.topology, shape.rank);
  std::int32_t row = 0;
  for (std::size_t index = 0; index < plan.served.size(); ++index) {
    const TableView& table = tables[idx(plan.served[index])];
    const std::byte* at = table.rows;
    const std::int32_t num_rows = guarded_rows(shape, table.num_rows);
    TableGuard guard(shape, num_rows);
    for (std::int32_t i = 0; i < num_rows; ++i, ++row, at += format.stride_bytes) {
      std::int32_t head[2];
      std::memcpy(head, at, sizeof(head));
      plan.token[idx(row)] = guard.token(head[0]);
      plan.home_slot[idx(row)] = guard.home_slot(head[1]);
      std::uint64_t set = 0;
      for (std::size_t k = 0; k < idx(format.num_topk); ++k) {
        std::int32_t seat;
        std::memcpy(&seat, at + format.ids_offset_bytes + k * sizeof(seat), sizeof(seat));
        set |= owner_bit(shape, seat);
      }
      plan.rank_set[idx(row)] = set & node;
    }
    plan.first_row[index + 1] = row;
  }
}

std::size_t list_forwards(const RelayPlan& plan,
                          int index,
                          std::int32_t first,
                          std::int32_t last,
                          int dst,
                          MoveSource source,
                          std::int64_t round_first,
                          std::span<RowMove> moves) noexcept {
  // Slots and places in a round are numbered alike on all ranks of the node: a row keeps its own.
  const std::int32_t round_row = plan.first_row[idx(index)] + static_cast<std::int32_t>(round_first);
  std::size_t num = 0;
  for (std::int32_t row = first; row < last; ++row) {
    if (((plan.rank_set[idx(row)] >> dst) & 1) == 0) continue;
    const std::int32_t place = source == MoveSource::token ? plan.token[idx(row)] : row - round_row;
    moves[num++] = {place, place};
  }
  return num;
}

std::uint64_t count_relay_rows(const RelayPlan& plan, int neighbour) noexcept {
  const auto sets = plan.rank_set.first(idx(plan.first_row[plan.served.size()]));
  const auto num =
      std::count_if(sets.begin(), sets.end(), [&](std::uint64_t set) { return ((set >> neighbour) & 1) != 0; });
  return static_cast<std::uint64_t>(num);
}

RowRange relay_rows_of_tokens(const RelayPlan& plan,
                              int index,
                              std::int64_t first_token,
                              std::int64_t last_token) noexcept {
  const std::int32_t* begin = plan.token.data() + plan.first_row[idx(index)];
  const std::int32_t* end = plan.token.data() + plan.first_row[idx(index) + 1];
  const std::int32_t* from = std::lower_bound(begin, end, first_token);
  const std::int32_t* to = std::lower_bound(from, end, last_token);
  return {static_cast<std::int32_t>(from - plan.token.data()), static_cast<std::int32_t>(to - plan.token.data())};
}

}  // namespace moebus::model
