#include "model/combine_plan.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "model/combine_tail.hpp"

namespace moebus::model {

using base::idx;

namespace {

bool is_per_expert(const Shape& shape) noexcept { return shape.config.combine_rows == CombineRows::per_expert; }

bool is_rank_major(const Shape& shape) noexcept { return shape.config.layout == Layout::rank_major; }

/// True if choice k of wire row `row` is kept here.
bool is_kept(const Shape& shape, const ReceivePlan& plan, std::int32_t row, std::size_t k) noexcept {
  const std::size_t at = idx(row) * idx(shape.config.num_topk) + k;
  if (is_rank_major(shape)) return plan.choice[at] >= 0 && row < plan.num_rows;
  return plan.position[at] >= 0;
}

/// True if choice k names an expert that an earlier choice of the row names too.
bool is_repeated(const std::int32_t* choices, std::size_t k) noexcept {
  return std::find(choices, choices + k, choices[k]) != choices + k;
}

std::int64_t result_row(const Shape& shape, const ReceivePlan& plan, std::int32_t row, std::size_t k) noexcept {
  return is_rank_major(shape) ? row : plan.position[idx(row) * idx(shape.config.num_topk) + k];
}

std::uint64_t kept_mask(const Shape& shape, const ReceivePlan& plan, std::int32_t row) noexcept {
  std::uint64_t mask = 0;
  for (std::size_t k = 0; k < idx(shape.config.num_topk); ++k) {
    if (is_kept(shape, plan, row, k)) mask |= std::uint64_t{1} << k;
  }
  return mask;
}

/// Calls visit(i, row, k) for each row that wire rows `rows` send, numbered i = 0, 1, ... ; k is the choice that a
/// per_expert row belongs to (the first that names its expert, kept or not), else 0. Returns how many.
template <class Visit>
std::size_t for_each_sent_row(const Shape& shape, const ReceivePlan& plan, RowRange rows, const Visit& visit) noexcept {
  const std::size_t topk = idx(shape.config.num_topk);
  std::size_t num = 0;
  for (std::int32_t row = rows.first; row < rows.last; ++row) {
    if (!is_per_expert(shape)) {
      visit(num++, row, std::size_t{0});
      continue;
    }
    const std::int32_t* choice = plan.choice.data() + idx(row) * topk;
    for (std::size_t k = 0; k < topk; ++k) {
      if (choice[k] >= 0 && !is_repeated(choice, k)) visit(num++, row, k);
    }
  }
  return num;
}

}  // namespace

float LaneView::at(std::int64_t row, std::size_t choice) const noexcept {
  float value;
  std::memcpy(&value, data + row * row_stride_bytes + choice * sizeof(float), sizeof(value));
  return value;
}

RowRange rows_of_tokens(const ReceivePlan& plan, int src, std::int64_t first_token, std::int64_t last_token) noexcept {
  const auto begin = plan.token.begin() + plan.first_row[idx(src)];
  const auto end = plan.token.begin() + plan.first_row[idx(src) + 1];
  const auto first = std::lower_bound(begin, end, first_token);
  const auto last = std::lower_bound(first, end, last_token);
  return {static_cast<std::int32_t>(first - plan.token.begin()), static_cast<std::int32_t>(last - plan.token.begin())};
}

// --- Owner ---

std::size_t list_owner_slots(const Shape& shape,
                             const ReceivePlan& plan,
                             RowRange rows,
                             const HomeSlots& slots,
                             std::span<std::int32_t> slot,
                             std::span<std::uint8_t> has_payload) noexcept {
  return for_each_sent_row(shape, plan, rows, [&](std::size_t i, std::int32_t row, std::size_t k) {
    const std::int64_t place = is_per_expert(shape) ? static_cast<std::int64_t>(k) : plan.home_slot[idx(row)];
    slot[i] = static_cast<std::int32_t>(slots.index(place, plan.token[idx(row)]));
    const bool is_here = is_per_expert(shape) ? is_kept(shape, plan, row, k) : kept_mask(shape, plan, row) != 0;
    has_payload[i] = is_here ? 1 : 0;
  });
}

void list_owner_sums(const Shape& shape,
                     const ReceivePlan& plan,
                     RowRange rows,
                     const RowsView& results,
                     const float* home_weights,
                     std::byte* data,
                     std::span<const std::int32_t> at,
                     SumTerms& terms) noexcept {
  const std::size_t topk = idx(shape.config.num_topk);
  std::int32_t num = 0;
  std::size_t output = 0;
  for (std::int32_t row = rows.first; row < rows.last; ++row) {
    const std::size_t token = idx(plan.token[idx(row)]);
    const float* weight = home_weights != nullptr ? home_weights + token * topk : plan.weight.data() + idx(row) * topk;
    terms.first[output] = num;
    for (std::size_t k = 0; k < topk; ++k) {
      const std::int32_t position = plan.position[idx(row) * topk + k];
      if (position < 0) continue;
      terms.term[idx(num)] = results.row(position);
      terms.weight[idx(num)] = weight[k];
      ++num;
    }
    terms.output_row[output] = row_at(shape.combine_row, data, place_of(at, output));
    ++output;
  }
  terms.first[output] = num;
}

std::size_t list_owner_moves(const Shape& shape,
                             const ReceivePlan& plan,
                             RowRange rows,
                             std::span<const std::int32_t> at,
                             std::span<RowMove> moves) noexcept {
  std::size_t num = 0;
  for_each_sent_row(shape, plan, rows, [&](std::size_t i, std::int32_t row, std::size_t k) {
    const bool is_here = is_rank_major(shape) ? row < plan.num_rows : is_kept(shape, plan, row, k);
    if (!is_here) return;
    moves[num++] = {static_cast<std::int32_t>(result_row(shape, plan, row, k)),
                    static_cast<std::int32_t>(place_of(at, i))};
  });
  return num;
}

void write_tails(const Shape& shape,
                 const ReceivePlan& plan,
                 RowRange rows,
                 const LaneView& lane,
                 std::byte* data,
                 std::span<const std::int32_t> at) noexcept {
  const CombineRowFormat& format = shape.combine_row;
  if (format.mask_bytes == 0 && lane.data == nullptr) return;
  // Every row of a wire row brings the same tail: per_expert rows are looked at where home finds their choice.
  std::int32_t tail_row = -1;
  std::uint64_t mask = 0;
  std::array<float, kMaxTopk> values;
  for_each_sent_row(shape, plan, rows, [&](std::size_t i, std::int32_t row, std::size_t) {
    if (row != tail_row) {
      tail_row = row;
      mask = kept_mask(shape, plan, row);
      for (std::size_t k = 0; lane.data != nullptr && k < idx(shape.config.num_topk); ++k) {
        values[k] = ((mask >> k) & 1) != 0 ? lane.at(result_row(shape, plan, row, k), k) : 0.0F;
      }
    }
    write_tail(format, row_at(format, data, place_of(at, i)), lane.data != nullptr ? values.data() : nullptr, mask);
  });
}

// --- Home ---

namespace {

/// What home knows of one of its tokens.
struct HomeToken {
  std::int64_t token;
  const std::int32_t* ids;   // [K] seats
  const std::uint8_t* hops;  // [num_hops]
  std::size_t num_hops;
  std::int32_t own_row;
};

/// True if the plan has a wire row for the token. It always has where the token chose an expert here, unless somebody
/// else wrote into this rank's own table.
bool has_own_row(const HomeToken& home) noexcept { return home.own_row >= 0; }

/// Where rows of a home's tokens are found.
struct HomeRows {
  const Shape& shape;
  const ReceivePlan& receive;
  RowsView results;
  HomeSlots slots;

