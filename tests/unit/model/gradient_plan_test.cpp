#include "model/gradient_plan.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace moebus::model {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

constexpr int kTopk = 3;

Shape make_shape_of(Layout layout) {
  ExchangeConfig config;
  config.num_experts = 6;
  config.num_topk = kTopk;
  config.hidden = 8;
  config.max_tokens_per_rank = 4;
  config.layout = layout;
  return make_shape(config, 2);
}

/// Three wire rows, written down by hand: one expert; two choices of one expert and one of another; all dropped.
struct Fixture {
  Shape shape = make_shape_of(Layout::expert_major);
  std::vector<std::int32_t> position{-1, 4, -1, 2, 7, 2, -1, -1, -1};
  std::vector<float> weight{0.0F, 0.5F, 0.0F, 0.25F, 2.0F, 0.125F, 9.0F, 9.0F, 9.0F};
  std::vector<std::byte> memory;
  ReceivePlan plan;
  GradientRows gradients;

  Fixture() {
    plan.position = position;
    plan.weight = weight;
    base::Carver counter;
    gradients.carve(counter, 3 * kTopk);
    memory.resize(counter.used_bytes() + 64);
    base::Carver carver(memory.data());
    gradients.carve(carver, 3 * kTopk);
  }

  template <class T>
  static std::vector<T> list(std::span<T> values, std::size_t num) {
    return {values.begin(), values.begin() + static_cast<std::ptrdiff_t>(num)};
  }
};

TEST(GradientPlan, ListsEachKeptRowOnceWithAllItsChoicesAndTheSumOfTheirWeights) {
  Fixture f;
  list_gradient_rows(f.shape, f.plan, {0, 3}, true, f.gradients);
  EXPECT_THAT(Fixture::list(f.gradients.row, f.gradients.num), ElementsAre(4, 2, 7));
  EXPECT_THAT(Fixture::list(f.gradients.choices, f.gradients.num), ElementsAre(0b010U, 0b101U, 0b010U));
  EXPECT_THAT(Fixture::list(f.gradients.scaled, f.gradients.num_scaled), ElementsAre(4, 2, 7));
  EXPECT_THAT(Fixture::list(f.gradients.factor, f.gradients.num_scaled), ElementsAre(0.5F, 0.375F, 2.0F));
}

TEST(GradientPlan, MultipliesUnweightedRowsOnlyIfSeveralChoicesNameThem) {
  Fixture f;
  list_gradient_rows(f.shape, f.plan, {0, 3}, false, f.gradients);
  EXPECT_THAT(Fixture::list(f.gradients.row, f.gradients.num), ElementsAre(4, 2, 7));
  EXPECT_THAT(Fixture::list(f.gradients.scaled, f.gradients.num_scaled), ElementsAre(2));
  EXPECT_THAT(Fixture::list(f.gradients.factor, f.gradients.num_scaled), ElementsAre(2.0F));
}

TEST(GradientPlan, ListsTheAskedWireRowsOnly) {
  Fixture f;
  list_gradient_rows(f.shape, f.plan, {0, 1}, true, f.gradients);
  EXPECT_THAT(Fixture::list(f.gradients.row, f.gradients.num), ElementsAre(4));
  list_gradient_rows(f.shape, f.plan, {2, 3}, true, f.gradients);
  EXPECT_EQ(f.gradients.num, 0U);
  EXPECT_EQ(f.gradients.num_scaled, 0U);
}

TEST(GradientPlan, WritesTheLaneAtTheChoicesOfARow) {
  Fixture f;
  list_gradient_rows(f.shape, f.plan, {1, 2}, true, f.gradients);
  f.gradients.dot[0] = 3.0F;
  f.gradients.dot[1] = 5.0F;
  std::vector<float> lane(8 * kTopk, -1.0F);
  write_gradient_lane(f.shape, f.gradients, lane.data());
  EXPECT_THAT(std::vector<float>(lane.begin() + 6, lane.begin() + 9), ElementsAre(3.0F, 0.0F, 3.0F));
  EXPECT_THAT(std::vector<float>(lane.begin() + 21, lane.begin() + 24), ElementsAre(0.0F, 5.0F, 0.0F));
  EXPECT_THAT(std::vector<float>(lane.begin() + 9, lane.begin() + 21), Each(-1.0F));
}

TEST(GradientPlan, GivesTheLaneARowForEachRowOfTheResult) {
  ReceivePlan plan;
  plan.num_rows = 5;
  EXPECT_EQ(lane_rows(make_shape_of(Layout::expert_major), plan), 5);
  // Three local experts with room for two ranks of four tokens each.
  EXPECT_EQ(lane_rows(make_shape_of(Layout::expert_padded), plan), 3 * 8);
}

TEST(GradientPlan, TakesOutTermsThatAnOutputHasAlreadyAndNoOthers) {
  const std::vector<std::byte> rows(4);
  const std::byte* const a = rows.data();
  const std::byte* const b = rows.data() + 1;
  std::vector<std::int32_t> first{0, 3, 3, 5};
  std::vector<const std::byte*> term{a, b, a, a, b};
  SumTerms terms{first, term, {}, {}};
  drop_repeated_terms(terms, 3);
  EXPECT_THAT(term, ElementsAre(a, b, nullptr, a, b));
}

}  // namespace
}  // namespace moebus::model
