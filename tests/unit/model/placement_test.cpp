#include "model/placement.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace moebus::model {
namespace {

using testing::ElementsAre;

std::vector<int> local_counts(const ExpertPlacement& placement) {
  std::vector<int> counts;
  for (int rank = 0; rank < placement.num_ranks(); ++rank) counts.push_back(placement.num_local(rank));
  return counts;
}

TEST(ExpertPlacement, GivesTheFirstRanksOneMoreWhenExpertsDoNotDivide) {
  const auto placement = ExpertPlacement::blocks(10, 4);
  EXPECT_THAT(local_counts(placement), ElementsAre(3, 3, 2, 2));
  EXPECT_EQ(placement.first_expert(0), 0);
  EXPECT_EQ(placement.first_expert(1), 3);
  EXPECT_EQ(placement.first_expert(2), 6);
  EXPECT_EQ(placement.first_expert(3), 8);
  EXPECT_EQ(placement.rank_of(5), 1);
  EXPECT_EQ(placement.seat_of(5), 2);
  EXPECT_EQ(placement.rank_of(9), 3);
  EXPECT_EQ(placement.seat_of(9), 1);
}

TEST(ExpertPlacement, LeavesTheLastRanksEmptyWhenExpertsAreFewerThanRanks) {
  const auto placement = ExpertPlacement::blocks(2, 5);
  EXPECT_THAT(local_counts(placement), ElementsAre(1, 1, 0, 0, 0));
  EXPECT_EQ(placement.num_experts(), 2);
  EXPECT_EQ(placement.num_ranks(), 5);
}

TEST(ExpertPlacement, GivesEveryExpertOneSeatAndEverySeatOneExpert) {
  for (int experts = 1; experts <= 40; ++experts) {
    for (int ranks = 1; ranks <= 12; ++ranks) {
      const auto placement = ExpertPlacement::blocks(experts, ranks);
      int expert = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        ASSERT_EQ(placement.first_expert(rank), expert) << experts << " experts, " << ranks << " ranks";
        ASSERT_LE(placement.num_local(rank), placement.num_local(0));
        ASSERT_GE(placement.num_local(rank), placement.num_local(0) - 1);
        for (int seat = 0; seat < placement.num_local(rank); ++seat, ++expert) {
          ASSERT_EQ(placement.rank_of(expert), rank) << experts << " experts, " << ranks << " ranks";
          ASSERT_EQ(placement.seat_of(expert), seat) << experts << " experts, " << ranks << " ranks";
          ASSERT_EQ(placement.ranks()[expert], rank);
          ASSERT_EQ(placement.seats()[expert], seat);
        }
      }
      ASSERT_EQ(expert, experts);
    }
  }
}

}  // namespace
}  // namespace moebus::model
