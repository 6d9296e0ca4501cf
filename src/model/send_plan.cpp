#include "model/send_plan.hpp"

#include <algorithm>
#include <cstring>

namespace moebus::model {

using base::idx;

int max_ranks_per_token(const Shape& shape) noexcept { return std::min(shape.num_ranks, shape.config.num_topk); }

void SendPlan::carve(base::Carver& carver, const Shape& shape) noexcept {
  const std::size_t tokens = idx(shape.config.max_tokens_per_rank);
  const std::size_t topk = idx(shape.config.num_topk);
  ids = carver.take<std::int32_t>(tokens * topk);
  weights = carver.take<float>(tokens * topk);
  ranks = carver.take<std::uint8_t>(tokens * idx(max_ranks_per_token(shape)));
  num_ranks = carver.take<std::uint8_t>(tokens);
  tokens_to = carver.take<std::int32_t>(idx(shape.num_ranks) * tokens);
}

void RegionPlan::carve(base::Carver& carver, const Shape& shape) noexcept {
  positions = carver.take<std::int32_t>(idx(shape.num_ranks) * idx(shape.config.max_tokens_per_rank));
  next = carver.take<std::int64_t>(2 * idx(shape.config.num_experts));
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

}  // namespace

std::optional<BadId> take_routing(const Shape& shape,
                                  const ConstTensorView& topk_idx,
                                  const ConstTensorView& topk_weights,
                                  std::int32_t num_tokens,
                                  SendPlan& plan) noexcept {
  const std::int64_t num_ids = std::int64_t{num_tokens} * shape.config.num_topk;
  plan.num_tokens = num_tokens;
  plan.has_weights = topk_weights.is_given();
  if (plan.has_weights && num_ids > 0) std::memcpy(plan.weights.data(), topk_weights.data, idx(num_ids) * sizeof(float));
  // Tensors are bytes with a dtype beside them; alignment to the element was checked with the arguments.
  if (topk_idx.dtype == DType::i64) {
    return copy_ids(shape, reinterpret_cast<const std::int64_t*>(topk_idx.data), num_ids, plan.ids.data());
  }
  return copy_ids(shape, reinterpret_cast<const std::int32_t*>(topk_idx.data), num_ids, plan.ids.data());
}

void plan_send(const Shape& shape, SendPlan& plan) noexcept {
  const int topk = shape.config.num_topk;
  const std::size_t width = idx(max_ranks_per_token(shape));
  const std::size_t tokens = idx(shape.config.max_tokens_per_rank);
  const std::uint64_t* rank_bit = shape.rank_bit.data() + 1;
  const std::uint8_t* owner = shape.owner.data() + 1;
  std::array<std::int32_t*, kMaxRanks> end;
  for (std::size_t r = 0; r < idx(shape.num_ranks); ++r) end[r] = plan.tokens_to.data() + r * tokens;

  std::array<std::uint8_t, kMaxTopk> backwards;
  for (std::int32_t token = 0; token < plan.num_tokens; ++token) {
    const std::int32_t* ids = plan.ids.data() + idx(token) * idx(topk);
    // Seen from the last choice, a rank's first appearance is its last chosen expert. No branch: half of them would be mispredicted.
    std::uint64_t seen = 0;
    std::size_t num = 0;
    for (int k = topk - 1; k >= 0; --k) {
      const std::uint64_t bit = rank_bit[ids[k]];
      backwards[num] = owner[ids[k]];
      num += (bit & ~seen) != 0 ? 1 : 0;
      seen |= bit;
    }
    std::uint8_t* ranks = plan.ranks.data() + idx(token) * width;
    for (std::size_t j = 0; j < num; ++j) {
      const std::uint8_t rank = backwards[num - 1 - j];
      ranks[j] = rank;
      *end[rank]++ = token;
    }
    plan.num_ranks[idx(token)] = static_cast<std::uint8_t>(num);
  }
  for (std::size_t r = 0; r < idx(shape.num_ranks); ++r) {
    plan.num_rows_to[r] = static_cast<std::int32_t>(end[r] - (plan.tokens_to.data() + r * tokens));
  }
}

void write_tables(const Shape& shape,
                  const TableRowFormat& format,
                  const SendPlan& plan,
                  std::span<std::byte* const> tables) noexcept {
  const std::size_t topk = idx(format.num_topk);
  const std::size_t width = idx(max_ranks_per_token(shape));
  std::array<std::byte*, kMaxRanks> end{};
  std::copy(tables.begin(), tables.end(), end.begin());
  for (std::int32_t token = 0; token < plan.num_tokens; ++token) {
    const std::uint8_t* ranks = plan.ranks.data() + idx(token) * width;
    for (std::int32_t slot = 0; slot < plan.num_ranks[idx(token)]; ++slot) {
      std::byte* row = end[ranks[slot]];
      const std::int32_t head[2] = {token, slot};
      std::memcpy(row, head, sizeof(head));
      std::memcpy(row + format.ids_offset_bytes, plan.ids.data() + idx(token) * topk, topk * sizeof(std::int32_t));
      if (plan.has_weights) {
        std::memcpy(row + format.weights_offset_bytes, plan.weights.data() + idx(token) * topk, topk * sizeof(float));
      }
      end[ranks[slot]] = row + format.stride_bytes;
    }
  }
}

void write_counts(const Shape& shape,
                  const SendPlan& plan,
                  std::span<std::int32_t> marks,
                  std::span<std::int32_t> counts) noexcept {
  const std::size_t num_ranks = idx(shape.num_ranks);
  std::copy_n(plan.num_rows_to.begin(), num_ranks, counts.begin());
  std::int32_t* per_expert = counts.data() + num_ranks;
  std::fill_n(per_expert, shape.config.num_experts, 0);
  if (shape.config.layout == Layout::rank_major) return;
  std::fill(marks.begin(), marks.end(), -1);
  const std::size_t topk = idx(shape.config.num_topk);
  for (std::int32_t token = 0; token < plan.num_tokens; ++token) {
    for (std::size_t k = 0; k < topk; ++k) {
      const std::int32_t id = plan.ids[idx(token) * topk + k];
      if (id < 0) continue;
      per_expert[id] += marks[idx(id)] != token ? 1 : 0;
      marks[idx(id)] = token;
    }
  }
}

namespace {

/// First row of this source's part of every expert's group (index in the group), and each group's first row in `offset`.
void place_groups(const Shape& shape,
                  int rank,
                  std::span<const std::int32_t* const> counts,
                  std::int64_t* next,
                  std::int64_t* offset) noexcept {
  const ExpertPlacement& placement = shape.placement;
  for (int dst = 0; dst < shape.num_ranks; ++dst) {
    std::int64_t group = 0;
    for (int seat = 0; seat < placement.num_local(dst); ++seat) {
      const std::size_t expert = idx(placement.first_expert(dst) + seat);
      std::int64_t before = 0;
      std::int64_t total = 0;
      for (int src = 0; src < shape.num_ranks; ++src) {
        const std::int32_t count = counts[idx(src)][idx(shape.num_ranks) + expert];
        before += src < rank ? count : 0;
        total += count;
      }
      next[expert] = before;
      offset[expert] = group;
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
    std::int64_t first = 0;
    for (int src = 0; src < rank; ++src) first += counts[idx(src)][idx(dst)];
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
  const std::size_t experts = idx(shape.config.num_experts);
  std::int64_t* next = region.next.data();
  std::int64_t* offset = next + experts;
  place_groups(shape, rank, counts, next, offset);
  std::array<std::int32_t, kMaxRanks> num_done{};
  std::array<std::int32_t, kMaxRanks> first_kept;
  for (std::int32_t token = 0; token < plan.num_tokens; ++token) {
    const std::uint8_t* ranks = plan.ranks.data() + idx(token) * idx(max_ranks_per_token(shape));
    const int num_ranks = plan.num_ranks[idx(token)];
    for (int j = 0; j < num_ranks; ++j) first_kept[ranks[j]] = -1;
    const std::int32_t* ids = plan.ids.data() + idx(token) * topk;
    for (std::size_t k = 0; k < topk; ++k) {
      const std::int32_t id = ids[k];
      if (id < 0 || std::find(ids, ids + k, id) != ids + k) continue;
      const std::size_t dst = shape.owner[idx(id) + 1];
      const std::int64_t position = result_index(
          shape, granted[dst], shape.placement.seat_of(id), offset[idx(id)], next[idx(id)]++);
      if (first_kept[dst] < 0) first_kept[dst] = static_cast<std::int32_t>(position);
    }
    for (int j = 0; j < num_ranks; ++j) {
      const std::size_t dst = ranks[j];
      region.positions[dst * idx(shape.config.max_tokens_per_rank) + idx(num_done[dst]++)] = first_kept[dst];
    }
  }
}

}  // namespace moebus::model
