// RelayPlan: what a gateway forwards to its node, and what it adds up on the way back.
// Room: model · host+device arithmetic; plan building on the host.
// Source: [ours] design 4.7: one row per (token, node), forwarded by the gateway; partial sums return through it.

#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/carver.hpp"
#include "model/combine_plan.hpp"
#include "model/receive_plan.hpp"
#include "model/row_move.hpp"
#include "model/shape.hpp"

namespace moebus::model {

/// Storage and content, filled anew by each dispatch; empty on ranks that serve nobody. A *relay row* is one
/// (source served, token) that some rank of this node needs, in table order.
struct RelayPlan {
  std::vector<int> served;                              // sources, ascending; fixed with the storage
  std::array<std::int32_t, kMaxRanks + 1> first_row{};  // [served + 1] relay rows by index in `served`
  std::span<std::int32_t> token;                        // [relay rows]
  std::span<std::int32_t> home_slot;  // [relay rows] place of this gateway among the token's hops, at home
  std::span<std::uint64_t> rank_set;  // [relay rows] ranks of this node that need the row, as bits

  void carve(base::Carver& carver, const Shape& shape);

  [[nodiscard]] int num_served() const noexcept { return static_cast<int>(served.size()); }
};

/// tables[s] of sources served; others are not read.
void plan_relay(const Shape& shape,
                const TableRowFormat& format,
                std::span<const TableView> tables,
                RelayPlan& plan) noexcept;

/// Writes the moves that bring relay rows [first, last) of served source `index` to `dst`: MoveSource::token: slot of
/// the token to the same slot; round: place in the round (relay row minus `round_first`, counted from the source's
/// first row) to the same place. Returns how many.
[[nodiscard]] std::size_t list_forwards(const RelayPlan& plan,
                                        int index,
                                        std::int32_t first,
                                        std::int32_t last,
                                        int dst,
                                        MoveSource source,
                                        std::int64_t round_first,
                                        std::span<RowMove> moves) noexcept;

/// Returns how many relay rows `neighbour` needs, of all sources.
[[nodiscard]] std::uint64_t count_relay_rows(const RelayPlan& plan, int neighbour) noexcept;

/// Returns the relay rows of served source `index` whose token is in [first_token, last_token).
[[nodiscard]] RowRange relay_rows_of_tokens(const RelayPlan& plan,
                                            int index,
                                            std::int64_t first_token,
                                            std::int64_t last_token) noexcept;

/// Writes, for relay rows [first, last), the index of each one's slot at its home.
void list_relay_slots(const RelayPlan& plan,
                      RowRange rows,
                      const HomeSlots& home,
                      std::span<std::int32_t> slot) noexcept;

/// Partial sums: what to add for relay rows [first, last), in the order of the ranks' last chosen experts (the order of
/// the relay slots). Output i goes to data + at[i] * stride (`at` empty: i). Rows whose mask is 0 are not added.
void list_relay_sums(const Shape& shape,
                     const RelayPlan& plan,
                     RowRange rows,
                     const HomeSlots& relay_slots,
                     std::byte* data,
                     std::span<const std::int32_t> at,
                     SumTerms& terms) noexcept;

/// Merges lanes and masks of the ranks' rows into the partial sums' tails, at the same places.
void write_relay_tails(const Shape& shape,
                       const RelayPlan& plan,
                       RowRange rows,
                       bool has_lane,
                       const HomeSlots& relay_slots,
                       std::byte* data,
                       std::span<const std::int32_t> at) noexcept;

}  // namespace moebus::model
