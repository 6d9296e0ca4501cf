#include "model/receive_plan.hpp"

#include <algorithm>

#include "model/node_ranks.hpp"
#include "model/table_guard.hpp"

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
  table_row = carver.take<std::int32_t>(rows);
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

// Which of a row's choices are here is anybody's guess, and most are not. So they are first listed, without a branch,
// for a block of rows; what is done with them then loops over the list alone.
constexpr std::int32_t kBlockRows = 64;

struct LocalChoices {
  std::array<std::uint16_t, idx(kBlockRows) * idx(kMaxTopk)> entries;  // row in the block x kMaxTopk + choice
  std::size_t num = 0;

  [[nodiscard]] std::span<const std::uint16_t> list() const noexcept { return std::span(entries).first(num); }

  [[nodiscard]] static std::int32_t row_of(std::uint16_t entry) noexcept { return entry / kMaxTopk; }

  [[nodiscard]] static std::size_t choice_of(std::uint16_t entry) noexcept { return entry % kMaxTopk; }
};

/// Lists the choices of `num_rows` rows that are not -1, in order. kTopk = 0: `topk` choices.
template <std::size_t kTopk>
void list_local_of(const std::int32_t* choice, std::size_t topk, std::int32_t num_rows, LocalChoices& local) noexcept {
  constexpr auto kElsewhere = static_cast<std::uint32_t>(-1);
  const std::size_t num_choices = kTopk > 0 ? kTopk : topk;
  std::size_t num = 0;
  for (std::int32_t row = 0; row < num_rows; ++row, choice += num_choices) {
    for (std::size_t k = 0; k < num_choices; ++k) {
      local.entries[num] = static_cast<std::uint16_t>(idx(row) * kMaxTopk + k);
      num += static_cast<std::uint32_t>(choice[k]) < kElsewhere ? 1 : 0;
    }
  }
  local.num = num;
}

void list_local(const std::int32_t* choice, std::size_t topk, std::int32_t num_rows, LocalChoices& local) noexcept {
  if (topk == 8) {
    list_local_of<8>(choice, topk, num_rows, local);
  } else {
    list_local_of<0>(choice, topk, num_rows, local);
  }
}

/// Copies rows of a table, numbered from `table_row` on, to the wire rows from `first_row` on, seats and all weights as
/// they are.
/// kTopk = 0: as many choices as the format says.
template <std::size_t kTopk>
void copy_rows(const TableRowFormat& format,
               const std::byte* at,
               std::int32_t num_rows,
               std::int32_t table_row,
               std::int32_t first_row,
               TableGuard& guard,
               ReceivePlan& plan) noexcept {
  const std::size_t topk = kTopk > 0 ? kTopk : idx(format.num_topk);
  std::int32_t* token = plan.token.data() + first_row;
  std::int32_t* home_slot = plan.home_slot.data() + first_row;
  std::int32_t* from = plan.table_row.data() + first_row;
  std::int32_t* choice = plan.choice.data() + idx(first_row) * topk;
  float* weight = plan.weight.data() + idx(first_row) * topk;
  for (std::int32_t i = 0; i < num_rows; ++i, at += format.stride_bytes, choice += topk, weight += topk) {
    std::int32_t head[2];
    std::memcpy(head, at, sizeof(head));
    token[i] = guard.token(head[0]);
    home_slot[i] = guard.home_slot(head[1]);
    from[i] = table_row + i;
    std::memcpy(choice, at + format.ids_offset_bytes, topk * sizeof(std::int32_t));
    std::memcpy(weight, at + format.weights_offset_bytes, topk * sizeof(float));
  }
}

/// Turns seats into seats here, -1 elsewhere, and weights of choices elsewhere into +0 (selected: a NaN has no
/// effect). One flat loop without branches: compilers make vectors of it.
void localise(std::uint32_t first_seat,
              std::uint32_t num_local,
              std::size_t num_choices,
              std::int32_t* choice,
              float* weight) noexcept {
  for (std::size_t i = 0; i < num_choices; ++i) {
    const std::uint32_t seat = static_cast<std::uint32_t>(choice[i]) - first_seat;  // -1 wraps to a large number
    const float given = weight[i];
    choice[i] = seat < num_local ? static_cast<std::int32_t>(seat) : -1;
    weight[i] = seat < num_local ? given : 0.0F;
  }
}

/// Counts wire rows [first, last), at most kBlockRows, per local seat; a repeated seat counts once.
void count_wanted(std::size_t topk, std::int32_t first, std::int32_t last, ReceivePlan& plan) noexcept {
  const std::int32_t* choice = plan.choice.data() + idx(first) * topk;
  std::int32_t* marks = plan.marks.data();
  std::int32_t* wanted = plan.wanted.data();
  LocalChoices local;
  list_local(choice, topk, last - first, local);
  for (const std::uint16_t entry : local.list()) {
    const std::int32_t row = LocalChoices::row_of(entry);
    const std::size_t seat = idx(choice[idx(row) * topk + LocalChoices::choice_of(entry)]);
    wanted[seat] += marks[seat] != first + row ? 1 : 0;
    marks[seat] = first + row;
  }
}

