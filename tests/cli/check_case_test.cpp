#include "cli/check_case.hpp"

#include <gtest/gtest.h>

#include <set>

namespace moebus::cli {
namespace {

const std::vector<int> kRanks{1, 2, 3, 4, 7, 8};

TEST(CheckCase, FollowsFromSeedAndNumberAlone) {
  EXPECT_EQ(describe(make_case(5, 12, kRanks)), describe(make_case(5, 12, kRanks)));
  EXPECT_NE(describe(make_case(5, 12, kRanks)), describe(make_case(5, 13, kRanks)));
  EXPECT_NE(describe(make_case(5, 12, kRanks)), describe(make_case(6, 12, kRanks)));
}

TEST(CheckCase, ReachesEveryLayoutPathAndNumberOfRanks) {
  std::set<Layout> layouts;
  std::set<std::pair<Path, Delivery>> paths;
  std::set<int> ranks;
  std::set<DType> dtypes;
  std::set<bool> casts;
  for (int index = 0; index < 300; ++index) {
    const CheckCase one = make_case(1, index, kRanks);
    layouts.insert(one.config.layout);
    paths.insert({one.config.path, one.config.delivery});
    ranks.insert(one.num_ranks);
    dtypes.insert(one.config.dtype);
    casts.insert(one.config.cast == Cast::fp8);
  }
  EXPECT_EQ(layouts.size(), 3U);
  EXPECT_EQ(paths.size(), 3U);
  EXPECT_EQ(ranks.size(), kRanks.size());
  EXPECT_EQ(dtypes.size(), 11U);
  EXPECT_EQ(casts.size(), 2U);
}

}  // namespace
}  // namespace moebus::cli
