#include "model/send_plan.hpp"

#include <algorithm>
#include <cstring>

#include "model/table_guard.hpp"

namespace moebus::model {

using base::idx;

namespace {

/// Hops of a token that are copied at once; SendPlan::hops has as many bytes to spare at its end.
constexpr std::size_t kHopsAtOnce = 8;

}  // namespace

int max_hops_per_token(const Shape& shape) noexcept { return std::min(shape.num_ranks, shape.config.num_topk); }

void SendPlan::carve(base::Carver& carver, const Shape& shape) noexcept {
  const std::size_t tokens = idx(shape.config.max_tokens_per_rank);
  const std::size_t topk = idx(shape.config.num_topk);
  ids = carver.take<std::int32_t>(tokens * topk);
  weights = carver.take<float>(tokens * topk);
  hops = carver.take<std::uint8_t>(tokens * idx(max_hops_per_token(shape)) + kHopsAtOnce);
  num_hops = carver.take<std::uint8_t>(tokens);
  tokens_to = carver.take<std::int32_t>(idx(shape.num_ranks) * tokens_to_stride(shape));
}

void RegionPlan::carve(base::Carver& carver, const Shape& shape) noexcept {
  positions = carver.take<std::int32_t>(idx(shape.num_ranks) * idx(shape.config.max_tokens_per_rank));
  next = carver.take<std::int64_t>(2 * idx(shape.num_seats));
  marks = carver.take<std::int32_t>(idx(shape.num_seats));
}

namespace {

template <class Id>
std::optional<BadId> copy_ids(const Shape& shape, const Id* source, std::int64_t num_ids, std::int32_t* ids) noexcept {
  // Compared as unsigned 64-bit after adding 1: one test for both ends, and 2^40 cannot wrap into range.
  const auto limit = static_cast<std::uint64_t>(shape.config.num_experts);
  bool is_bad = false;
  for (std::int64_t i = 0; i < num_ids; ++i) {
    const std::int64_t id = source[i];
    is_bad |= static_cast<std::uint64_t>(id) + 1 > limit;
    ids[i] = static_cast<std::int32_t>(id);
  }
  if (!is_bad) return std::nullopt;
  for (std::int64_t i = 0; i < num_ids; ++i) {
    if (static_cast<std::uint64_t>(static_cast<std::int64_t>(source[i])) + 1 > limit) {
      return BadId{i / shape.config.num_topk, static_cast<int>(i % shape.config.num_topk), source[i]};
    }
  }
  return std::nullopt;
}

/// Returns the seat that a choice takes.
std::int32_t seat_for(const ExpertPlacement& placement, ReplicaChoice& choice, const ReplicaRule& rule) {
  const std::span<const std::int32_t> seats = placement.replicas(choice.expert);
  if (seats.size() == 1) return seats[0];
  std::array<std::int32_t, kMaxRanks> ranks;  // at most one seat on each
  for (std::size_t i = 0; i < seats.size(); ++i) ranks[i] = placement.rank_of(seats[i]);
  choice.ranks = std::span(ranks).first(seats.size());
  const auto num = static_cast<int>(seats.size());
  const int index = (rule ? rule(choice) : default_replica(choice)) % num;
  return seats[idx(index < 0 ? index + num : index)];
}

/// Turns the plan's experts into seats.
void take_seats(const Shape& shape, const ReplicaRule& rule, SendPlan& plan) {
  ReplicaChoice choice;
  choice.src_rank = shape.rank;
  std::int32_t* id = plan.ids.data();
  for (choice.token = 0; choice.token < plan.num_tokens; ++choice.token) {
    for (choice.choice = 0; choice.choice < shape.config.num_topk; ++choice.choice, ++id) {
      if (*id < 0) continue;
      choice.expert = *id;
      *id = seat_for(shape.placement, choice, rule);
    }
  }
}

std::optional<BadId> copy_routing(const Shape& shape,
                                  const ConstTensorView& topk_idx,
                                  const ConstTensorView& topk_weights,
                                  std::int32_t num_tokens,
                                  SendPlan& plan) noexcept {
  const std::int64_t num_ids = std::int64_t{num_tokens} * shape.config.num_topk;
  plan.num_tokens = num_tokens;
  plan.has_weights = topk_weights.is_given();
  if (plan.has_weights && num_ids > 0)
    std::memcpy(plan.weights.data(), topk_weights.data, idx(num_ids) * sizeof(float));
  // Tensors are bytes with a dtype beside them; alignment to the element was checked with the arguments.
  if (topk_idx.dtype == DType::i64) {
    return copy_ids(shape, reinterpret_cast<const std::int64_t*>(topk_idx.data), num_ids, plan.ids.data());
  }
  return copy_ids(shape, reinterpret_cast<const std::int32_t*>(topk_idx.data), num_ids, plan.ids.data());
}

}  // namespace

std::optional<BadId> take_routing(const Shape& shape,
                                  const ConstTensorView& topk_idx,
                                  const ConstTensorView& topk_weights,
                                  std::int32_t num_tokens,
                                  SendPlan& plan,
                                  const ReplicaRule& rule) {
  if (const auto bad = copy_routing(shape, topk_idx, topk_weights, num_tokens, plan)) return bad;
  if (!shape.placement.is_identity()) take_seats(shape, rule, plan);
  return std::nullopt;
}

namespace {

constexpr std::int32_t kBlockTokens = 64;  // what is noted of them stays in the first-level cache

/// Notes of a block of tokens: the set of each one's hops, and their order, which fills its place from the back.
struct BlockOrder {
  static constexpr std::size_t kPlaceBytes = kMaxTopk + kHopsAtOnce;

