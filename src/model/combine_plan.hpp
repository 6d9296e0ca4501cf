// CombinePlan: which rows add up to which, in which order; and the tail of a combined row (lane, kept choices).
// Room: model · host+device arithmetic.
// Source: [ours] design 4.6: owners add in top-k order, home adds ranks by the position of their last chosen expert.

#pragma once

#include <cstdint>
#include <span>

#include "model/receive_plan.hpp"
#include "model/send_plan.hpp"

namespace moebus::model {

/// Rows somewhere in memory: row r at data + r * stride_bytes.
struct RowsView {
  const std::byte* data = nullptr;
  std::int64_t stride_bytes = 0;

  [[nodiscard]] const std::byte* row(std::int64_t r) const noexcept { return data + r * stride_bytes; }
};

/// The caller's lane, [rows, K] f32 by result row; empty = none.
struct LaneView {
  const std::byte* data = nullptr;
  std::int64_t row_stride_bytes = 0;

  [[nodiscard]] float at(std::int64_t row, std::size_t choice) const noexcept;
};

/// Slots for the tokens of one home, there or at a gateway: the slot of (slot index, token) is at
/// data + (slot * tokens_per_slot + token - first_token) * format.stride_bytes.
struct HomeSlots {
  std::byte* data = nullptr;
  std::int64_t tokens_per_slot = 0;
  std::int64_t first_token = 0;

  [[nodiscard]] std::int64_t index(std::int64_t slot, std::int64_t token) const noexcept {
    return slot * tokens_per_slot + token - first_token;
  }
};

/// Terms of sums, in the order in which they are added: terms [first[o], first[o + 1]) belong to output o.
struct SumTerms {
  std::span<std::int32_t> first;     // [outputs + 1]
  std::span<const std::byte*> term;  // [outputs * most terms]
  std::span<float> weight;           // [outputs * most terms]
  std::span<std::byte*> output_row;  // [outputs]
};

/// Returns the wire rows of `src` whose token is in [first_token, last_token).
[[nodiscard]] RowRange rows_of_tokens(const ReceivePlan& plan,
                                      int src,
                                      std::int64_t first_token,
                                      std::int64_t last_token) noexcept;

/// Owner: the rows that wire rows [first, last) send, numbered 0, 1, ... : one per wire row, or with per_expert one per
/// distinct choice here, in top-k order. Writes each one's slot, and whether there is a payload (1) or a tail only (0:
/// dropped for lack of capacity). Returns how many; at most (last - first) * (per_expert ? K : 1).
[[nodiscard]] std::size_t list_owner_slots(const Shape& shape,
                                           const ReceivePlan& plan,
                                           RowRange rows,
                                           const HomeSlots& slots,
                                           std::span<std::int32_t> slot,
                                           std::span<std::uint8_t> has_payload) noexcept;

/// Owner, expert layouts, per_rank: what to add for wire rows [first, last). Row i of the numbering above goes to
/// data + at[i] * stride (`at` empty: i). `home_weights` [home tokens, K] are the weights that came with the combine;
/// null = those of the dispatch, or none.
void list_owner_sums(const Shape& shape,
                     const ReceivePlan& plan,
                     RowRange rows,
                     const RowsView& results,
                     const float* home_weights,
                     std::byte* data,
                     std::span<const std::int32_t> at,
                     SumTerms& terms) noexcept;

/// Owner, rows that travel as they are (rank_major, or per_expert): moves from result rows to at[i] (`at` empty: i);
/// returns how many.
[[nodiscard]] std::size_t list_owner_moves(const Shape& shape,
                                           const ReceivePlan& plan,
                                           RowRange rows,
                                           std::span<const std::int32_t> at,
                                           std::span<RowMove> moves) noexcept;

/// Owner: writes lane and kept-choices mask behind the rows, where the format has them.
void write_tails(const Shape& shape,
                 const ReceivePlan& plan,
                 RowRange rows,
                 const LaneView& lane,
                 std::byte* data,
                 std::span<const std::int32_t> at) noexcept;

/// Sums over the ranks of a node that home adds itself (levels 2): its own node's, and every node's without gateways.
/// `rows` has partial_rows_per_token() rows for each token of a block.
struct PartialSums {
  std::byte* rows = nullptr;
  std::int64_t stride_bytes = 0;
};

/// Returns the most partial sums a token has at home: 0 with one level or per_expert rows.
[[nodiscard]] int partial_rows_per_token(const Shape& shape) noexcept;

/// Home, levels 2: what to add into partial sums for its tokens [first_token, last_token); returns the number of
/// outputs. Nodes of which no row exists have none. Arguments as list_home_sums.
[[nodiscard]] std::int64_t list_partial_sums(const Shape& shape,
                                             const SendPlan& send,
                                             const ReceivePlan& receive,
                                             std::int64_t first_token,
                                             std::int64_t last_token,
                                             const RowsView& results,
                                             const HomeSlots& slots,
                                             const PartialSums& partial,
                                             SumTerms& terms) noexcept;

/// Home: what to add for its tokens [first_token, last_token). Own rank_major rows, and own per_expert rows, are taken
/// from `results` where they lie; all others from the slots. With levels 2 (and per_rank rows) nodes are added by the
/// position of their last chosen expert: from `partial`, as list_partial_sums left them, or from a gateway's slot.
/// `weights` [tokens, K] are used by per_expert sums only; null = unweighted.
void list_home_sums(const Shape& shape,
                    const SendPlan& send,
                    const ReceivePlan& receive,
                    std::int64_t first_token,
                    std::int64_t last_token,
                    const RowsView& results,
                    const float* weights,
                    const HomeSlots& slots,
                    const PartialSums& partial,
                    SumTerms& terms) noexcept;

/// Home: collects the lane [tokens, K] and the missing choices [tokens] of its tokens; returns how many tokens miss
/// something. `lane_out` and `missing` may be null.
[[nodiscard]] std::int64_t read_tails(const Shape& shape,
                                      const SendPlan& send,
                                      const ReceivePlan& receive,
                                      std::int64_t first_token,
                                      std::int64_t last_token,
                                      const LaneView& lane,
                                      const HomeSlots& slots,
                                      float* lane_out,
                                      std::uint64_t* missing) noexcept;

}  // namespace moebus::model
