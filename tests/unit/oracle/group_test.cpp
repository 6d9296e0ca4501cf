// Nodes and levels: who is a gateway, and how combine adds in two levels.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "cases.hpp"
#include "moebus/error.hpp"
#include "oracle/combine.hpp"

namespace moebus::oracle {
namespace {

using cases::bytes_of;
using cases::floats_of;
using cases::rank_input;
using cases::SameForAll;
using cases::small_config;
using testing::ElementsAre;

TEST(GroupShape, ListsTheRanksOfANodeWhateverTheirLabels) {
  const GroupShape group{5, {7, -1, 7, 3, 7}, 2};
  EXPECT_THAT(group.ranks_of(7), ElementsAre(0, 2, 4));
  EXPECT_THAT(group.ranks_of(-1), ElementsAre(1));
  EXPECT_TRUE(group.has_several_nodes());
  EXPECT_FALSE(GroupShape::one_node(5).has_several_nodes());
  EXPECT_FALSE((GroupShape{2, {4, 4}, 2}.has_several_nodes()));
  EXPECT_EQ(GroupShape::one_node(3).ranks_of(0).size(), 3U);
}

TEST(GroupShape, TakesTheGatewayOfTheSameLocalIndexModuloTheNodesSize) {
  const GroupShape group{5, {0, 1, 0, 1, 0}, 2};  // 0, 2, 4 and 1, 3
  EXPECT_EQ(group.gateway(0, 1), 1);
  EXPECT_EQ(group.gateway(2, 1), 3);
  EXPECT_EQ(group.gateway(4, 1), 1);
  EXPECT_EQ(group.gateway(1, 0), 0);
  EXPECT_EQ(group.gateway(3, 0), 2);
}

TEST(GroupShape, IsRefusedWithSizesThatDoNotFit) {
  EXPECT_THROW(check_group({2, {0}, 1}), Error);
  EXPECT_THROW(check_group({2, {}, 0}), Error);
  EXPECT_THROW(check_group({2, {}, 3}), Error);
  EXPECT_THROW(check_group({0, {}, 1}), Error);
  EXPECT_NO_THROW(check_group({2, {0, 1}, 2}));
  const ExchangeConfig config = small_config(2, 1);
  const auto inputs = std::make_shared<const std::vector<RankInput>>(2, rank_input(config, {{0}}));
  EXPECT_THROW((void)dispatch(config, inputs, GroupShape::one_node(3)), Error);
}

// One token on rank 0; rank r owns expert r, and its rows hold by_rank[r].
struct Sum {
  ExchangeConfig config;
  GroupShape group;
  std::vector<float> bias = {};

  std::vector<std::byte> of(const std::vector<std::int64_t>& choices, const std::vector<float>& by_rank) {
    config.num_experts = group.num_ranks = static_cast<int>(by_rank.size());
    config.num_topk = static_cast<int>(choices.size());
    std::vector<RankInput> inputs(by_rank.size(), rank_input(config, {}));
    inputs[0] = rank_input(config, {choices});
    std::vector<std::vector<float>> rows;
    for (const float value : by_rank) rows.push_back({value});
    SameForAll experts(config.combine_dtype, rows);
    CombineRequest request;
    request.expert_rows = experts.by_rank();
    if (!bias.empty()) {
      request.homes.resize(by_rank.size());
      request.homes[0].bias[0] = bytes_of(config.combine_dtype, bias);
    }
    const auto shared = std::make_shared<const std::vector<RankInput>>(inputs);
    return combine_at(0, dispatch(config, shared, group), request).tokens;
  }

