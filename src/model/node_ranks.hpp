// Node ranks: which ranks of one node a table row names, and in which order they are added there. What a gateway keeps
// for its node and what each rank behind it derives from the same row must agree, so both ask here.
// Room: model · host+device arithmetic.

#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "model/shape.hpp"

namespace moebus::model {

/// Returns the ranks of the node of `rank`, as bits.
[[nodiscard]] inline std::uint64_t node_bits(const Topology& topology, int rank) noexcept {
  std::uint64_t bits = 0;
  for (const int neighbour : topology.ranks_of(topology.node_of(rank))) bits |= std::uint64_t{1} << neighbour;
  return bits;
}

/// Returns the bit of a seat's owner; none for -1 or what is no seat (seats in tables come from other ranks).
[[nodiscard]] inline std::uint64_t owner_bit(const Shape& shape, std::int32_t seat) noexcept {
  const bool is_seat = static_cast<std::uint32_t>(seat) < static_cast<std::uint32_t>(shape.num_seats);
  return is_seat ? std::uint64_t{1} << shape.owner[static_cast<std::size_t>(seat) + 1] : 0;
}

/// Returns the place of `rank` among the ranks in `node` that own some of `seats`, ordered by the last seat of each;
/// nonsense if it owns none.
[[nodiscard]] inline std::int32_t place_among(
    const Shape& shape, std::uint64_t node, int rank, const std::int32_t* seats, std::size_t num_seats) noexcept {
  std::uint64_t seen = 0;   // from the back: ranks with a later last seat than those that follow
  std::uint64_t later = 0;  // those seen up to and including `rank`
  for (std::size_t k = num_seats; k-- > 0;) {
    seen |= owner_bit(shape, seats[k]) & node;
    if (later == 0 && ((seen >> rank) & 1) != 0) later = seen;
  }
  return std::popcount(seen) - std::popcount(later);
}

}  // namespace moebus::model
