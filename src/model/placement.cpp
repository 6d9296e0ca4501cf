#include "model/placement.hpp"

#include "base/math.hpp"

namespace moebus::model {

ExpertPlacement ExpertPlacement::blocks(int num_experts, int num_ranks) {
  ExpertPlacement placement;
  placement.rank_of_.resize(base::idx(num_experts));
  placement.seat_of_.resize(base::idx(num_experts));
  placement.first_expert_.resize(base::idx(num_ranks) + 1);
  const int small = num_experts / num_ranks;
  const int num_large = num_experts % num_ranks;
  int expert = 0;
  for (int rank = 0; rank < num_ranks; ++rank) {
    placement.first_expert_[base::idx(rank)] = expert;
    const int num_here = small + (rank < num_large ? 1 : 0);
    for (int seat = 0; seat < num_here; ++seat, ++expert) {
      placement.rank_of_[base::idx(expert)] = rank;
      placement.seat_of_[base::idx(expert)] = seat;
    }
  }
  placement.first_expert_[base::idx(num_ranks)] = expert;
  return placement;
}

}  // namespace moebus::model
