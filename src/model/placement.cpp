#include "model/placement.hpp"

#include <fmt/format.h>

#include "base/math.hpp"

namespace moebus::model {

using base::idx;

namespace {

constexpr std::int32_t kEmpty = -1;

/// True if seat e holds expert e, and no other seat holds any.
bool is_in_order(const std::vector<std::int32_t>& experts, int num_experts) noexcept {
  for (std::size_t seat = 0; seat < experts.size(); ++seat) {
    const auto expert = static_cast<std::int32_t>(seat);
    if (experts[seat] != (expert < num_experts ? expert : kEmpty)) return false;
  }
  return true;
}

}  // namespace

ExpertPlacement ExpertPlacement::blocks(int num_experts, int num_ranks) {
  ExpertPlacement placement;
  placement.rank_of_.reserve(idx(num_experts));
  placement.first_seat_.resize(idx(num_ranks) + 1);
  const int small = num_experts / num_ranks;
  const int num_large = num_experts % num_ranks;
  for (int rank = 0; rank < num_ranks; ++rank) {
    placement.first_seat_[idx(rank)] = placement.num_seats();
    placement.rank_of_.insert(placement.rank_of_.end(), idx(small + (rank < num_large ? 1 : 0)), rank);
  }
  placement.first_seat_[idx(num_ranks)] = placement.num_seats();
  return placement;
}

ExpertPlacement ExpertPlacement::of(const Placement& placement, int num_experts, int num_ranks) {
  const std::vector<std::int32_t>& experts = placement.experts;
  ExpertPlacement made = blocks(static_cast<int>(experts.size()), num_ranks);  // as many seats on every rank
  if (is_in_order(experts, num_experts)) return made;
  made.first_replica_.assign(idx(num_experts) + 1, 0);
  for (const std::int32_t expert : experts) {
    if (expert != kEmpty) ++made.first_replica_[idx(expert) + 1];
  }
  for (std::size_t e = 0; e < idx(num_experts); ++e) made.first_replica_[e + 1] += made.first_replica_[e];
  made.replicas_.resize(idx(made.first_replica_.back()));
  std::vector<std::int32_t> next = made.first_replica_;
  for (std::size_t seat = 0; seat < experts.size(); ++seat) {
    if (experts[seat] == kEmpty) continue;
    made.replicas_[idx(next[idx(experts[seat])]++)] = static_cast<std::int32_t>(seat);
  }
  return made;
}

std::optional<std::string> find_placement_error(const Placement& placement,
                                                int seats_per_rank,
                                                int num_experts,
                                                int num_ranks) {
  if (seats_per_rank <= 0) {
    return fmt::format(
        "config.seats_per_rank is {}; a placement needs seats: set it to 1 or more, and so that {} ranks hold {} "
        "experts",
        seats_per_rank,
        num_ranks,
        num_experts);
  }
  const std::size_t num_seats = idx(seats_per_rank) * idx(num_ranks);
  if (placement.experts.size() != num_seats) {
    return fmt::format("placement.experts has {} seats; {} ranks with {} seats each have {}: give one entry per seat",
                       placement.experts.size(),
                       num_ranks,
                       seats_per_rank,
                       num_seats);
  }
  std::vector<int> last_rank(idx(num_experts), -1);  // that holds the expert, among the seats seen so far
  for (std::size_t seat = 0; seat < num_seats; ++seat) {
    const std::int32_t expert = placement.experts[seat];
    if (expert == kEmpty) continue;
    if (expert < 0 || expert >= num_experts) {
      return fmt::format(
          "placement.experts[{}] is {}; allowed is 0 to {}, or -1 for an empty seat", seat, expert, num_experts - 1);
    }
    const int rank = static_cast<int>(seat / idx(seats_per_rank));
    if (last_rank[idx(expert)] == rank) {
      return fmt::format(
          "placement.experts[{}] is {}, which rank {} holds already; an expert has at most one seat on a rank: put its "
          "replica on another rank, or -1",
          seat,
          expert,
          rank);
    }
    last_rank[idx(expert)] = rank;
  }
  for (int expert = 0; expert < num_experts; ++expert) {
    if (last_rank[idx(expert)] < 0) {
      return fmt::format("placement.experts names expert {} nowhere; each of the {} experts needs a seat: give it one",
                         expert,
                         num_experts);
    }
  }
  return std::nullopt;
}

int default_replica(const ReplicaChoice& choice) noexcept {
  for (std::size_t i = 0; i < choice.ranks.size(); ++i) {
    if (choice.ranks[i] == choice.src_rank) return static_cast<int>(i);
  }
  return static_cast<int>((choice.src_rank + choice.token) % static_cast<std::int64_t>(choice.ranks.size()));
}

std::uint64_t placement_digest(const Placement& placement) noexcept {
  std::uint64_t hash = 0xcbf29ce484222325ULL;  // FNV-1a over the entries' bytes, lowest first
  for (const std::int32_t expert : placement.experts) {
    const auto bits = static_cast<std::uint32_t>(expert);
    for (unsigned shift = 0; shift < 32; shift += 8) hash = (hash ^ ((bits >> shift) & 0xFF)) * 0x100000001b3ULL;
  }
  return hash;
}

}  // namespace moebus::model
