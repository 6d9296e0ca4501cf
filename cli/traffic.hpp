// Traffic: what the calls of a bench must send at least, by input set, and what crosses between nodes of it.
// Room: cli · host.

#pragma once

#include <array>
#include <vector>

#include "cases/exchange_case.hpp"
#include "cli/feed.hpp"
#include "moebus/stats.hpp"
#include "oracle/dispatch.hpp"

namespace moebus::cli {

/// Returns the least traffic of a call on each input set. `first`: what the oracle says of set 0.
std::vector<cases::LeastTraffic> least_traffic(const BenchSetup& setup,
                                               const std::vector<oracle::DispatchExpectation>& first);

/// Returns the sum over calls 0..calls-1, which take the sets in turn.
cases::LeastTraffic traffic_of_calls(const std::vector<cases::LeastTraffic>& sets, int calls);

/// Bytes over links that ranks sent, and the least that they had to.
struct LinkBytes {
  double sent = 0;
  double least = 0;
};

/// One rank's share of a phase's bytes, and what of it crosses between nodes.
struct PhaseLinks {
  LinkBytes all;
  LinkBytes between_nodes;
  LinkBytes inside_nodes;
};

/// Adds phases up.
PhaseLinks operator+(const PhaseLinks& a, const PhaseLinks& b) noexcept;

/// Splits what `rank` sent to each peer by nodes.
PhaseLinks links_of(const BenchSetup& setup,
                    int rank,
                    const std::array<PeerStats, kMaxRanks>& peers,
                    const oracle::Traffic& least);

}  // namespace moebus::cli
