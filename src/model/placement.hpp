// Placement: which rank owns an expert, and in which seat there.
// Room: model · host+device arithmetic.

#pragma once

#include <cstdint>
#include <vector>

namespace moebus::model {

/// Maps every expert to (rank, seat). A value: made once, the same on all ranks.
class ExpertPlacement {
 public:
  ExpertPlacement() = default;

  /// Gives each rank a contiguous block of experts; the first `num_experts % num_ranks` ranks own one more.
  static ExpertPlacement blocks(int num_experts, int num_ranks);

  [[nodiscard]] int num_experts() const noexcept { return static_cast<int>(rank_of_.size()); }

  [[nodiscard]] int num_ranks() const noexcept { return static_cast<int>(first_expert_.size()) - 1; }

  [[nodiscard]] int num_local(int rank) const noexcept {
    return first_expert_[static_cast<std::size_t>(rank) + 1] - first_expert_[static_cast<std::size_t>(rank)];
  }

  [[nodiscard]] int first_expert(int rank) const noexcept { return first_expert_[static_cast<std::size_t>(rank)]; }

  [[nodiscard]] int rank_of(int expert) const noexcept { return rank_of_[static_cast<std::size_t>(expert)]; }

  [[nodiscard]] int seat_of(int expert) const noexcept { return seat_of_[static_cast<std::size_t>(expert)]; }

  /// Returns the tables themselves, for loops over many tokens.  // [num_experts]
  [[nodiscard]] const std::int32_t* ranks() const noexcept { return rank_of_.data(); }

  [[nodiscard]] const std::int32_t* seats() const noexcept { return seat_of_.data(); }

 private:
  std::vector<std::int32_t> rank_of_;       // [num_experts]
  std::vector<std::int32_t> seat_of_;       // [num_experts]
  std::vector<std::int32_t> first_expert_;  // [num_ranks + 1]
};

}  // namespace moebus::model
