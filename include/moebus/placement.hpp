// Placement: which expert sits where, replicas included, and which replica a token takes.
// Room: public vocabulary · host.

#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace moebus {

/// Says which expert sits in which seat of which rank. Every expert has at least one seat, at most one per rank; a seat
/// may be empty. The same on all ranks.
struct Placement {
  std::vector<std::int32_t> experts;  ///< [num_ranks * seats_per_rank], rank by rank: expert in each seat, -1 = empty
};

/// One choice of one token whose expert has several seats.
struct ReplicaChoice {
  int src_rank = 0;
  std::int64_t token = 0;  ///< of the source rank
  int choice = 0;          ///< position in the token's top-k
  int expert = 0;
  std::span<const std::int32_t> ranks;  ///< rank of each replica, ascending; two or more
};

/// Picks a replica: an index into ReplicaChoice::ranks. Must give the same answer for the same token and expert
/// (whatever the choice), or a token that names an expert twice becomes two rows. Each rank may use its own rule.
/// Answers outside the range are taken modulo the number of replicas; it must not throw.
using ReplicaRule = std::function<int(const ReplicaChoice&)>;

}  // namespace moebus
