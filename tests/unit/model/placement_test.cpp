#include "model/placement.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "moebus/types.hpp"

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
  EXPECT_EQ(placement.first_seat(0), 0);
  EXPECT_EQ(placement.first_seat(1), 3);
  EXPECT_EQ(placement.first_seat(2), 6);
  EXPECT_EQ(placement.first_seat(3), 8);
  EXPECT_EQ(placement.rank_of(5), 1);
  EXPECT_EQ(placement.seat_of(5), 2);
  EXPECT_EQ(placement.rank_of(9), 3);
  EXPECT_EQ(placement.seat_of(9), 1);
}

TEST(ExpertPlacement, LeavesTheLastRanksEmptyWhenExpertsAreFewerThanRanks) {
  const auto placement = ExpertPlacement::blocks(2, 5);
  EXPECT_THAT(local_counts(placement), ElementsAre(1, 1, 0, 0, 0));
  EXPECT_EQ(placement.num_seats(), 2);
  EXPECT_EQ(placement.num_ranks(), 5);
}

TEST(ExpertPlacement, GivesEveryExpertOneSeatAndEverySeatOneExpert) {
  for (int experts = 1; experts <= 40; ++experts) {
    for (int ranks = 1; ranks <= 12; ++ranks) {
      const auto placement = ExpertPlacement::blocks(experts, ranks);
      int expert = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        ASSERT_EQ(placement.first_seat(rank), expert) << experts << " experts, " << ranks << " ranks";
        ASSERT_TRUE(placement.is_identity());
        ASSERT_LE(placement.num_local(rank), placement.num_local(0));
        ASSERT_GE(placement.num_local(rank), placement.num_local(0) - 1);
        for (int seat = 0; seat < placement.num_local(rank); ++seat, ++expert) {
          ASSERT_EQ(placement.rank_of(expert), rank) << experts << " experts, " << ranks << " ranks";
          ASSERT_EQ(placement.seat_of(expert), seat) << experts << " experts, " << ranks << " ranks";
        }
      }
      ASSERT_EQ(expert, experts);
    }
  }
}

// Maps of the caller
// ----------------------------------------------------------------------------------------------------------------------

TEST(ExpertPlacement, FindsAllSeatsOfAnExpertAscending) {
  const auto placement = ExpertPlacement::of({{0, 1, 2, 0, -1, 0}}, 3, 3);
  EXPECT_FALSE(placement.is_identity());
  EXPECT_EQ(placement.num_seats(), 6);
  EXPECT_THAT(local_counts(placement), ElementsAre(2, 2, 2));
  EXPECT_THAT(placement.replicas(0), ElementsAre(0, 3, 5));
  EXPECT_THAT(placement.replicas(1), ElementsAre(1));
  EXPECT_THAT(placement.replicas(2), ElementsAre(2));
  EXPECT_EQ(placement.first_seat(2), 4);
  EXPECT_EQ(placement.rank_of(3), 1);
  EXPECT_EQ(placement.seat_of(3), 1);
}

TEST(ExpertPlacement, NeedsNoTranslationWhereEveryExpertSitsInItsOwnSeat) {
  EXPECT_TRUE(ExpertPlacement::of({{0, 1, 2, 3}}, 4, 2).is_identity());
  EXPECT_TRUE(ExpertPlacement::of({{0, 1, 2, -1}}, 3, 2).is_identity());
  EXPECT_FALSE(ExpertPlacement::of({{0, 1, 2, 0}}, 3, 2).is_identity());
  EXPECT_FALSE(ExpertPlacement::of({{0, 1, -1, 2}}, 3, 2).is_identity());
  EXPECT_FALSE(ExpertPlacement::of({{1, 0, 2, -1}}, 3, 2).is_identity());
}

struct WrongPlacement {
  const char* name;
  std::vector<std::int32_t> experts;
  int seats_per_rank;
  const char* message;
};

void PrintTo(const WrongPlacement& wrong, std::ostream* out) { *out << wrong.name; }

std::string name_of(const testing::TestParamInfo<WrongPlacement>& wrong) { return wrong.param.name; }

class PlacementError : public testing::TestWithParam<WrongPlacement> {};

