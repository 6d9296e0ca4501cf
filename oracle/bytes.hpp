// Bytes: the fewest rows and bytes that must cross between ranks, from the routing alone.
// Room: oracle · host.

#pragma once

#include <cstdint>
#include <vector>

#include "oracle/dispatch.hpp"

namespace moebus::oracle {

/// What each rank sends to each other in one call. A row that a gateway forwards is counted by each rank that sends it.
struct Traffic {
  int num_ranks = 0;
  std::vector<std::uint64_t> rows;  ///< [src, dst]; src = dst: rows of own tokens that stay
  std::uint64_t row_bytes = 0;      ///< without padding, tables and signals

  [[nodiscard]] std::uint64_t rows_of(int src, int dst) const;

  /// Returns bytes over the link; 0 for src = dst.
  [[nodiscard]] std::uint64_t bytes_of(int src, int dst) const;

  /// Adds another call of the same exchange.
  Traffic& operator+=(const Traffic& other);
};

/// True if rows between nodes stop at gateways: several nodes, two levels, and config.inter_node asks for it.
[[nodiscard]] bool has_gateways(const DispatchExpectation& dispatched);

/// Returns what dispatch must send: one row per (token, rank). With gateways, to ranks of another node: one per (token,
/// node) to the gateway, and from there one per (token, rank) to the others. Capacities are not looked at: dropped rows
/// count.
[[nodiscard]] Traffic least_dispatch_traffic(const std::vector<DispatchExpectation>& dispatched);

/// Returns what combine must send: the same rows backwards; per_expert: one per (token, expert), straight from owner to
/// home. `has_lane`: weights ride along. Dropped rows count here too.
[[nodiscard]] Traffic least_combine_traffic(const std::vector<DispatchExpectation>& dispatched, bool has_lane);

}  // namespace moebus::oracle