/// Replaces the home slots of wire rows [first, last), whose choices are still the group's seats, by this rank's place
/// among each token's ranks of this node.
void place_in_node(
    const Shape& shape, int rank, std::size_t topk, std::int32_t first, std::int32_t last, ReceivePlan& plan) noexcept {
  const std::uint64_t node = node_bits(shape.topology, rank);
  for (std::int32_t row = first; row < last; ++row) {
    const std::int32_t* seats = plan.choice.data() + idx(row) * topk;
    plan.home_slot[idx(row)] = place_among(shape, node, rank, seats, topk);
  }
}

/// Keeps those of the wire rows [first, last) that have a seat here, moved up to `first`; returns where they end.
std::int32_t keep_local(std::size_t topk, std::int32_t first, std::int32_t last, ReceivePlan& plan) noexcept {
  std::int32_t end = first;
  for (std::int32_t row = first; row < last; ++row) {
    const std::int32_t* choice = plan.choice.data() + idx(row) * topk;
    if (std::all_of(choice, choice + topk, [](std::int32_t seat) { return seat < 0; })) continue;
    if (end != row) {
      plan.token[idx(end)] = plan.token[idx(row)];
      plan.home_slot[idx(end)] = plan.home_slot[idx(row)];
      plan.table_row[idx(end)] = plan.table_row[idx(row)];
      std::copy_n(choice, topk, plan.choice.data() + idx(end) * topk);
      std::copy_n(plan.weight.data() + idx(row) * topk, topk, plan.weight.data() + idx(end) * topk);
    }
    ++end;
  }
  return end;
}

/// Reads one source's table into the wire rows from `row` on; returns where they end.
std::int32_t read_table(const Shape& shape,
                        const TableRowFormat& format,
                        int rank,
                        bool is_relayed,
                        const TableView& table,
                        std::int32_t row,
                        ReceivePlan& plan) noexcept {
  const std::size_t topk = idx(format.num_topk);
  const auto first_seat = static_cast<std::uint32_t>(shape.placement.first_seat(rank));
  const auto num_local = static_cast<std::uint32_t>(shape.placement.num_local(rank));
  // Copies of a size that the compiler knows are a few moves; others are calls.
  const auto copy = format.num_topk == 8 ? copy_rows<8> : copy_rows<0>;
  const std::int32_t begin = row;
  const std::int32_t num_rows = guarded_rows(shape, table.num_rows);
  TableGuard guard(shape, num_rows);
  for (std::int32_t first = 0; first < num_rows; first += kBlockRows) {
    const std::int32_t num = std::min(kBlockRows, num_rows - first);
    const std::size_t at = idx(row) * topk;
    copy(format, table.rows + idx(first) * format.stride_bytes, num, first, row, guard, plan);
    if (is_relayed && shape.has_partial_sums) place_in_node(shape, rank, topk, row, row + num, plan);
    localise(first_seat, num_local, idx(num) * topk, plan.choice.data() + at, plan.weight.data() + at);
    const std::int32_t end = is_relayed ? keep_local(topk, row, row + num, plan) : row + num;
    count_wanted(topk, row, end, plan);
    row = end;
  }
  if (!table.has_weights) std::fill_n(plan.weight.data() + idx(begin) * topk, idx(row - begin) * topk, 0.0F);
  return row;
}

/// Reads the tables of all sources, in order; counts rows per local seat.
void read_tables(const Shape& shape,
                 const TableRowFormat& format,
                 int rank,
                 std::span<const TableView> tables,
                 ReceivePlan& plan) noexcept {
  const int num_local = shape.placement.num_local(rank);
  std::fill_n(plan.wanted.begin(), num_local, 0);
  std::fill_n(plan.marks.begin(), num_local, -1);
  std::int32_t row = 0;
  bool has_any = false;
  bool has_all = true;
  for (int src = 0; src < shape.num_ranks; ++src) {
    const TableView& table = tables[idx(src)];
    plan.first_row[idx(src)] = row;
    row = read_table(shape, format, rank, shape.is_relayed(src, rank), table, row, plan);
    const std::int32_t num_rows = row - plan.first_row[idx(src)];
    plan.num_table_rows[idx(src)] = guarded_rows(shape, table.num_rows);
    plan.rank_counts[idx(src)] = num_rows;
    has_any |= table.has_weights;
    has_all &= table.has_weights || num_rows == 0;
  }
  plan.first_row[idx(shape.num_ranks)] = row;
  // A source without rows here may leave its weights away; where nobody sent rows, any source tells.
  plan.has_weights = has_any && has_all;
}