TEST_P(PlacementError, NamesSeatValueLimitAndRemedy) {
  ASSERT_EQ(find_placement_error({{0, 1, 2, 0, -1, 1}}, 2, 3, 3), std::nullopt);
  const WrongPlacement& wrong = GetParam();
  EXPECT_EQ(find_placement_error({wrong.experts}, wrong.seats_per_rank, 3, 3), wrong.message);
}

INSTANTIATE_TEST_SUITE_P(
    Maps,
    PlacementError,
    testing::Values(
        WrongPlacement{"WithoutSeats",
                       {0, 1, 2},
                       0,
                       "config.seats_per_rank is 0; a placement needs seats: set it to 1 or more, and so that 3 ranks "
                       "hold 3 experts"},
        WrongPlacement{"TooShort",
                       {0, 1, 2, 0, -1},
                       2,
                       "placement.experts has 5 seats; 3 ranks with 2 seats each have 6: give one entry per seat"},
        WrongPlacement{"TooLong",
                       {0, 1, 2, 0},
                       1,
                       "placement.experts has 4 seats; 3 ranks with 1 seats each have 3: give one entry per seat"},
        WrongPlacement{"PastTheLastExpert",
                       {0, 1, 2, 3, -1, -1},
                       2,
                       "placement.experts[3] is 3; allowed is 0 to 2, or -1 for an empty seat"},
        WrongPlacement{"BelowEmpty",
                       {-2, 1, 2, 0, -1, -1},
                       2,
                       "placement.experts[0] is -2; allowed is 0 to 2, or -1 for an empty seat"},
        WrongPlacement{"TwiceOnARank",
                       {0, 1, 2, 2, -1, -1},
                       2,
                       "placement.experts[3] is 2, which rank 1 holds already; an expert has at most one seat on a "
                       "rank: put its replica on another rank, or -1"},
        WrongPlacement{"WithoutASeat",
                       {0, 1, 0, 1, -1, -1},
                       2,
                       "placement.experts names expert 2 nowhere; each of the 3 experts needs a seat: give it one"}),
    name_of);

// Replicas
// ----------------------------------------------------------------------------------------------------------------------

TEST(DefaultReplica, IsTheSourcesOwnWhereItHasOne) {
  const std::vector<std::int32_t> ranks{1, 4, 6};
  for (std::int64_t token = 0; token < 5; ++token) {
    EXPECT_EQ(default_replica({4, token, 0, 9, ranks}), 1);
    EXPECT_EQ(default_replica({6, token, 0, 9, ranks}), 2);
  }
}

TEST(DefaultReplica, TakesTurnsByTokenAndBeginsElsewhereForEveryRank) {
  const std::vector<std::int32_t> ranks{1, 4, 6};
  const auto of_tokens = [&](int src) {
    std::vector<int> taken;
    for (std::int64_t token = 0; token < 6; ++token) taken.push_back(default_replica({src, token, 0, 9, ranks}));
    return taken;
  };
  EXPECT_THAT(of_tokens(0), ElementsAre(0, 1, 2, 0, 1, 2));
  EXPECT_THAT(of_tokens(2), ElementsAre(2, 0, 1, 2, 0, 1));
  EXPECT_THAT(of_tokens(5), ElementsAre(2, 0, 1, 2, 0, 1));
}

TEST(DefaultReplica, IsTheSameForEveryChoiceOfATokenAndInRangeForTheLargestToken) {
  const std::vector<std::int32_t> ranks{0, 2};
  for (int choice = 0; choice < kMaxTopk; ++choice) {
    EXPECT_EQ(default_replica({1, 6, choice, 3, ranks}), default_replica({1, 6, 0, 3, ranks})) << choice;
  }
  const int last = default_replica({63, std::numeric_limits<std::int32_t>::max(), 0, 3, ranks});
  EXPECT_GE(last, 0);
  EXPECT_LT(last, 2);
}

TEST(PlacementDigest, TellsSeatsApart) {
  const auto digest = placement_digest({{0, 1, 2, -1}});
  EXPECT_EQ(placement_digest({{0, 1, 2, -1}}), digest);
  EXPECT_NE(placement_digest({{0, 1, -1, 2}}), digest);
  EXPECT_NE(placement_digest({{0, 1, 2}}), digest);
  EXPECT_NE(placement_digest({{0, 1, 2, 256}}), placement_digest({{0, 1, 2, 1}}));
}

}  // namespace
}  // namespace moebus::model