  [[nodiscard]] const std::byte* slot(std::size_t place, std::int64_t token) const noexcept {
    return row_at(shape.combine_row, slots.data, slots.index(static_cast<std::int64_t>(place), token));
  }

  /// Returns the row that hop j sent; null if there is none, as all its choices were dropped.
  [[nodiscard]] const std::byte* of_hop(const HomeToken& home, std::size_t j) const noexcept {
    if (home.hops[j] == shape.rank && is_rank_major(shape)) {
      return has_own_row(home) && home.own_row < receive.num_rows ? results.row(home.own_row) : nullptr;
    }
    const std::byte* row = slot(j, home.token);
    return read_mask(shape.combine_row, row) != 0 ? row : nullptr;
  }
};

HomeToken home_token(const Shape& shape,
                     const SendPlan& send,
                     const ReceivePlan& receive,
                     std::int64_t token) noexcept {
  return {token,
          send.ids.data() + idx(token) * idx(shape.config.num_topk),
          send.hops.data() + idx(token) * idx(max_hops_per_token(shape)),
          send.num_hops[idx(token)],
          receive.own_row[idx(token)]};
}

/// Returns the slot of choice k with per_expert rows: that of the expert's first mention.
std::size_t slot_of_choice(const std::int32_t* ids, std::size_t k) noexcept {
  return static_cast<std::size_t>(std::find(ids, ids + k, ids[k]) - ids);
}

/// Calls visit(rows, is_summed) for each node of which a row exists, ordered by the position of the node's last chosen
/// expert: its ranks' rows in the order of theirs, or the one row that its gateway has summed.
template <class Visit>
void for_each_node(const HomeRows& from, const HomeToken& home, const Visit& visit) noexcept {
  const Topology& topology = from.shape.topology;
  const int own_node = topology.node_of(from.shape.rank);
  // Seen from the back, a node's first hop is its last: there the node has its turn.
  std::uint64_t has_turn = 0;
  std::uint64_t seen = 0;
  for (std::size_t j = home.num_hops; j-- > 0;) {
    const std::uint64_t bit = std::uint64_t{1} << topology.node_of(home.hops[j]);
    if ((seen & bit) == 0) has_turn |= std::uint64_t{1} << j;
    seen |= bit;
  }
  std::array<const std::byte*, kMaxTopk> rows;
  for (std::size_t last = 0; last < home.num_hops; ++last) {
    if (((has_turn >> last) & 1) == 0) continue;
    const int node = topology.node_of(home.hops[last]);
    std::size_t num = 0;
    for (std::size_t j = 0; j <= last; ++j) {
      if (topology.node_of(home.hops[j]) != node) continue;
      if (const std::byte* row = from.of_hop(home, j); row != nullptr) rows[num++] = row;
    }
    if (num > 0) visit(std::span(rows).first(num), from.shape.has_partial_sums && node != own_node);
  }
}

/// Returns place `place` among a token's partial sums; `token` counts from the first one of the block.
std::byte* partial_row(const Shape& shape,
                       const PartialSums& partial,
                       std::int64_t token,
                       std::int64_t place) noexcept {
  return partial.rows + (token * partial_rows_per_token(shape) + place) * partial.stride_bytes;
}

void add_rank_terms(const HomeRows& from, const HomeToken& home, SumTerms& terms, std::int32_t& num) noexcept {
  for (std::size_t j = 0; j < home.num_hops; ++j) {
    if (const std::byte* row = from.of_hop(home, j); row != nullptr) terms.term[idx(num++)] = row;
  }
}

/// `token_in_block` counts from the first token that `partial` has rows for.
void add_node_terms(const HomeRows& from,
                    const HomeToken& home,
                    const PartialSums& partial,
                    std::int64_t token_in_block,
                    SumTerms& terms,
                    std::int32_t& num) noexcept {
  std::int64_t place = 0;
  for_each_node(from, home, [&](std::span<const std::byte* const> rows, bool is_summed) {
    terms.term[idx(num++)] = is_summed ? rows[0] : partial_row(from.shape, partial, token_in_block, place++);
  });
}

void add_expert_terms(
    const HomeRows& from, const HomeToken& home, const float* weights, SumTerms& terms, std::int32_t& num) noexcept {
  const Shape& shape = from.shape;
  const std::size_t topk = idx(shape.config.num_topk);
  for (std::size_t k = 0; k < topk; ++k) {
    const std::int32_t id = home.ids[k];
    if (id < 0) continue;
    const std::byte* term = nullptr;
    if (shape.owner[idx(id) + 1] == shape.rank) {
      const std::int32_t position = has_own_row(home) ? from.receive.position[idx(home.own_row) * topk + k] : -1;
      if (position >= 0) term = from.results.row(position);
    } else {
      const std::byte* slot = from.slot(slot_of_choice(home.ids, k), home.token);
      if (((read_mask(shape.combine_row, slot) >> k) & 1) != 0) term = slot;
    }
    if (term == nullptr) continue;
    terms.term[idx(num)] = term;
    terms.weight[idx(num)] = weights != nullptr ? weights[idx(home.token) * topk + k] : 0.0F;
    ++num;
  }
}

}  // namespace

int partial_rows_per_token(const Shape& shape) noexcept {
  if (shape.levels < 2 || is_per_expert(shape)) return 0;
  return shape.has_partial_sums ? 1 : std::min(shape.topology.num_nodes(), shape.config.num_topk);
}

std::int64_t list_partial_sums(const Shape& shape,
                               const SendPlan& send,
                               const ReceivePlan& receive,
                               std::int64_t first_token,
                               std::int64_t last_token,
                               const RowsView& results,
                               const HomeSlots& slots,
                               const PartialSums& partial,
                               SumTerms& terms) noexcept {
  if (partial_rows_per_token(shape) == 0) return 0;
  const HomeRows from{shape, receive, results, slots};
  std::int32_t num = 0;
  std::int64_t output = 0;
  for (std::int64_t token = first_token; token < last_token; ++token) {
    std::int64_t place = 0;
    for_each_node(
        from, home_token(shape, send, receive, token), [&](std::span<const std::byte* const> rows, bool is_summed) {
          if (is_summed) return;
          terms.first[idx(output)] = num;
          terms.output_row[idx(output++)] = partial_row(shape, partial, token - first_token, place++);
          for (const std::byte* row : rows) terms.term[idx(num++)] = row;
        });
  }
  terms.first[idx(output)] = num;
  return output;
}

void list_home_sums(const Shape& shape,
                    const SendPlan& send,
                    const ReceivePlan& receive,
                    std::int64_t first_token,
                    std::int64_t last_token,
                    const RowsView& results,
                    const float* weights,
                    const HomeSlots& slots,
                    const PartialSums& partial,
                    SumTerms& terms) noexcept {
  const HomeRows from{shape, receive, results, slots};
  const bool has_partial_rows = partial_rows_per_token(shape) > 0;
  std::int32_t num = 0;
  for (std::int64_t token = first_token; token < last_token; ++token) {
    terms.first[idx(token - first_token)] = num;
    const HomeToken home = home_token(shape, send, receive, token);
    if (is_per_expert(shape)) {
      add_expert_terms(from, home, weights, terms, num);
    } else if (has_partial_rows) {
      add_node_terms(from, home, partial, token - first_token, terms, num);
    } else {
      add_rank_terms(from, home, terms, num);
    }
  }
  terms.first[idx(last_token - first_token)] = num;
}

namespace {

/// Returns the slot that choice k came in; its owner is another rank.
std::size_t slot_of(const Shape& shape, const HomeToken& home, std::size_t k) noexcept {
  if (is_per_expert(shape)) return slot_of_choice(home.ids, k);
  const std::uint8_t hop = shape.hop[idx(home.ids[k]) + 1];
  return static_cast<std::size_t>(std::find(home.hops, home.hops + home.num_hops, hop) - home.hops);
}

/// What came back of a choice.
struct Returned {
  bool is_kept;
  float lane;
};

Returned read_choice(
    const HomeRows& from, const HomeToken& home, std::size_t k, const LaneView& own_lane, bool has_lane) noexcept {
  const Shape& shape = from.shape;
  Returned returned{false, 0.0F};
  if (shape.owner[idx(home.ids[k]) + 1] == shape.rank) {
    returned.is_kept = has_own_row(home) && is_kept(shape, from.receive, home.own_row, k);
    if (returned.is_kept && own_lane.data != nullptr) {
      returned.lane = own_lane.at(result_row(shape, from.receive, home.own_row, k), k);
    }
    return returned;
  }
  const std::byte* slot = from.slot(slot_of(shape, home, k), home.token);
  returned.is_kept = ((read_mask(shape.combine_row, slot) >> k) & 1) != 0;
  if (returned.is_kept && has_lane) returned.lane = read_lane(shape.combine_row, slot, k);
  return returned;
}

}  // namespace

std::int64_t read_tails(const Shape& shape,
                        const SendPlan& send,
                        const ReceivePlan& receive,
                        std::int64_t first_token,
                        std::int64_t last_token,
                        const LaneView& lane,
                        const HomeSlots& slots,
                        float* lane_out,
                        std::uint64_t* missing) noexcept {
  const HomeRows from{shape, receive, {}, slots};
  const std::size_t topk = idx(shape.config.num_topk);
  std::int64_t num_incomplete = 0;
  for (std::int64_t token = first_token; token < last_token; ++token) {
    const HomeToken home = home_token(shape, send, receive, token);
    std::uint64_t missing_here = 0;
    for (std::size_t k = 0; k < topk; ++k) {
      Returned returned{true, 0.0F};  // -1 misses nothing
      if (home.ids[k] >= 0) returned = read_choice(from, home, k, lane, lane_out != nullptr);
      if (!returned.is_kept) missing_here |= std::uint64_t{1} << k;
      if (lane_out != nullptr) lane_out[idx(token) * topk + k] = returned.lane;
    }
    if (missing != nullptr) missing[idx(token)] = missing_here;
    num_incomplete += missing_here != 0 ? 1 : 0;
  }
  return num_incomplete;
}

}  // namespace moebus::model
