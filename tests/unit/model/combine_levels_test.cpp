// Whole combines of pretended groups: what comes home is what the rule says, byte for byte, by whichever way it came.

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <tuple>

#include "combine_run.hpp"

namespace moebus::model {
namespace {

using base::idx;
using cases::Case;
using cases::Combined;
using cases::CombineRun;
using cases::Group;
using cases::Layouts;
using cases::Making;

constexpr unsigned kNumSeeds = 24;

struct Nodes {
  const char* name;
  std::vector<int> node_of;  // [ranks]
};

void PrintTo(const Nodes& nodes, std::ostream* out) { *out << nodes.name; }

void expect_same(const Combined& seen, const Combined& expected) {
  for (std::size_t home = 0; home < expected.tokens.size(); ++home) {
    ASSERT_EQ(seen.tokens[home], expected.tokens[home]) << "rows of rank " << home;
    ASSERT_EQ(seen.lanes[home], expected.lanes[home]) << "lane of rank " << home;
    ASSERT_EQ(seen.missing[home], expected.missing[home]) << "missing choices of rank " << home;
  }
}

class CombineOverNodes : public testing::TestWithParam<std::tuple<Nodes, Layouts>> {
 protected:
  static Case case_of(unsigned seed, InterNode inter_node) {
    const auto& [nodes, layouts] = GetParam();
    Case c = cases::combine_case(seed, layouts, static_cast<int>(nodes.node_of.size()));
    c.config.inter_node = inter_node;
    return c;
  }

  static Group group_of(const Case& c, int levels) { return {c, std::get<Nodes>(GetParam()).node_of, levels}; }

  static void check(const Group& group, Making making, unsigned seed) {
    SCOPED_TRACE(group.c.text());
    const bool has_bias = seed % 3 != 0;
    const int round_tokens = 1 + static_cast<int>(seed % 5) * 4;
    const int block_tokens = 1 + static_cast<int>(seed % 3) * 2;
    CombineRun run(group, making, round_tokens, block_tokens, has_bias);
    expect_same(run.run(), cases::expect_combined(group, has_bias));
  }
};

TEST_P(CombineOverNodes, AddsRanksWithOneLevel) {
  for (unsigned seed = 1; seed <= kNumSeeds; ++seed) {
    const Group group = group_of(case_of(seed, InterNode::gateway), 1);
    ASSERT_NO_FATAL_FAILURE(check(group, Making::in_place, seed));
    ASSERT_NO_FATAL_FAILURE(check(group, Making::dense, seed));
  }
}

TEST_P(CombineOverNodes, AddsNodesWithTwoLevelsThroughGateways) {
  for (unsigned seed = 1; seed <= kNumSeeds; ++seed) {
    const Group group = group_of(case_of(seed, InterNode::gateway), 2);
    ASSERT_NO_FATAL_FAILURE(check(group, Making::in_place, seed));
    ASSERT_NO_FATAL_FAILURE(check(group, Making::dense, seed));
  }
}

TEST_P(CombineOverNodes, AddsNodesWithTwoLevelsWithoutGateways) {
  for (unsigned seed = 1; seed <= kNumSeeds; ++seed) {
    const Group group = group_of(case_of(seed, InterNode::direct), 2);
    ASSERT_NO_FATAL_FAILURE(check(group, Making::in_place, seed));
    ASSERT_NO_FATAL_FAILURE(check(group, Making::dense, seed));
  }
}

TEST_P(CombineOverNodes, GivesTheSameBytesWithAndWithoutGateways) {
  for (unsigned seed = 1; seed <= kNumSeeds; ++seed) {
    const Group through = group_of(case_of(seed, InterNode::gateway), 2);
    const Group around = group_of(case_of(seed, InterNode::direct), 2);
    SCOPED_TRACE(through.c.text());
    const Combined expected = CombineRun(around, Making::in_place, 16, 16, true).run();
    ASSERT_NO_FATAL_FAILURE(expect_same(CombineRun(through, Making::in_place, 16, 16, true).run(), expected));
  }
}

std::string name_of(const testing::TestParamInfo<std::tuple<Nodes, Layouts>>& info) {
  return std::string(std::get<Nodes>(info.param).name) + std::get<Layouts>(info.param).name;
}

const Nodes kOne{"OneNode", {0, 0, 0, 0}};
const Nodes kEven{"TwoAndTwo", {0, 0, 1, 1}};
const Nodes kUneven{"ThreeAndOne", {0, 0, 0, 1}};
const Nodes kThree{"OneOneAndTwo", {0, 1, 2, 2}};
const Nodes kInterleaved{"Interleaved", {0, 1, 0, 1}};
const Nodes kLarge{"ThreeThreeAndTwoMixed", {2, 0, 1, 0, 0, 2, 1, 2}};

INSTANTIATE_TEST_SUITE_P(Nodes,
                         CombineOverNodes,
                         testing::Combine(testing::Values(kOne, kEven, kUneven, kThree, kInterleaved, kLarge),
                                          testing::Values(cases::kRankMajor,
                                                          cases::kExpertMajor,
                                                          cases::kExpertPadded,
                                                          cases::kMajorPerExpert,
                                                          cases::kPaddedPerExpert)),
                         name_of);

// The cases are worth something: rows are dropped in them, whole tokens are too, and levels change bytes.
TEST(CombineCases, DropRowsAndTellLevelsApart) {
  int num_missing = 0;
  int num_lost = 0;
  int num_different = 0;
  for (unsigned seed = 1; seed <= kNumSeeds; ++seed) {
    const Case c = cases::combine_case(seed, cases::kRankMajor, 4);
    const Combined one = cases::expect_combined(Group(c, {0, 0, 1, 1}, 1), true);
    const Combined two = cases::expect_combined(Group(c, {0, 0, 1, 1}, 2), true);
    num_different += one.tokens != two.tokens ? 1 : 0;
    for (int home = 0; home < c.num_ranks; ++home) {
      for (int token = 0; token < c.choices[idx(home)].num_tokens; ++token) {
        std::uint64_t chosen = 0;
        for (int k = 0; k < c.config.num_topk; ++k) {
          chosen |= std::uint64_t{cases::id_at(c, home, token, k) >= 0} << k;
        }
        const std::uint64_t missing = one.missing[idx(home)][idx(token)];
        num_missing += missing != 0 ? 1 : 0;
        num_lost += missing != 0 && missing == chosen ? 1 : 0;
      }
    }
  }
  EXPECT_GT(num_missing, 0);
  EXPECT_GT(num_lost, 0);
  EXPECT_GT(num_different, 0);
}

}  // namespace
}  // namespace moebus::model
