#include "cli/traffic.hpp"

#include <gtest/gtest.h>

#include "oracle/bytes.hpp"

namespace moebus::cli {
namespace {

BenchSetup small_setup(BenchKind kind) {
  BenchOptions options;
  options.kind = kind;
  options.tokens = 9;
  options.hidden = 32;
  options.topk = 3;
  options.experts = 8;
  options.ranks = 4;
  options.topology.nodes = "0,1,0,1";
  complete(options);
  Machine machine;
  machine.l2_bytes = 1 << 9;
  machine.l3_bytes = 1 << 11;
  return make_setup(options, 4, machine, 2);
}

std::vector<oracle::DispatchExpectation> dispatched(const BenchSetup& setup, int set) {
  auto inputs = std::make_shared<std::vector<oracle::RankInput>>();
  for (int rank = 0; rank < setup.num_ranks; ++rank) inputs->push_back(make_input(setup, routing_of(setup), rank, set));
  return oracle::dispatch(setup.config, inputs, setup.group);
}

TEST(BenchSetup, DecidesLevelsByTheNodes) { EXPECT_EQ(small_setup(BenchKind::exchange).group.levels, 2); }

TEST(LeastTrafficOfSets, IsTheOraclesForEachOfThem) {
  const BenchSetup setup = small_setup(BenchKind::exchange);
  const auto sets = least_traffic(setup, dispatched(setup, 0));
  ASSERT_EQ(sets.size(), static_cast<std::size_t>(setup.num_sets));
  for (int set = 0; set < setup.num_sets; ++set) {
    const auto expected = dispatched(setup, set);
    const cases::LeastTraffic& seen = sets[static_cast<std::size_t>(set)];
    EXPECT_EQ(seen.dispatch.rows, oracle::least_dispatch_traffic(expected).rows);
    EXPECT_EQ(seen.dispatch.row_bytes, oracle::least_dispatch_traffic(expected).row_bytes);
    EXPECT_EQ(seen.combine.rows, oracle::least_combine_traffic(expected, false).rows);
  }
}

TEST(LeastTrafficOfSets, HasNoCombineWhereNoneIsMade) {
  const BenchSetup setup = small_setup(BenchKind::dispatch);
  const auto sets = least_traffic(setup, dispatched(setup, 0));
  for (int src = 0; src < 4; ++src) {
    for (int dst = 0; dst < 4; ++dst) EXPECT_EQ(sets[0].combine.bytes_of(src, dst), 0U);
  }
}

TEST(TrafficOfCalls, TakesTheSetsInTurn) {
  const BenchSetup setup = small_setup(BenchKind::exchange);
  const auto sets = least_traffic(setup, dispatched(setup, 0));
  const int calls = setup.num_sets + 1;
  oracle::Traffic expected = sets[0].dispatch;
  for (const cases::LeastTraffic& set : sets) expected += set.dispatch;
  EXPECT_EQ(traffic_of_calls(sets, calls).dispatch.rows, expected.rows);
}

TEST(LinksOf, TellsWhatCrossesBetweenNodes) {
  const BenchSetup setup = small_setup(BenchKind::exchange);
  std::array<PeerStats, kMaxRanks> peers{};
  peers[0].bytes_sent = 1;
  peers[1].bytes_sent = 99;  // its own
  peers[2].bytes_sent = 10;
  peers[3].bytes_sent = 100;
  oracle::Traffic least{4, std::vector<std::uint64_t>(16, 2), 5};
  const PhaseLinks links = links_of(setup, 1, peers, least);
  EXPECT_EQ(links.between_nodes.sent, 11);
  EXPECT_EQ(links.between_nodes.least, 20);
  EXPECT_EQ(links.inside_nodes.sent, 100);
  EXPECT_EQ(links.inside_nodes.least, 10);
  EXPECT_EQ((links + links).all.sent, 222);
}

}  // namespace
}  // namespace moebus::cli