  float value(const std::vector<std::int64_t>& choices, const std::vector<float>& by_rank) {
    return floats_of(config.combine_dtype, of(choices, by_rank))[0];
  }
};

Sum sum_in(int levels, std::vector<int> nodes, Layout layout = Layout::rank_major) {
  ExchangeConfig config = small_config(1, 1);
  config.layout = layout;
  return {config, {1, std::move(nodes), levels}};
}

TEST(OracleTwoLevels, RoundTheSumOfEveryNode) {
  // In bf16 256 + 1 = 256 (tie), 256 + 2 = 258.
  const std::vector<float> by_rank = {0, 256, 1, 1};
  for (const Layout layout : {Layout::rank_major, Layout::expert_major, Layout::expert_padded}) {
    EXPECT_EQ(sum_in(1, {0, 1, 1, 0}, layout).value({1, 2, 3}, by_rank), 258.0F);
    EXPECT_EQ(sum_in(2, {0, 1, 1, 0}, layout).value({1, 2, 3}, by_rank), 256.0F);  // (256 + 1) -> 256, + 1 -> 256
    EXPECT_EQ(sum_in(2, {0, 1, 0, 0}, layout).value({1, 2, 3}, by_rank), 258.0F);  // 256 + (1 + 1)
    EXPECT_EQ(sum_in(2, {}, layout).value({1, 2, 3}, by_rank), 258.0F);
  }
}

TEST(OracleTwoLevels, RoundTheHomesOwnNodeToo) {
  // Home is rank 0: 256 + 1 rounds to 256 before 1 of the other node comes, so 257 -> 256 again; 258 otherwise.
  EXPECT_EQ(sum_in(2, {0, 0, 1}).value({0, 1, 2}, {256, 1, 1}), 256.0F);
  EXPECT_EQ(sum_in(1, {0, 0, 1}).value({0, 1, 2}, {256, 1, 1}), 258.0F);
  // The bias is added after that rounding, even with one node.
  Sum with_bias = sum_in(2, {});
  with_bias.bias = {1};
  EXPECT_EQ(with_bias.value({0, 1}, {256, 1}), 256.0F);
  with_bias.group.levels = 1;
  EXPECT_EQ(with_bias.value({0, 1}, {256, 1}), 258.0F);
}

TEST(OracleTwoLevels, AddNodesByTheirLastPlaceInTheTopkAndRanksInsideInTheSameWay) {
  // 1 is lost unless the large ones meet first. Nodes {0, 3}, {1}, {2}.
  const std::vector<float> by_rank = {0, 0x1p24F, -0x1p24F, 1};
  const auto value = [&](const std::vector<std::int64_t>& choices, std::vector<int> nodes) {
    Sum sum = sum_in(2, std::move(nodes));
    sum.config.combine_dtype = DType::f32;
    return sum.value(choices, by_rank);
  };
  EXPECT_EQ(value({1, 2, 3}, {0, 1, 2, 0}), 1.0F);
  EXPECT_EQ(value({1, 3, 2}, {0, 1, 2, 0}), 0.0F);
  EXPECT_EQ(value({1, 3, 2, 0}, {0, 1, 2, 0}), 1.0F);  // rank 0 moves the node of rank 3 to the end
  EXPECT_EQ(value({1, 3, 2, 1}, {0, 1, 2, 0}), 1.0F);  // rank 1's last place is behind: 1 - 2^24 is exact, + 2^24
  EXPECT_EQ(value({1, 3, 2}, {0, 1, 1, 1}), 0.0F);     // within a node: 2^24 + 1 is 2^24
  EXPECT_EQ(value({3, 2, 1}, {0, 1, 1, 1}), 1.0F);
}

TEST(OracleTwoLevels, LeaveRowsOfExpertsAlone) {
  for (const int levels : {1, 2}) {
    Sum sum = sum_in(levels, {0, 1, 1, 0}, Layout::expert_major);
    sum.config.combine_rows = CombineRows::per_expert;
    EXPECT_EQ(sum.value({1, 2, 3}, {0, 256, 1, 1}), 258.0F);
  }
}

TEST(OracleTwoLevels, GiveNodesOfMinusZeroPlusZero) {
  // A bias of -0 shows it: -0 + -0 = -0, -0 + +0 = +0.
  Sum sum = sum_in(2, {0, 1});
  sum.bias = {-0.0F};
  EXPECT_EQ(sum.of({1}, {0, -0.0F}), bytes_of(DType::bf16, {0.0F}));
  sum.group.levels = 1;
  EXPECT_EQ(sum.of({1}, {0, -0.0F}), bytes_of(DType::bf16, {-0.0F}));
}

// Ranks 1 and 2 are a node; there is room for one row on each rank, which rank 0's first token takes.
TEST(OracleTwoLevels, AddNothingForNodesWithoutAKeptRow) {
  ExchangeConfig config = small_config(3, 2);
  config.capacity_rows = 1;
  const auto inputs = std::make_shared<const std::vector<RankInput>>(std::vector<RankInput>{
      rank_input(config, {{1, -1}, {1, 2}, {1, -1}}), rank_input(config, {}), rank_input(config, {})});
  SameForAll rows(DType::bf16, {{1}, {2}, {4}});
  CombineRequest request;
  request.expert_rows = rows.by_rank();
  request.homes.resize(3);
  request.homes[0].bias[0] = bytes_of(DType::bf16, {-0.0F, -0.0F, -0.0F});
  const auto result = combine_at(0, dispatch(config, inputs, {3, {0, 1, 1}, 2}), request);
  EXPECT_EQ(result.tokens, bytes_of(DType::bf16, {2, 4, -0.0F}));  // an empty node's +0 would make the last one +0
  EXPECT_THAT(result.missing, ElementsAre(0, 1, 1));
}

TEST(OracleTwoLevels, ChangeNothingInDispatch) {
  const ExchangeConfig config = small_config(4, 2);
  const auto inputs = std::make_shared<const std::vector<RankInput>>(
      std::vector<RankInput>{rank_input(config, {{0, 3}, {1, 2}}), rank_input(config, {{3, 3}})});
  const auto flat = dispatch(config, inputs);
  const auto deep = dispatch(config, inputs, {2, {0, 1}, 2});
  for (std::size_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(cases::sources(flat[rank]), cases::sources(deep[rank]));
    EXPECT_EQ(flat[rank].counts, deep[rank].counts);
    EXPECT_EQ(flat[rank].topk_idx, deep[rank].topk_idx);
  }
}

}  // namespace
}  // namespace moebus::oracle
