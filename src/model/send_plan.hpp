// SendPlan: from the gate's choice of experts to what leaves for whom, at the tokens' home.
// Room: model · host+device arithmetic; plan building on the host.
// Source: [ours] one row per (token, rank); rows at a destination in (source rank, source token) order.

#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "base/carver.hpp"
#include "model/layout.hpp"
#include "model/row_move.hpp"
#include "model/shape.hpp"
#include "moebus/tensor.hpp"

namespace moebus::model {

/// A choice that is no expert.
struct BadId {
  std::int64_t token;
  int choice;
  std::int64_t value;
};

/// Places of one destination's list of tokens. One more than tokens: plan_send writes behind a full list.
[[nodiscard]] inline std::size_t tokens_to_stride(const Shape& shape) noexcept {
  return base::idx(shape.config.max_tokens_per_rank) + 1;
}

/// Storage and content; every array is sized for max_tokens_per_rank once and filled anew by each dispatch.
struct SendPlan {
  std::int32_t num_tokens = 0;
  bool has_weights = false;
  std::array<std::int32_t, kMaxRanks> num_rows_to{};  // [ranks] by hop; see Shape::hop

  std::span<std::int32_t> ids;        // [tokens, K] seat or -1
  std::span<float> weights;           // [tokens, K]
  std::span<std::uint8_t> hops;       // [tokens, min(ranks, K)] in order of their last chosen expert's position
  std::span<std::uint8_t> num_hops;   // [tokens]
  std::span<std::int32_t> tokens_to;  // [ranks, tokens_to_stride] tokens for each hop, ascending

  void carve(base::Carver& carver, const Shape& shape) noexcept;

  [[nodiscard]] std::span<const std::int32_t> tokens_for(const Shape& shape, int dst_rank) const noexcept {
    return tokens_to.subspan(base::idx(dst_rank) * tokens_to_stride(shape),
                             base::idx(num_rows_to[base::idx(dst_rank)]));
  }
};

/// Number of hops a token can have at most: the width of SendPlan::hops.
[[nodiscard]] int max_hops_per_token(const Shape& shape) noexcept;

/// Copies ids (i32 or i64) and weights into the plan, experts turned into seats by the placement and `rule` (empty: the
/// default rule); returns the first id that is neither an expert nor -1, or nothing. A rule that answers outside its
/// range is asked modulo the number of replicas.
[[nodiscard]] std::optional<BadId> take_routing(const Shape& shape,
                                                const ConstTensorView& topk_idx,
                                                const ConstTensorView& topk_weights,
                                                std::int32_t num_tokens,
                                                SendPlan& plan,
                                                const ReplicaRule& rule = {});

/// Derives destinations and orders from the ids.
void plan_send(const Shape& shape, SendPlan& plan) noexcept;

/// Writes the rows of the routing table that concern each hop: tables[h] is the place at hop h for this source. The
/// table of a gateway concerns its whole node.
void write_tables(const Shape& shape,
                  const TableRowFormat& format,
                  const SendPlan& plan,
                  std::span<std::byte* const> tables) noexcept;

/// Writes this source's counts: rows per owner [ranks], whatever the hop, then rows per seat [seats] (a repeated seat
/// counts once). `marks` is scratch [num_seats].
void write_counts(const Shape& shape,
                  const SendPlan& plan,
                  std::span<std::int32_t> marks,
                  std::span<std::int32_t> counts) noexcept;

/// Where each row of a source goes in the destinations' regions: the first kept position of (token, destination), -1 =
/// dropped. positions[d * max tokens + i] belongs to plan.tokens_for(d)[i]. Defined for destinations that are their own
/// hop.
struct RegionPlan {
  std::span<std::int32_t> positions;  // [ranks, max tokens]
  std::span<std::int64_t> next;       // scratch [2, num_seats]: next index in each group, first row of each group
  std::span<std::int32_t> marks;      // scratch [num_seats]: last token that chose the seat

  void carve(base::Carver& carver, const Shape& shape) noexcept;
};

/// counts[s] are the counts of source s (write_counts); granted[d] the rows that d granted.
void plan_region(const Shape& shape,
                 const SendPlan& plan,
                 int rank,
                 std::span<const std::int32_t* const> counts,
                 std::span<const std::int64_t> granted,
                 RegionPlan& region) noexcept;

/// Returns the index in a result (any layout) of row `index` of the group of `seat` whose first row is `offset`.
[[nodiscard]] constexpr std::int64_t result_index(
    const Shape& shape, std::int64_t capacity_rows, int seat, std::int64_t offset, std::int64_t index) noexcept {
  if (shape.config.layout == Layout::expert_padded) {
    return index < capacity_rows ? seat * capacity_rows + index : -1;
  }
  return offset + index < capacity_rows ? offset + index : -1;
}

}  // namespace moebus::model
