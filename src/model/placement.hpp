// Placement: which rank holds which seats, and which experts sit in them. Routing names experts; everything behind
// take_routing names seats. Room: model · host+device arithmetic.

#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "moebus/placement.hpp"

namespace moebus::model {

/// Seats are numbered through all ranks: rank r holds seats [first_seat(r), first_seat(r + 1)). A value, the same on
/// all ranks.
class ExpertPlacement {
 public:
  ExpertPlacement() = default;

  /// One seat per expert: each rank holds a contiguous block; the first `num_experts % num_ranks` ranks hold one more.
  /// Seat s holds expert s.
  static ExpertPlacement blocks(int num_experts, int num_ranks);

  /// The caller's map; it must be free of errors.
  static ExpertPlacement of(const Placement& placement, int num_experts, int num_ranks);

  [[nodiscard]] int num_seats() const noexcept { return static_cast<int>(rank_of_.size()); }

  [[nodiscard]] int num_ranks() const noexcept { return static_cast<int>(first_seat_.size()) - 1; }

  [[nodiscard]] int num_local(int rank) const noexcept {
    return first_seat_[static_cast<std::size_t>(rank) + 1] - first_seat_[static_cast<std::size_t>(rank)];
  }

  [[nodiscard]] int first_seat(int rank) const noexcept { return first_seat_[static_cast<std::size_t>(rank)]; }

  [[nodiscard]] int rank_of(int seat) const noexcept { return rank_of_[static_cast<std::size_t>(seat)]; }

  /// Returns a seat's number on its rank.
  [[nodiscard]] int seat_of(int seat) const noexcept { return seat - first_seat(rank_of(seat)); }

  /// True if seat s holds expert s: routing needs no translation.
  [[nodiscard]] bool is_identity() const noexcept { return replicas_.empty(); }

  /// Returns the seats of an expert, ascending; not with is_identity().
  [[nodiscard]] std::span<const std::int32_t> replicas(int expert) const noexcept {
    const auto first = static_cast<std::size_t>(first_replica_[static_cast<std::size_t>(expert)]);
    const auto end = static_cast<std::size_t>(first_replica_[static_cast<std::size_t>(expert) + 1]);
    return std::span(replicas_).subspan(first, end - first);
  }

 private:
  std::vector<std::int32_t> rank_of_;        // [seats]
  std::vector<std::int32_t> first_seat_;     // [ranks + 1]
  std::vector<std::int32_t> replicas_;       // [placed seats] grouped by expert; empty = identity
  std::vector<std::int32_t> first_replica_;  // [experts + 1]
};

/// Returns what is wrong with a placement (field, value, limit, remedy), or nothing: its size, an id that is no expert,
/// an expert without a seat, one twice on the same rank.
[[nodiscard]] std::optional<std::string> find_placement_error(const Placement& placement,
                                                              int seats_per_rank,
                                                              int num_experts,
                                                              int num_ranks);

/// The rule in force unless the caller gives one: a replica on the source's own rank, else token-wise round robin that
/// begins at a different replica for every rank. Returns an index into ReplicaChoice::ranks.
[[nodiscard]] int default_replica(const ReplicaChoice& choice) noexcept;

/// Hash of a placement, for agreement.
[[nodiscard]] std::uint64_t placement_digest(const Placement& placement) noexcept;

}  // namespace moebus::model
