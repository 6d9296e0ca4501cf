#include "cli/check_case.hpp"

#include <gtest/gtest.h>

#include <set>

namespace moebus::cli {
namespace {

CheckOptions options_of(std::uint64_t seed, const TopologyOptions& topology = {}) {
  CheckOptions options;
  options.seed = seed;
  options.topology = topology;
  complete(options);
  return options;
}

TEST(CheckCase, FollowsFromSeedAndNumberAlone) {
  EXPECT_EQ(describe(make_case(options_of(5), 12)), describe(make_case(options_of(5), 12)));
  EXPECT_NE(describe(make_case(options_of(5), 12)), describe(make_case(options_of(5), 13)));
  EXPECT_NE(describe(make_case(options_of(5), 12)), describe(make_case(options_of(6), 12)));
}

TEST(CheckCase, ReachesEveryLayoutPathAndNumberOfRanks) {
  std::set<Layout> layouts;
  std::set<std::pair<Path, Delivery>> paths;
  std::set<int> ranks;
  std::set<DType> dtypes;
  std::set<bool> casts;
  for (int index = 0; index < 300; ++index) {
    const cases::ExchangeCase one = make_case(options_of(1), index);
    layouts.insert(one.config.layout);
    paths.insert({one.config.path, one.config.delivery});
    ranks.insert(one.num_ranks);
    dtypes.insert(one.config.dtype);
    casts.insert(one.config.cast == Cast::fp8);
  }
  EXPECT_EQ(layouts.size(), 3U);
  EXPECT_EQ(paths.size(), 3U);
  EXPECT_EQ(ranks.size(), default_ranks().size());
  EXPECT_EQ(dtypes.size(), 11U);
  EXPECT_EQ(casts.size(), 2U);
}

TEST(CheckCase, ReachesGroupsOfAllKinds) {
  std::set<MapPeers> mappings;
  std::set<InterNode> ways;
  std::set<bool> processes;
  std::set<bool> overlaps;
  std::set<bool> placements;
  for (int index = 0; index < 200; ++index) {
    const cases::ExchangeCase one = make_case(options_of(1), index);
    mappings.insert(one.map_peers);
    ways.insert(one.config.inter_node);
    processes.insert(one.as_processes);
    overlaps.insert(one.in_overlap);
    placements.insert(one.placement.experts.empty());
  }
  EXPECT_EQ(mappings.size(), 3U);
  for (const std::size_t kinds : {ways.size(), processes.size(), overlaps.size(), placements.size()}) {
    EXPECT_EQ(kinds, 2U);
  }
}

TEST(CheckCase, KeepsWhatIsSaidOfTheGroup) {
  const CheckOptions options = options_of(3, {"3+1", "none", "direct", 1});
  EXPECT_EQ(options.ranks, std::vector<int>{4});
  for (int index = 0; index < 20; ++index) {
    const cases::ExchangeCase one = make_case(options, index);
    EXPECT_EQ(one.nodes, (std::vector<int>{0, 0, 0, 1}));
    EXPECT_EQ(one.map_peers, MapPeers::none);
    EXPECT_EQ(one.config.inter_node, InterNode::direct);
    EXPECT_EQ(one.levels, 1);
  }
}

}  // namespace
}  // namespace moebus::cli
