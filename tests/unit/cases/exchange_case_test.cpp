#include "cases/exchange_case.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "cases/exchange_run.hpp"

namespace moebus::cases {
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
  int num_in_overlap = 0;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    const ExchangeCase one = random_group_case(seed, 4, Route::latency);
    nodes.insert(one.nodes);
    levels.insert(group_of(one).levels);
    mappings.insert(one.map_peers);
    if (oracle::has_gateways(make_dispatch_truth(one, 0).expected.front())) ++num_with_gateways;
    if (one.rule) ++num_with_rules;
    if (one.in_overlap) ++num_in_overlap;
  }
  const std::set<std::vector<int>> all = {{0, 0, 0, 0}, {0, 0, 1, 1}, {0, 0, 0, 1}, {0, 1, 2, 2}, {0, 1, 0, 1}};
  EXPECT_EQ(nodes, all);
  EXPECT_EQ(levels, (std::set<int>{1, 2}));
  EXPECT_EQ(mappings.size(), 3U);
  EXPECT_GT(num_with_gateways, 20);
  EXPECT_GT(num_with_rules, 5);
  EXPECT_GT(num_in_overlap, 20);
}

TEST(RandomGroupCase, KeepsWhatIsChosen) {
  const GroupChoice choice{{0, 1, 0, 1}, 2, MapPeers::none, InterNode::direct};
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const ExchangeCase one = random_group_case(seed, 4, Route::staged, choice);
    EXPECT_EQ(one.nodes, choice.nodes);
    EXPECT_EQ(one.levels, 2);
    EXPECT_EQ(one.map_peers, MapPeers::none);
    EXPECT_EQ(one.config.inter_node, InterNode::direct);
  }
}

TEST(RandomGroupCase, StaysTheSameWhereNothingIsChosenOtherwise) {
  const ExchangeCase drawn = random_group_case(9, 4, Route::latency);
  const GroupChoice choice{drawn.nodes, drawn.levels, drawn.map_peers, drawn.config.inter_node};
  EXPECT_EQ(describe(random_group_case(9, 4, Route::latency, choice)), describe(drawn));
}

TEST(CaseTruth, CountsTheLeastTrafficByContext) {
  ExchangeCase one;
  one.config = small_config();
  one.num_calls = 3;
  one.in_overlap = true;
  const CaseTruth truth = make_truth(one);
  LeastTraffic first;
  first.add(one, truth.dispatched[0]);
  first.add(one, truth.dispatched[2]);
  EXPECT_EQ(truth.least[0].dispatch.rows, first.dispatch.rows);
  LeastTraffic second;
  second.add(one, truth.dispatched[1]);
  EXPECT_EQ(truth.least[1].combine.rows, second.combine.rows);
}

/// Two ranks; rank 0 sends two rows of 16 bytes in dispatch, and says so.
struct Sent {
  LeastTraffic least{{2, {0, 2, 0, 0}, 16}, {2, {0, 0, 0, 0}, 16}};
  ExchangeStats stats;

  Sent() {
    stats.num_ranks = 2;
    stats.dispatch_peers[1].rows_sent = 2;
    stats.dispatch_peers[1].bytes_sent = 32;
  }
};

TEST(TrafficDifference, IsNothingIfCountersSayTheLeast) {
  const Sent sent;
  EXPECT_EQ(traffic_difference(sent.stats, 0, sent.least, true), std::nullopt);
}

TEST(TrafficDifference, NamesCallRanksAndBothCountsIfMoreWasSent) {
  Sent sent;
  sent.stats.dispatch_peers[1].bytes_sent = 48;
  const std::string text = traffic_difference(sent.stats, 0, sent.least, false).value_or("");
  EXPECT_EQ(text, "dispatch bytes sent from rank 0 to 1: counted 48, needed are 32");
}

TEST(TrafficDifference, AllowsLessOnlyWhereRowsMayBeDropped) {
  Sent sent;
  sent.stats.dispatch_peers[1].rows_sent = 1;
  sent.stats.dispatch_peers[1].bytes_sent = 16;
  EXPECT_EQ(traffic_difference(sent.stats, 0, sent.least, false), std::nullopt);
  EXPECT_NE(traffic_difference(sent.stats, 0, sent.least, true), std::nullopt);
}

TEST(GroupOptions, SayTheNodeOfEachRank) {
  ExchangeCase one;
  one.num_ranks = 3;
  one.nodes = {4, 7, 4};
  one.levels = 1;
  one.map_peers = MapPeers::node;
  GroupOptions common;
  common.token = "t";
  const GroupOptions options = group_options(one, 1, common);
  EXPECT_EQ(options.host_id, "node-7");
  EXPECT_EQ(options.levels, 1);
  EXPECT_EQ(options.map_peers, MapPeers::node);
  EXPECT_EQ(options.token, "t");
  EXPECT_EQ(group_options(one, 0, common).host_id, group_options(one, 2, common).host_id);
}

}  // namespace
}  // namespace moebus::cases
