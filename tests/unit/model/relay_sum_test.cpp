#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "combine_cases.hpp"

namespace moebus::model {
namespace {

using base::idx;
using cases::Terms;

constexpr int kTopk = 4;
constexpr std::int64_t kSlotTokens = 8;
constexpr std::int64_t kFirstToken = 16;

/// A gateway of a node of three that serves one source: token 17 has rows of all three ranks, 19 of one, 22 of two.
struct Gateway {
  explicit Gateway(bool has_lane = true, std::int64_t capacity_rows = 0) {
    ExchangeConfig config;
    config.num_experts = 8;
    config.num_topk = kTopk;
    config.hidden = 8;
    config.max_tokens_per_rank = 32;
    config.combine_lane = has_lane;
    config.capacity_rows = capacity_rows;
    const std::vector<int> node_of{0, 1, 1, 1};
    shape = make_shape(config, GroupFacts{Topology::of_nodes(node_of), 2, 1});
    plan.served = {0};
    plan.first_row[1] = 3;
    plan.token = token;
    plan.home_slot = home_slot;
    plan.rank_set = rank_set;
    memory.assign(3 * idx(kSlotTokens) * shape.combine_row.stride_bytes, std::byte{0xEE});
    output.assign(8 * shape.combine_row.stride_bytes, std::byte{0xDD});
  }

  HomeSlots slots() { return {memory.data(), kSlotTokens, kFirstToken}; }

  std::byte* slot(std::int64_t place, std::int64_t of_token) {
    return memory.data() + idx(place * kSlotTokens + of_token - kFirstToken) * shape.combine_row.stride_bytes;
  }

  std::byte* row(std::size_t i) { return output.data() + i * shape.combine_row.stride_bytes; }

  /// A rank's tail: the kept choices, and a lane with `first`, `first` + 1, ... in all places, kept or not.
  void put_tail(std::int64_t place, std::int64_t of_token, std::uint64_t mask, float first = 0.0F) {
    for (std::size_t k = 0; k < kTopk; ++k) {
      const float value = first + static_cast<float>(k);
      const std::size_t offset = shape.combine_row.lane_offset_bytes + k * sizeof(float);
      if (shape.combine_row.lane_bytes > 0) std::memcpy(slot(place, of_token) + offset, &value, sizeof(value));
    }
    std::memcpy(slot(place, of_token) + shape.combine_row.mask_offset_bytes, &mask, sizeof(mask));
  }

  void put_all_tails() {
    put_tail(0, 17, 0b0001, 10.0F);
    put_tail(1, 17, 0, 20.0F);
    put_tail(2, 17, 0b1100, 30.0F);
    put_tail(0, 19, 0, 40.0F);
    put_tail(0, 22, 0b0010, 50.0F);
    put_tail(1, 22, 0b0100, 60.0F);
  }

  std::uint64_t mask_of(std::size_t i) {
    std::uint64_t mask;
    std::memcpy(&mask, row(i) + shape.combine_row.mask_offset_bytes, sizeof(mask));
    return mask;
  }

  std::vector<float> lane_of(std::size_t i) {
    std::vector<float> lane(kTopk);
    std::memcpy(lane.data(), row(i) + shape.combine_row.lane_offset_bytes, kTopk * sizeof(float));
    return lane;
  }