  std::array<std::uint64_t, kBlockTokens> set;
  std::array<std::size_t, kBlockTokens> first;  // where the order begins in its place
  std::array<std::uint8_t, kBlockTokens * kPlaceBytes> places;
};

/// Orders the hops of the block's tokens. Seen from the last choice, a hop's first appearance is its last chosen
/// expert. Whether a choice brings a new hop is anybody's guess, so no branch hangs on it: every hop is written in
/// front of the order, which grows if it is new. kTopk = 0: as many choices as configured.
template <std::size_t kTopk>
void order_hops(const Shape& shape, const std::int32_t* ids, std::size_t num_tokens, BlockOrder& block) noexcept {
  const std::size_t topk = kTopk > 0 ? kTopk : idx(shape.config.num_topk);
  const std::uint64_t* hop_bit = shape.hop_bit.data() + 1;
  const std::uint8_t* hop = shape.hop.data() + 1;
  for (std::size_t i = 0; i < num_tokens; ++i, ids += topk) {
    std::uint8_t* place = block.places.data() + i * BlockOrder::kPlaceBytes;
    std::size_t front = kMaxTopk;
    std::uint64_t seen = 0;
    for (std::size_t k = topk; k-- > 0;) {
      const std::uint64_t with = seen | hop_bit[ids[k]];
      place[front - 1] = hop[ids[k]];
      front -= seen < with ? 1 : 0;
      seen = with;
    }
    block.set[i] = seen;
    block.first[i] = front;
  }
}

/// Copies the orders to the plan. A few hops are copied at once, too many of them: the next token's overwrite the rest.
void store_hops(const BlockOrder& block,
                std::size_t width,
                std::size_t num_tokens,
                std::uint8_t* hops,
                std::uint8_t* num_hops) noexcept {
  for (std::size_t i = 0; i < num_tokens; ++i, hops += width) {
    const std::uint8_t* order = block.places.data() + i * BlockOrder::kPlaceBytes + block.first[i];
    num_hops[i] = static_cast<std::uint8_t>(kMaxTopk - block.first[i]);
    if (width <= kHopsAtOnce) {
      std::memcpy(hops, order, kHopsAtOnce);
    } else {
      std::memcpy(hops, order, num_hops[i]);
    }
  }
}

template <std::size_t kTopk>
void plan_tokens(const Shape& shape, SendPlan& plan) noexcept {
  const std::size_t width = idx(max_hops_per_token(shape));
  BlockOrder block;
  plan.num_rows_to = {};
  for (std::int32_t first = 0; first < plan.num_tokens; first += kBlockTokens) {
    const std::size_t num_tokens = idx(std::min(kBlockTokens, plan.num_tokens - first));
    order_hops<kTopk>(shape, plan.ids.data() + idx(first) * idx(shape.config.num_topk), num_tokens, block);
    store_hops(block, width, num_tokens, plan.hops.data() + idx(first) * width, plan.num_hops.data() + first);
    for (std::size_t dst = 0; dst < idx(shape.num_ranks); ++dst) {
      // Every token is written behind the list; the list grows over those that belong to it.
      std::int32_t* list = plan.tokens_to.data() + dst * tokens_to_stride(shape);
      std::int32_t* end = list + plan.num_rows_to[dst];
      for (std::size_t i = 0; i < num_tokens; ++i) {
        *end = first + static_cast<std::int32_t>(i);
        end += (block.set[i] >> dst) & 1;
      }
      plan.num_rows_to[dst] = static_cast<std::int32_t>(end - list);
    }
  }
}

/// Writes the tables with rows of kTopk choices; 0 = as many as the format says.
template <std::size_t kTopk>
void write_tables_of(const Shape& shape,
                     const TableRowFormat& format,
                     const SendPlan& plan,
                     std::span<std::byte* const> tables) noexcept {
  const std::size_t choices_bytes = (kTopk > 0 ? kTopk : idx(format.num_topk)) * sizeof(std::int32_t);
  const std::size_t width = idx(max_hops_per_token(shape));
  std::array<std::byte*, kMaxRanks> end{};
  std::copy(tables.begin(), tables.end(), end.begin());
  for (std::int32_t token = 0; token < plan.num_tokens; ++token) {
    const std::uint8_t* hops = plan.hops.data() + idx(token) * width;
    const std::int32_t* ids = plan.ids.data() + idx(token) * idx(format.num_topk);
    const float* weights = plan.weights.data() + idx(token) * idx(format.num_topk);
    const std::int32_t num_hops = plan.num_hops[idx(token)];
    for (std::int32_t slot = 0; slot < num_hops; ++slot) {
      std::byte* row = end[hops[slot]];
      end[hops[slot]] = row + format.stride_bytes;
      const std::int32_t head[2] = {token, slot};
      std::memcpy(row, head, sizeof(head));
      std::memcpy(row + format.ids_offset_bytes, ids, choices_bytes);
      if (plan.has_weights) std::memcpy(row + format.weights_offset_bytes, weights, choices_bytes);
    }
  }
}

}  // namespace

void plan_send(const Shape& shape, SendPlan& plan) noexcept {
  // The usual number of choices is known to the compiler, which then unrolls its loop.
  if (shape.config.num_topk == 8) {
    plan_tokens<8>(shape, plan);
  } else {
    plan_tokens<0>(shape, plan);
  }
}

void write_tables(const Shape& shape,
                  const TableRowFormat& format,
                  const SendPlan& plan,
                  std::span<std::byte* const> tables) noexcept {
  static_assert(sizeof(std::int32_t) == sizeof(float));
  // Copies of a size that the compiler knows are a few stores; others are calls.
  switch (format.num_topk) {
    case 4:
      return write_tables_of<4>(shape, format, plan, tables);
    case 8:
      return write_tables_of<8>(shape, format, plan, tables);
    default:
      return write_tables_of<0>(shape, format, plan, tables);
  }
}

namespace {

/// Counts rows per owner where several owners share a hop.
void count_owners(const Shape& shape, const SendPlan& plan, std::int32_t* counts) noexcept {
  std::fill_n(counts, shape.num_ranks, 0);
  const std::int32_t* id = plan.ids.data();
  for (std::int32_t token = 0; token < plan.num_tokens; ++token) {
    std::uint64_t seen = 0;
    for (int k = 0; k < shape.config.num_topk; ++k, ++id) {
      if (*id < 0) continue;
      const std::uint8_t owner = shape.owner[idx(*id) + 1];
      counts[owner] += static_cast<std::int32_t>(~(seen >> owner) & 1);
      seen |= std::uint64_t{1} << owner;
    }
  }
}

}  // namespace

void write_counts(const Shape& shape,
                  const SendPlan& plan,
                  std::span<std::int32_t> marks,
                  std::span<std::int32_t> counts) noexcept {
  const std::size_t num_ranks = idx(shape.num_ranks);
  if (shape.has_gateways) {
    count_owners(shape, plan, counts.data());
  } else {
    std::copy_n(plan.num_rows_to.begin(), num_ranks, counts.begin());
  }
  std::int32_t* per_seat = counts.data() + num_ranks;
  std::fill_n(per_seat, shape.num_seats, 0);
  if (shape.config.layout == Layout::rank_major) return;
  std::fill(marks.begin(), marks.end(), -1);
  const std::size_t topk = idx(shape.config.num_topk);
  for (std::int32_t token = 0; token < plan.num_tokens; ++token) {
    for (std::size_t k = 0; k < topk; ++k) {
      const std::int32_t seat = plan.ids[idx(token) * topk + k];
      if (seat < 0) continue;
      per_seat[seat] += marks[idx(seat)] != token ? 1 : 0;
      marks[idx(seat)] = token;
    }
  }
}

namespace {

/// First row of this source's part of every seat's group (index in the group), and each group's first row in `offset`.
void place_groups(const Shape& shape,
                  int rank,
                  std::span<const std::int32_t* const> counts,
                  std::int64_t* next,
                  std::int64_t* offset) noexcept {
  const ExpertPlacement& placement = shape.placement;
  for (int dst = 0; dst < shape.num_ranks; ++dst) {
    std::int64_t group = 0;
    for (int local = 0; local < placement.num_local(dst); ++local) {
      const std::size_t seat = idx(placement.first_seat(dst) + local);
      std::int64_t before = 0;
      std::int64_t total = 0;
      for (int src = 0; src < shape.num_ranks; ++src) {
        const std::int64_t count = guarded_count(shape, counts[idx(src)][idx(shape.num_ranks) + seat]);
        before += src < rank ? count : 0;
        total += count;
      }
      next[seat] = before;
      offset[seat] = group;
      group = base::align_up(group + total, std::int64_t{shape.config.expert_alignment});
    }
  }
}

void plan_region_by_rank(const Shape& shape,
                         const SendPlan& plan,
                         int rank,
                         std::span<const std::int32_t* const> counts,
                         std::span<const std::int64_t> granted,
                         RegionPlan& region) noexcept {
  for (int dst = 0; dst < shape.num_ranks; ++dst) {
    if (shape.is_relayed(rank, dst)) continue;
    std::int64_t first = 0;
    for (int src = 0; src < rank; ++src) first += guarded_count(shape, counts[idx(src)][idx(dst)]);
    std::int32_t* positions = region.positions.data() + idx(dst) * idx(shape.config.max_tokens_per_rank);
    for (std::int32_t i = 0; i < plan.num_rows_to[idx(dst)]; ++i) {
      positions[i] = first + i < granted[idx(dst)] ? static_cast<std::int32_t>(first + i) : -1;
    }
  }
}

}  // namespace

void plan_region(const Shape& shape,
                 const SendPlan& plan,
                 int rank,
                 std::span<const std::int32_t* const> counts,
                 std::span<const std::int64_t> granted,
                 RegionPlan& region) noexcept {
  if (shape.config.layout == Layout::rank_major) {
    plan_region_by_rank(shape, plan, rank, counts, granted, region);
    return;
  }
  const std::size_t topk = idx(shape.config.num_topk);
  std::int64_t* next = region.next.data();
  std::int64_t* offset = next + idx(shape.num_seats);
  place_groups(shape, rank, counts, next, offset);
  // end[d]: behind the last row for d. A token's first choice there begins a row; its first kept choice fills it.
  std::array<std::int32_t*, kMaxRanks> end;
  std::uint64_t direct = 0;  // ranks that are their own hop
  for (std::size_t r = 0; r < idx(shape.num_ranks); ++r) {
    end[r] = region.positions.data() + r * idx(shape.config.max_tokens_per_rank);
    direct |= std::uint64_t{shape.is_relayed(rank, static_cast<int>(r)) ? 0U : 1U} << r;
  }
  std::fill(region.marks.begin(), region.marks.end(), -1);
  const std::int32_t* ids = plan.ids.data();
  for (std::int32_t token = 0; token < plan.num_tokens; ++token, ids += topk) {
    std::uint64_t seen = 0;
    for (std::size_t k = 0; k < topk; ++k) {
      const std::uint64_t bit = shape.hop_bit.data()[ids[k] + 1] & direct;
      if (bit == 0) continue;
      const std::size_t seat = idx(ids[k]);
      if (region.marks[seat] == token) continue;
      region.marks[seat] = token;
      const std::size_t dst = shape.owner[seat + 1];
      const std::int64_t position =
          result_index(shape, granted[dst], shape.placement.seat_of(ids[k]), offset[seat], next[seat]++);
      // Arithmetic instead of branches: whether a rank is new is anybody's guess.
      const bool is_new = (bit & ~seen) != 0;
      seen |= bit;
      end[dst] += is_new ? 1 : 0;
      const std::int32_t before = end[dst][-1] | -static_cast<std::int32_t>(is_new);
      end[dst][-1] = before < 0 ? static_cast<std::int32_t>(position) : before;
    }
  }
}

}  // namespace moebus::model
