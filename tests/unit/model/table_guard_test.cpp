#include "model/table_guard.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "model/send_plan.hpp"
#include "plan_cases.hpp"

namespace moebus::model {
namespace {

using base::idx;
using cases::Carved;

constexpr std::int32_t kLeast = std::numeric_limits<std::int32_t>::min();
constexpr std::int32_t kMost = std::numeric_limits<std::int32_t>::max();
constexpr int kTokens = 6;

Shape small_shape(Layout layout, int num_ranks = 3) {
  ExchangeConfig config;
  config.num_experts = 6;
  config.num_topk = 2;
  config.hidden = 8;
  config.max_tokens_per_rank = kTokens;
  config.layout = layout;
  config.path = Path::throughput;
  return make_shape(config, num_ranks);
}

std::vector<std::int32_t> guarded(const std::vector<std::int32_t>& told) {
  const Shape shape = small_shape(Layout::rank_major);
  TableGuard guard(shape, static_cast<std::int32_t>(told.size()));
  std::vector<std::int32_t> tokens;
  for (const std::int32_t token : told) tokens.push_back(guard.token(token));
  return tokens;
}

TEST(TableGuard, LeavesAscendingTokensAsTheyAre) {
  for (const auto& tokens :
       std::vector<std::vector<std::int32_t>>{{}, {0}, {5}, {0, 1, 2, 3, 4, 5}, {0, 5}, {1, 3, 4}, {3, 4, 5}}) {
    EXPECT_EQ(guarded(tokens), tokens);
  }
}

TEST(TableGuard, MakesAnyTokensAscendBelowTheMostOfARank) {
  for (const auto& told : std::vector<std::vector<std::int32_t>>{{kMost},
                                                                 {kLeast},
                                                                 {-1, -1, -1},
                                                                 {kMost, kMost, 0},
                                                                 {5, 4, 3, 2, 1, 0},
                                                                 {2, 2},
                                                                 {6, 7, 8},
                                                                 {kMost, kLeast}}) {
    std::int32_t before = -1;
    for (const std::int32_t token : guarded(told)) {
      EXPECT_GT(token, before);
      EXPECT_LT(token, kTokens);
      before = token;
    }
  }
}

TEST(TableGuard, KeepsHomeSlotsBelowThoseOfAToken) {
  const Shape shape = small_shape(Layout::rank_major);
  const TableGuard guard(shape, 1);
  ASSERT_EQ(shape.combine_slots_per_token, 2);
  EXPECT_EQ(guard.home_slot(0), 0);
  EXPECT_EQ(guard.home_slot(1), 1);
  for (const std::int32_t told : {2, -1, kLeast, kMost}) EXPECT_EQ(guard.home_slot(told), 1);
}

TEST(TableGuard, BoundsRowsAndCountsByTheTokensOfARank) {
  const Shape shape = small_shape(Layout::rank_major);
  for (const std::int32_t told : {kLeast, -1}) {
    EXPECT_EQ(guarded_rows(shape, told), 0);
    EXPECT_EQ(guarded_count(shape, told), 0);
  }
  for (const std::int32_t told : {kTokens, kTokens + 1, kMost}) {
    EXPECT_EQ(guarded_rows(shape, told), kTokens);
    EXPECT_EQ(guarded_count(shape, told), kTokens);
  }
  EXPECT_EQ(guarded_count(shape, 3), 3);
}

/// What the last of three ranks plans for its rows if all sources' counts are `count`.
std::vector<std::int32_t> positions_for(const Shape& shape, std::int32_t count) {
  Carved<SendPlan> send(shape);
  const std::vector<std::int32_t> ids{0, 5, 2, 3, 1, 4};
  const auto bad = take_routing(shape, tensor_2d(ids.data(), DType::i32, 3, 2), {}, 3, send.plan);
  EXPECT_FALSE(bad.has_value());
  plan_send(shape, send.plan);
  const std::vector<std::int32_t> counts(idx(shape.num_ranks + shape.num_seats), count);
  const std::vector<const std::int32_t*> counts_of(idx(shape.num_ranks), counts.data());
  const std::vector<std::int64_t> granted(idx(shape.num_ranks), shape.capacity_rows);
  Carved<RegionPlan> region(shape);
  plan_region(shape, send.plan, 2, counts_of, granted, region.plan);
  std::vector<std::int32_t> positions;
  for (int dst = 0; dst < shape.num_ranks; ++dst) {
    const std::int32_t* first = region.plan.positions.data() + idx(dst) * kTokens;
    positions.insert(positions.end(), first, first + send.plan.num_rows_to[idx(dst)]);
  }
  return positions;
}

TEST(PlanRegion, StaysInWhatWasGrantedWhateverCountsSay) {
  for (const Layout layout : {Layout::rank_major, Layout::expert_major, Layout::expert_padded}) {
    const Shape shape = small_shape(layout);
    for (const std::int32_t count : {kLeast, kLeast / 2, -1, kMost / 2, kMost}) {
      for (const std::int32_t position : positions_for(shape, count)) {
        EXPECT_GE(position, -1) << to_string(layout) << ", counts of " << count;
        EXPECT_LT(position, shape.result_rows) << to_string(layout) << ", counts of " << count;
      }
    }
  }
}

}  // namespace
}  // namespace moebus::model
