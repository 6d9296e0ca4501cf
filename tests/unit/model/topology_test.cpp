#include "model/topology.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

namespace moebus::model {
namespace {

using testing::ElementsAre;
using testing::ElementsAreArray;

Topology of(const std::vector<int>& node_of) { return Topology::of_nodes(node_of); }

/// Even, uneven and interleaved nodes, nodes of one rank, labels in any order, and what chance brings.
std::vector<std::vector<int>> many_topologies() {
  std::vector<std::vector<int>> all{
      {0}, {0, 0, 1, 1}, {0, 0, 0, 1}, {7, 7, 2, 5}, {0, 1, 1, 2}, {0, 1, 0, 1}, {3, 1, 1, 3, 1, 2}, {4, 3, 2, 1}};
  std::mt19937 random(11);
  for (int i = 0; i < 60; ++i) {
    all.emplace_back();
    const int ranks = std::uniform_int_distribution<int>(1, i == 0 ? 64 : 20)(random);
    for (int r = 0; r < ranks; ++r) all.back().push_back(std::uniform_int_distribution<int>(0, 5)(random));
  }
  return all;
}

TEST(Topology, NumbersNodesByTheirFirstRankWhateverTheLabels) {
  const Topology topology = of({7, 7, 2, 5, 2});
  EXPECT_EQ(topology.num_ranks(), 5);
  EXPECT_EQ(topology.num_nodes(), 3);
  EXPECT_THAT(topology.ranks_of(0), ElementsAre(0, 1));
  EXPECT_THAT(topology.ranks_of(1), ElementsAre(2, 4));
  EXPECT_THAT(topology.ranks_of(2), ElementsAre(3));
  EXPECT_EQ(topology.node_of(4), 1);
  EXPECT_EQ(topology.local_index(4), 1);
  EXPECT_EQ(topology.local_index(3), 0);
  EXPECT_TRUE(topology.are_neighbours(2, 4));
  EXPECT_FALSE(topology.are_neighbours(1, 2));
  EXPECT_EQ(topology.max_node_size(), 2);
}

TEST(Topology, HasOneNodeOfEverybodyIfAsked) {
  const Topology topology = Topology::one_node(64);
  EXPECT_EQ(topology.num_nodes(), 1);
  EXPECT_EQ(topology.max_node_size(), 64);
  EXPECT_EQ(topology.max_served(), 0);
  EXPECT_FALSE(topology.has_unmapped());
  EXPECT_TRUE(topology.is_mapped(0, 63));
  EXPECT_TRUE(topology.is_mapped(63, 63));
}

TEST(Topology, CountsLocalIndicesAroundTheSmallerNode) {
  const Topology topology = of({0, 0, 0, 1});  // three ranks and one
  EXPECT_EQ(topology.gateway(0, 1), 3);
  EXPECT_EQ(topology.gateway(1, 1), 3);
  EXPECT_EQ(topology.gateway(2, 1), 3);
  EXPECT_EQ(topology.gateway(3, 0), 0);
  EXPECT_THAT(topology.served_by(0), ElementsAre(3));
  EXPECT_THAT(topology.served_by(1), ElementsAre());
  EXPECT_THAT(topology.served_by(3), ElementsAre(0, 1, 2));
  EXPECT_EQ(topology.max_served(), 3);
  EXPECT_EQ(topology.max_node_size(), 3);
}

TEST(Topology, PairsRanksOfInterleavedNodesByLocalIndexNotByNumber) {
  const Topology topology = of({0, 1, 0, 1});
  EXPECT_EQ(topology.gateway(0, 1), 1);
  EXPECT_EQ(topology.gateway(2, 1), 3);
  EXPECT_EQ(topology.gateway(1, 0), 0);
  EXPECT_EQ(topology.gateway(3, 0), 2);
}

TEST(Topology, HasEveryRankServedByOneRankOfEveryOtherNode) {
  for (const std::vector<int>& node_of : many_topologies()) {
    const Topology topology = of(node_of);
    SCOPED_TRACE(testing::PrintToString(node_of));
    std::map<std::pair<int, int>, int> times;  // (source, label of a node) -> ranks that serve it there
    int most = 0;
    for (int rank = 0; rank < topology.num_ranks(); ++rank) {
      const std::vector<int> served = topology.served_by(rank);
      EXPECT_TRUE(std::is_sorted(served.begin(), served.end()));
      most = std::max(most, static_cast<int>(served.size()));
      for (const int src : served) {
        EXPECT_EQ(topology.gateway(src, topology.node_of(rank)), rank);
        ++times[{src, node_of[static_cast<std::size_t>(rank)]}];
      }
    }
    EXPECT_EQ(topology.max_served(), most);
    const std::set<int> labels(node_of.begin(), node_of.end());
    for (int src = 0; src < topology.num_ranks(); ++src) {
      for (const int label : labels) {
        const int expected = label == node_of[static_cast<std::size_t>(src)] ? 0 : 1;
        EXPECT_EQ((times[{src, label}]), expected) << "source " << src << ", node " << label;
      }
    }
  }
}

TEST(Topology, SpreadsGatewaysEvenlyOverNodesOfOneSize) {
  const Topology topology = of({0, 0, 0, 0, 1, 1, 1, 1});
  for (int rank = 0; rank < 8; ++rank) EXPECT_THAT(topology.served_by(rank), ElementsAre((rank + 4) % 8));
}

TEST(Topology, TakesAwayMappingInBothDirectionsAndOfThatPairOnly) {
  Topology topology = of({0, 0, 1});
  topology.set_unmapped(2, 0);
  EXPECT_TRUE(topology.has_unmapped());
  EXPECT_FALSE(topology.is_mapped(0, 2));
  EXPECT_FALSE(topology.is_mapped(2, 0));
  EXPECT_TRUE(topology.is_mapped(0, 1));
  EXPECT_TRUE(topology.is_mapped(1, 2));
  EXPECT_TRUE(topology.is_mapped(2, 2));
}

TEST(Topology, DescribesNodesAndMappingSoThatDifferencesShow) {
  Topology unmapped = of({4, 4, 1, 1});
  EXPECT_EQ(unmapped.describe(), of({0, 0, 9, 9}).describe());
  EXPECT_THAT(unmapped.describe(), testing::HasSubstr("node of rank=0,0,1,1\n"));
  EXPECT_NE(unmapped.describe(), of({0, 1, 0, 1}).describe());
  unmapped.set_unmapped(1, 2);
  EXPECT_NE(unmapped.describe(), of({0, 0, 1, 1}).describe());
  EXPECT_THAT(unmapped.describe(), testing::HasSubstr("ranks mapped by rank 1=0xb\n"));
}

}  // namespace
}  // namespace moebus::model
