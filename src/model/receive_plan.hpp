// ReceivePlan: from the sources' routing tables to where each received row goes, at the experts' owner.
// Room: model · host+device arithmetic; plan building on the host.
// Source: [ours] order (source rank, source token), expert layouts (local expert, source rank, source token); never
// arrival.

#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/carver.hpp"
#include "model/layout.hpp"
#include "model/row_move.hpp"
#include "model/shape.hpp"

namespace moebus::model {

/// One source's table as it arrived. That of a source whose rows a gateway forwards (Shape::is_relayed) concerns the
/// whole node: rows without a seat here are left out of the plan.
struct TableView {
  const std::byte* rows = nullptr;
  std::int32_t num_rows = 0;
  bool has_weights = false;
};

/// Storage and content, filled anew by each dispatch. A *wire row* is one (source, token) that has an expert here; a
/// *result row* is a row of the result (a wire row has several in expert layouts).
struct ReceivePlan {
  std::array<std::int32_t, kMaxRanks + 1> first_row{};   // [ranks + 1] wire rows by source
  std::array<std::int32_t, kMaxRanks> num_tokens_of{};   // [ranks] tokens of each source
  std::array<std::int32_t, kMaxRanks> num_table_rows{};  // [ranks] rows of each source's table, those left out included
  std::int64_t num_rows = 0;                             ///< rows of the result, see DispatchResult::num_rows
  std::int64_t num_overflowed = 0;                       ///< result rows dropped for lack of capacity
  std::int64_t capacity_rows = 0;                        ///< what was granted for this call
  bool has_weights = false;                              ///< every source that sent rows sent weights

  std::span<std::int32_t> token;      // [wire rows] source token
  std::span<std::int32_t> home_slot;  // [wire rows] where the row goes in combine: this rank's place among the token's
                                      // hops; for relayed sources with partial sums, its place among the token's ranks
                                      // on this node, by last chosen expert: the slot at the gateway
  std::span<std::int32_t> table_row;  // [wire rows] index in the source's table: its place in rounds
  std::span<std::int32_t>
      position;                    // [wire rows, K] result row of each choice, -1 elsewhere or dropped (expert layouts)
  std::span<std::int32_t> choice;  // [wire rows, K] local expert of each choice, -1 elsewhere
  std::span<float> weight;         // [wire rows, K] +0 where choice is -1
  std::span<std::int32_t> own_row;           // [max tokens] wire row of this rank's own token, -1 if it stays elsewhere
  std::span<std::int32_t> result_src_rank;   // [result rows]
  std::span<std::int32_t> result_src_token;  // [result rows]
  std::span<float> result_weight;            // [result rows] expert layouts
  std::span<std::int32_t> counts;            // [local experts] kept
  std::span<std::int32_t> wanted;            // [local experts]
  std::span<std::int64_t> offsets;           // [local experts + 1]
  std::span<std::int32_t> rank_counts;       // [ranks]
  std::span<std::int32_t> marks;             // scratch [local experts]
  std::span<std::int32_t> next;              // scratch [local experts]

  void carve(base::Carver& carver, const Shape& shape) noexcept;

  [[nodiscard]] std::int32_t num_wire_rows(const Shape& shape) const noexcept {
    return first_row[base::idx(shape.num_ranks)];
  }
};

/// Derives everything from the tables of all sources. Rows at or past `capacity_rows` are dropped.
void plan_receive(const Shape& shape,
                  const TableRowFormat& format,
                  int rank,
                  std::span<const TableView> tables,
                  std::int64_t capacity_rows,
                  ReceivePlan& plan) noexcept;

/// Where moves take a row from.
enum class MoveSource : std::uint8_t {
  token,  ///< index = source token (latency slots, or the own rows' input tensor)
  round,  ///< index = table row minus `round_first` (rounds)
};

/// Wire rows [first, last).
struct RowRange {
  std::int32_t first;
  std::int32_t last;
};

/// Returns the wire rows of `src` whose table row is in [first, last).
[[nodiscard]] RowRange rows_of_round(const ReceivePlan& plan, int src, std::int64_t first, std::int64_t last) noexcept;

/// Writes the moves of wire rows [first, last) to all their kept result rows; returns how many. `moves` is large
/// enough: (last - first) * min(K, local experts).
[[nodiscard]] std::size_t list_moves(const Shape& shape,
                                     const ReceivePlan& plan,
                                     std::int32_t first,
                                     std::int32_t last,
                                     MoveSource source,
                                     std::span<RowMove> moves,
                                     std::int64_t round_first = 0) noexcept;

/// Writes the moves from each wire row's first kept result row to its others (rows that came straight to their final
/// place).
[[nodiscard]] std::size_t list_fan_out(const Shape& shape,
                                       const ReceivePlan& plan,
                                       std::int32_t first,
                                       std::int32_t last,
                                       std::span<RowMove> moves) noexcept;

/// Returns the most result rows one wire row can have.
[[nodiscard]] int max_copies(const Shape& shape) noexcept;

}  // namespace moebus::model
