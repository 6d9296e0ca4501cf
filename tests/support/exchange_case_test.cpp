#include "tests/support/exchange_case.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace moebus::tests {
namespace {

TEST(RandomGroupCase, IsTheSameForTheSameSeed) {
  EXPECT_EQ(describe(random_group_case(5, 4, Route::staged)), describe(random_group_case(5, 4, Route::staged)));
  EXPECT_NE(describe(random_group_case(5, 4, Route::staged)), describe(random_group_case(6, 4, Route::staged)));
}

TEST(RandomGroupCase, HasAPlacementThatTheOracleTakes) {
  int num_with_replicas = 0;
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    const ExchangeCase one = random_group_case(seed, 1 + static_cast<int>(seed % 8), Route::latency);
    const oracle::Seats seats = oracle::seats_of(one.config, one.num_ranks, one.placement);
    const auto has_replicas = [](const std::vector<int>& taken) { return taken.size() > 1; };
    if (std::any_of(seats.of_expert.begin(), seats.of_expert.end(), has_replicas)) ++num_with_replicas;
  }
  EXPECT_GT(num_with_replicas, 20);
}

TEST(RandomGroupCase, DrawsEveryKindOfGroup) {
  std::set<std::vector<int>> nodes;
  std::set<int> levels;
  std::set<MapPeers> mappings;
  int num_with_gateways = 0;
  int num_with_rules = 0;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    const ExchangeCase one = random_group_case(seed, 4, Route::latency);
    nodes.insert(one.nodes);
    levels.insert(group_of(one).levels);
    mappings.insert(one.map_peers);
    if (oracle::has_gateways(make_dispatch_truth(one, 0).expected.front())) ++num_with_gateways;
    if (one.rule) ++num_with_rules;
  }
  const std::set<std::vector<int>> all = {{0, 0, 0, 0}, {0, 0, 1, 1}, {0, 0, 0, 1}, {0, 1, 2, 2}, {0, 1, 0, 1}};
  EXPECT_EQ(nodes, all);
  EXPECT_EQ(levels, (std::set<int>{1, 2}));
  EXPECT_EQ(mappings.size(), 3U);
  EXPECT_GT(num_with_gateways, 20);
  EXPECT_GT(num_with_rules, 5);
}

}  // namespace
}  // namespace moebus::tests
