#include "oracle/bytes.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cases.hpp"

namespace moebus::oracle {
namespace {

using cases::rank_input;
using cases::small_config;
using testing::ElementsAre;

// Six ranks with two experts each: nodes {0, 2, 4} and {1, 3, 5}. Only rank 2 has tokens; its gateway over there is 3.
std::vector<DispatchExpectation> from_rank_two(const ExchangeConfig& config, const cases::Ids& ids, int levels = 2) {
  std::vector<RankInput> inputs(6, rank_input(config, {}));
  inputs[2] = rank_input(config, ids);
  return dispatch(config, std::make_shared<const std::vector<RankInput>>(inputs), {6, {0, 1, 0, 1, 0, 1}, levels});
}

std::vector<std::uint64_t> from(const Traffic& traffic, int src) {
  std::vector<std::uint64_t> list;
  for (int dst = 0; dst < traffic.num_ranks; ++dst) list.push_back(traffic.rows_of(src, dst));
  return list;
}

std::vector<std::uint64_t> towards(const Traffic& traffic, int dst) {
  std::vector<std::uint64_t> list;
  for (int src = 0; src < traffic.num_ranks; ++src) list.push_back(traffic.rows_of(src, dst));
  return list;
}

std::uint64_t all_rows(const Traffic& traffic) {
  std::uint64_t sum = 0;
  for (const std::uint64_t rows : traffic.rows) sum += rows;
  return sum;
}

// Experts of rank r: 2r, 2r + 1. First token: rank 2 itself, rank 4 twice, ranks 1 and 5; second: ranks 3 and 5.
const cases::Ids kTokens = {{4, 8, 9, 2, 10, 11}, {6, 6, 11, -1, -1, -1}};

TEST(LeastTraffic, IsOneRowPerTokenAndNodeWithGateways) {
  const auto dispatched = from_rank_two(small_config(12, 6), kTokens);
  ASSERT_TRUE(has_gateways(dispatched.front()));
  const Traffic out = least_dispatch_traffic(dispatched);
  EXPECT_THAT(from(out, 2), ElementsAre(0, 0, 1, 2, 1, 0));
  EXPECT_THAT(from(out, 3), ElementsAre(0, 1, 0, 0, 0, 2));
  EXPECT_EQ(all_rows(out), 7U);
  const Traffic home = least_combine_traffic(dispatched, false);
  EXPECT_THAT(towards(home, 2), ElementsAre(0, 0, 1, 2, 1, 0));
  EXPECT_THAT(towards(home, 3), ElementsAre(0, 1, 0, 0, 0, 2));
  EXPECT_EQ(all_rows(home), 7U);
}

TEST(LeastTraffic, IsOneRowPerTokenAndRankWithoutGateways) {
  ExchangeConfig config = small_config(12, 6);
  config.inter_node = InterNode::direct;
  for (const auto& dispatched : {from_rank_two(config, kTokens), from_rank_two(small_config(12, 6), kTokens, 1)}) {
    EXPECT_FALSE(has_gateways(dispatched.front()));
    const Traffic out = least_dispatch_traffic(dispatched);
    EXPECT_THAT(from(out, 2), ElementsAre(0, 1, 1, 1, 1, 2));
    EXPECT_EQ(all_rows(out), 6U);
    EXPECT_THAT(towards(least_combine_traffic(dispatched, false), 2), ElementsAre(0, 1, 1, 1, 1, 2));
  }
}

TEST(LeastTraffic, GoesStraightHomeForEachExpertIfRowsAreNotSummed) {
  ExchangeConfig config = small_config(12, 6);
  config.layout = Layout::expert_major;
  config.combine_rows = CombineRows::per_expert;
  const auto dispatched = from_rank_two(config, kTokens);
  EXPECT_THAT(from(least_dispatch_traffic(dispatched), 3), ElementsAre(0, 1, 0, 0, 0, 2));
  const Traffic home = least_combine_traffic(dispatched, false);
  EXPECT_THAT(towards(home, 2), ElementsAre(0, 1, 1, 1, 2, 3));
  EXPECT_EQ(all_rows(home), 8U);
}

TEST(LeastTraffic, CountsPayloadScalesAndSidesOverLinksOnly) {
  ExchangeConfig config = small_config(12, 6, 200);
  config.cast = Cast::fp8;
  config.scale_format = ScaleFormat::f32;
  config.side_bytes = {3, 1};
  config.combine_hidden = 7;
  const auto dispatched = from_rank_two(config, kTokens);
  const Traffic out = least_dispatch_traffic(dispatched);
  EXPECT_EQ(out.bytes_of(2, 3), 2U * (200 + 2 * 4 + 3 + 1));
  EXPECT_EQ(out.bytes_of(2, 2), 0U);
  EXPECT_EQ(least_combine_traffic(dispatched, false).bytes_of(3, 2), 2U * 14);
  EXPECT_EQ(least_combine_traffic(dispatched, true).bytes_of(3, 2), 2U * (14 + 24));
}

TEST(LeastTraffic, AddsUpOverCalls) {
  const auto dispatched = from_rank_two(small_config(12, 6), kTokens);
  Traffic sum;
  for (int call = 0; call < 3; ++call) sum += least_dispatch_traffic(dispatched);
  EXPECT_THAT(from(sum, 2), ElementsAre(0, 0, 3, 6, 3, 0));
  EXPECT_EQ(sum.bytes_of(2, 3), 6U * 2);
}

TEST(LeastTraffic, FollowsTheSeats) {
  ExchangeConfig config = small_config(1, 1);
  config.seats_per_rank = 1;
  const auto inputs = std::make_shared<const std::vector<RankInput>>(3, rank_input(config, {{0}, {0}}));
  const Traffic out = least_dispatch_traffic(dispatch(config, inputs, GroupShape::one_node(3), {{0, -1, 0}}));
  EXPECT_THAT(from(out, 0), ElementsAre(2, 0, 0));
  EXPECT_THAT(from(out, 1), ElementsAre(1, 0, 1));
  EXPECT_THAT(from(out, 2), ElementsAre(0, 0, 2));
}

}  // namespace
}  // namespace moebus::oracle