void order_by_rank(const Shape& shape, ReceivePlan& plan) noexcept {
  const std::int64_t wire_rows = plan.num_wire_rows(shape);
  plan.num_rows = std::min(wire_rows, plan.capacity_rows);
  plan.num_overflowed = wire_rows - plan.num_rows;
  for (int src = 0; src < shape.num_ranks; ++src) {
    const std::int64_t end = std::min<std::int64_t>(plan.first_row[idx(src) + 1], plan.num_rows);
    for (std::int64_t row = plan.first_row[idx(src)]; row < end; ++row) plan.result_src_rank[idx(row)] = src;
  }
  // Kept rows per seat: what was wanted, less the choices of dropped rows.
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

/// Kept rows of each group, and how many are dropped, from what is wanted.
void count_kept(const Shape& shape, int num_local, ReceivePlan& plan) noexcept {
  const bool is_padded = shape.config.layout == Layout::expert_padded;
  std::int64_t num_kept = 0;
  plan.num_overflowed = 0;
  for (int seat = 0; seat < num_local; ++seat) {
    const std::int64_t wanted = plan.wanted[idx(seat)];
    const std::int64_t room = plan.capacity_rows - (is_padded ? 0 : plan.offsets[idx(seat)]);
    const std::int64_t kept = std::clamp<std::int64_t>(room, 0, wanted);
    plan.counts[idx(seat)] = static_cast<std::int32_t>(kept);
    plan.num_overflowed += wanted - kept;
    num_kept += kept;
  }
  if (is_padded) plan.num_rows = num_kept;
}

/// Places the rows [first, last) of source `src`: at most kBlockRows.
void place_block(const Shape& shape, int src, std::int32_t first, std::int32_t last, ReceivePlan& plan) noexcept {
  const std::size_t topk = idx(shape.config.num_topk);
  const std::int32_t* choice = plan.choice.data() + idx(first) * topk;
  const float* weight = plan.weight.data() + idx(first) * topk;
  std::int32_t* position = plan.position.data() + idx(first) * topk;
  std::fill_n(position, idx(last - first) * topk, -1);
  std::int32_t* marks = plan.marks.data();
  std::int32_t* next = plan.next.data();
  LocalChoices local;
  list_local(choice, topk, last - first, local);
  for (const std::uint16_t entry : local.list()) {
    const std::int32_t row = first + LocalChoices::row_of(entry);
    const std::size_t k = idx(LocalChoices::row_of(entry)) * topk + LocalChoices::choice_of(entry);
    const std::size_t seat = idx(choice[k]);
    const bool is_first = marks[seat] != row;
    marks[seat] = row;
    next[seat] += is_first ? 1 : 0;
    const std::int32_t index = next[seat] - 1;
    if (index >= plan.counts[seat]) continue;
    const std::int64_t at = plan.offsets[seat] + index;
    position[k] = static_cast<std::int32_t>(at);
    plan.result_weight[idx(at)] = is_first ? weight[k] : plan.result_weight[idx(at)] + weight[k];
    plan.result_src_rank[idx(at)] = src;
    plan.result_src_token[idx(at)] = plan.token[idx(row)];
  }
}

void order_by_expert(const Shape& shape, int rank, ReceivePlan& plan) noexcept {
  const int num_local = shape.placement.num_local(rank);
  lay_groups(shape, num_local, plan);
  count_kept(shape, num_local, plan);
  std::fill_n(plan.next.begin(), num_local, 0);
  std::fill_n(plan.marks.begin(), num_local, -1);
  for (int src = 0; src < shape.num_ranks; ++src) {
    const std::int32_t end = plan.first_row[idx(src) + 1];
    for (std::int32_t first = plan.first_row[idx(src)]; first < end; first += kBlockRows) {
      place_block(shape, src, first, std::min(first + kBlockRows, end), plan);
    }
  }
}

}  // namespace

void plan_receive(const Shape& shape,
                  const TableRowFormat& format,
                  int rank,
                  std::span<const TableView> tables,
                  std::int64_t capacity_rows,
                  ReceivePlan& plan) noexcept {
  plan.capacity_rows = capacity_rows;
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

RowRange rows_of_round(const ReceivePlan& plan, int src, std::int64_t first, std::int64_t last) noexcept {
  const std::int32_t* begin = plan.table_row.data() + plan.first_row[idx(src)];
  const std::int32_t* end = plan.table_row.data() + plan.first_row[idx(src) + 1];
  const std::int32_t* from = std::lower_bound(begin, end, first);
  const std::int32_t* to = std::lower_bound(from, end, last);
  return {static_cast<std::int32_t>(from - plan.table_row.data()),
          static_cast<std::int32_t>(to - plan.table_row.data())};
}

std::size_t list_moves(const Shape& shape,
                       const ReceivePlan& plan,
                       std::int32_t first,
                       std::int32_t last,
                       MoveSource source,
                       std::span<RowMove> moves,
                       std::int64_t round_first) noexcept {
  std::size_t num = 0;
  const std::size_t topk = idx(shape.config.num_topk);
  for (std::int32_t row = first; row < last; ++row) {
    const std::int32_t from = source == MoveSource::token
                                  ? plan.token[idx(row)]
                                  : plan.table_row[idx(row)] - static_cast<std::int32_t>(round_first);
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
