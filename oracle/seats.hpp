// Seats: where experts sit, and which of an expert's seats each choice of a token takes.
// Room: oracle · host.

#pragma once

#include <cstdint>
#include <vector>

#include "moebus/placement.hpp"
#include "oracle/inputs.hpp"

namespace moebus::oracle {

/// The seats of all ranks, numbered through: rank 0's first. Without config.seats_per_rank seat e holds expert e.
struct Seats {
  std::vector<int> first_on;                ///< [ranks + 1] rank r has seats [first_on[r], first_on[r + 1])
  std::vector<int> rank_of;                 ///< [seats]
  std::vector<std::vector<int>> of_expert;  ///< [experts] seats of each, ascending; two or more = replicas

  [[nodiscard]] int num_on(int rank) const;
};

/// Returns the seats of `num_ranks` ranks. `placement` counts with config.seats_per_rank only; empty = experts in
/// order, the remaining seats empty.
///
/// Errors: Error{invalid_argument} if the placement has the wrong size, an id that is no expert, an expert without a
/// seat, or one twice on a rank.
[[nodiscard]] Seats seats_of(const ExchangeConfig& config, int num_ranks, const Placement& placement = {});

/// Every choice of every token as a seat.
struct SeatChoices {
  Seats seats;
  std::vector<std::vector<int>> seat;  ///< [ranks][T * K], -1 = no expert
};

/// Returns the seats that the tokens take. Among several seats of an expert `rule` decides; without one it is a replica
/// on the token's own rank, else replica (rank + token) modulo their number, replicas ascending by rank.
[[nodiscard]] SeatChoices choose_seats(const ExchangeConfig& config,
                                       const std::vector<RankInput>& inputs,
                                       const Placement& placement = {},
                                       const ReplicaRule& rule = {});

}  // namespace moebus::oracle