  Shape shape;
  RelayPlan plan;
  std::vector<std::int32_t> token{17, 19, 22};
  std::vector<std::int32_t> home_slot{1, 0, 2};
  std::vector<std::uint64_t> rank_set{0b1110, 0b0100, 0b1010};
  std::vector<std::byte> memory;  // [place, token]
  std::vector<std::byte> output;  // rows
};

TEST(RelaySlots, LieAtTheGatewaysPlaceAmongTheTokensHops) {
  const Gateway g;
  std::vector<std::int32_t> slot(3);
  list_relay_slots(g.plan, {0, 3}, HomeSlots{nullptr, 100, 10}, slot);
  EXPECT_THAT(slot, testing::ElementsAre(107, 9, 212));
  list_relay_slots(g.plan, {2, 3}, HomeSlots{nullptr, 100, 20}, slot);
  EXPECT_EQ(slot[0], 202);
}

TEST(RelaySums, AddTheRanksRowsInTheOrderOfTheirSlots) {
  Gateway g;
  g.put_all_tails();
  g.put_tail(1, 17, 0b0010);
  g.put_tail(0, 19, 0b1000);
  Terms terms(3, 3);
  SumTerms view = terms.view();
  list_relay_sums(g.shape, g.plan, {0, 3}, g.slots(), g.output.data(), {}, view);
  EXPECT_THAT(terms.first, testing::ElementsAre(0, 3, 4, 6));
  EXPECT_THAT(
      std::span(terms.term).first(6),
      testing::ElementsAre(g.slot(0, 17), g.slot(1, 17), g.slot(2, 17), g.slot(0, 19), g.slot(0, 22), g.slot(1, 22)));
  EXPECT_THAT(terms.output_row, testing::ElementsAre(g.row(0), g.row(1), g.row(2)));
}

TEST(RelaySums, LeaveOutRowsWithoutAKeptChoice) {
  Gateway g;
  g.put_all_tails();
  Terms terms(3, 3);
  SumTerms view = terms.view();
  const std::vector<std::int32_t> at{5, 0, 3};
  list_relay_sums(g.shape, g.plan, {0, 3}, g.slots(), g.output.data(), at, view);
  EXPECT_THAT(terms.first, testing::ElementsAre(0, 2, 2, 4));
  EXPECT_THAT(std::span(terms.term).first(4),
              testing::ElementsAre(g.slot(0, 17), g.slot(2, 17), g.slot(0, 22), g.slot(1, 22)));
  EXPECT_THAT(terms.output_row, testing::ElementsAre(g.row(5), g.row(0), g.row(3)));
}

TEST(RelaySums, AddEveryRowWhereNothingCanBeMissing) {
  Gateway g(false);
  ASSERT_EQ(g.shape.combine_row.mask_bytes, 0U);
  std::fill(g.memory.begin(), g.memory.end(), std::byte{0});
  Terms terms(2, 3);
  SumTerms view = terms.view();
  list_relay_sums(g.shape, g.plan, {1, 3}, g.slots(), g.output.data(), {}, view);
  EXPECT_THAT(std::span(terms.first).first(3), testing::ElementsAre(0, 1, 3));
  EXPECT_THAT(std::span(terms.term).first(3), testing::ElementsAre(g.slot(0, 19), g.slot(0, 22), g.slot(1, 22)));
}

TEST(RelayTails, JoinMasksAndTakeEachLaneValueFromTheRankThatKeptTheChoice) {
  Gateway g;
  g.put_all_tails();
  const std::vector<std::int32_t> at{2, 4, 0};
  write_relay_tails(g.shape, g.plan, {0, 3}, true, g.slots(), g.output.data(), at);
  EXPECT_EQ(g.mask_of(2), 0b1101U);
  EXPECT_EQ(g.mask_of(4), 0U);
  EXPECT_EQ(g.mask_of(0), 0b0110U);
  EXPECT_THAT(g.lane_of(2), testing::ElementsAre(10.0F, 0.0F, 32.0F, 33.0F));
  EXPECT_THAT(g.lane_of(4), testing::ElementsAre(0.0F, 0.0F, 0.0F, 0.0F));
  EXPECT_THAT(g.lane_of(0), testing::ElementsAre(0.0F, 51.0F, 62.0F, 0.0F));
}

TEST(RelayTails, LeaveTheLaneAloneWhereNoneCame) {
  Gateway g;
  g.put_all_tails();
  const std::vector<std::byte> before = g.output;
  write_relay_tails(g.shape, g.plan, {0, 1}, false, g.slots(), g.output.data(), {});
  EXPECT_EQ(g.mask_of(0), 0b1101U);
  EXPECT_EQ(std::memcmp(g.row(0), before.data(), g.shape.combine_row.mask_offset_bytes), 0);
}

TEST(RelayTails, AreMasksAloneWithoutALaneInTheFormat) {
  Gateway g(false, 3);
  g.put_all_tails();
  write_relay_tails(g.shape, g.plan, {2, 3}, false, g.slots(), g.output.data(), {});
  EXPECT_EQ(g.mask_of(0), 0b0110U);
}

TEST(RelayTails, AreNothingWithoutMaskAndLane) {
  Gateway g(false);
  const std::vector<std::byte> before = g.output;
  write_relay_tails(g.shape, g.plan, {0, 3}, false, g.slots(), g.output.data(), {});
  EXPECT_EQ(g.output, before);
}

}  // namespace
}  // namespace moebus::model
