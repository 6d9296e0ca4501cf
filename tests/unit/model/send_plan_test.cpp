#include "model/send_plan.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "plan_cases.hpp"

namespace moebus::model {
namespace {

using base::idx;
using cases::Carved;
using cases::Case;
using cases::Plans;
using testing::ElementsAre;

Shape shape_of(int num_experts, int num_ranks, int num_topk, int max_tokens = 4) {
  ExchangeConfig config;
  config.num_experts = num_experts;
  config.num_topk = num_topk;
  config.hidden = 1;
  config.max_tokens_per_rank = max_tokens;
  return make_shape(config, num_ranks);
}

template <class Id>
std::optional<BadId> take(const Shape& shape, const std::vector<Id>& ids, SendPlan& plan) {
  const auto tokens = static_cast<std::int32_t>(ids.size()) / shape.config.num_topk;
  const DType dtype = sizeof(Id) == 8 ? DType::i64 : DType::i32;
  return take_routing(shape, tensor_2d(ids.data(), dtype, tokens, shape.config.num_topk), {}, tokens, plan);
}

std::vector<int> ranks_of_token(const Shape& shape, const SendPlan& plan, int token) {
  const auto ranks = plan.ranks.subspan(idx(token * max_ranks_per_token(shape)), plan.num_ranks[idx(token)]);
  return {ranks.begin(), ranks.end()};
}

TEST(SendPlan, OrdersRanksByThePositionOfTheirLastChosenExpert) {
  const Shape shape = shape_of(8, 4, 4);  // two experts a rank
  Carved<SendPlan> send(shape);
  ASSERT_FALSE(take<std::int32_t>(shape, {6, 0, 3, 7, /**/ 0, 2, 1, -1}, send.plan));
  plan_send(shape, send.plan);
  EXPECT_THAT(ranks_of_token(shape, send.plan, 0), ElementsAre(0, 1, 3));
  EXPECT_THAT(ranks_of_token(shape, send.plan, 1), ElementsAre(1, 0));
  EXPECT_THAT(send.plan.tokens_for(shape, 0), ElementsAre(0, 1));
  EXPECT_THAT(send.plan.tokens_for(shape, 1), ElementsAre(0, 1));
  EXPECT_THAT(send.plan.tokens_for(shape, 2), ElementsAre());
  EXPECT_THAT(send.plan.tokens_for(shape, 3), ElementsAre(0));
}

TEST(SendPlan, SendsATokenOnceToARankHoweverOftenItsExpertsAreRepeated) {
  const Shape shape = shape_of(4, 2, 4, 2);
  Carved<SendPlan> send(shape);
  ASSERT_FALSE(take<std::int32_t>(shape, {1, 1, 1, 0, /**/ 1, 1, 0, 0}, send.plan));
  plan_send(shape, send.plan);
  EXPECT_THAT(send.plan.tokens_for(shape, 0), ElementsAre(0, 1));
  EXPECT_THAT(send.plan.tokens_for(shape, 1), ElementsAre());
  EXPECT_THAT(ranks_of_token(shape, send.plan, 1), ElementsAre(0));
}

TEST(SendPlan, SendsAFullyMaskedTokenNowhere) {
  const Shape shape = shape_of(4, 2, 2);
  Carved<SendPlan> send(shape);
  ASSERT_FALSE(take<std::int32_t>(shape, {-1, -1, /**/ -1, 3}, send.plan));
  plan_send(shape, send.plan);
  EXPECT_EQ(send.plan.num_ranks[0], 0);
  EXPECT_THAT(send.plan.tokens_for(shape, 0), ElementsAre());
  EXPECT_THAT(send.plan.tokens_for(shape, 1), ElementsAre(1));
}

TEST(SendPlan, ForgetsTheCallBefore) {
  const Shape shape = shape_of(4, 2, 2);
  Carved<SendPlan> send(shape);
  ASSERT_FALSE(take<std::int32_t>(shape, {0, 3, /**/ 1, 2}, send.plan));
  plan_send(shape, send.plan);
  ASSERT_FALSE(take<std::int32_t>(shape, {}, send.plan));
  plan_send(shape, send.plan);
  EXPECT_THAT(send.plan.tokens_for(shape, 0), ElementsAre());
  EXPECT_THAT(send.plan.tokens_for(shape, 1), ElementsAre());
}

TEST(SendPlan, AgreesWithTheReferenceForRandomRouting) {
  for (unsigned seed = 1; seed <= 300; ++seed) {
    const Case c = cases::random_case(seed, Layout::rank_major);
    const Plans plans(c);
    for (int rank = 0; rank < c.num_ranks; ++rank) {
      const SendPlan& plan = plans.send[idx(rank)].plan;
      std::vector<std::vector<std::int32_t>> tokens_for(idx(c.num_ranks));
      for (int token = 0; token < c.choices[idx(rank)].num_tokens; ++token) {
        const std::vector<int> ranks = cases::ranks_of(c, rank, token);
        ASSERT_EQ(ranks_of_token(plans.shape, plan, token), ranks)
            << c.text() << ", rank " << rank << ", token " << token;
        for (const int dst : ranks) tokens_for[idx(dst)].push_back(token);
      }
      for (int dst = 0; dst < c.num_ranks; ++dst) {
        ASSERT_THAT(plan.tokens_for(plans.shape, dst), testing::ElementsAreArray(tokens_for[idx(dst)]))
            << c.text() << ", rank " << rank << " to " << dst;
      }
    }
  }
}

TEST(SendPlan, CountsRowsPerExpertWithRepeatedExpertsOnce) {
  for (unsigned seed = 1; seed <= 100; ++seed) {
    const Case c = cases::random_case(seed, Layout::expert_major);
    const Plans plans(c);
    for (int rank = 0; rank < c.num_ranks; ++rank) {
      const std::vector<std::int32_t>& counts = plans.counts[idx(rank)];
      for (int dst = 0; dst < c.num_ranks; ++dst) {
        ASSERT_EQ(counts[idx(dst)], plans.send[idx(rank)].plan.num_rows_to[idx(dst)]) << c.text();
      }
      for (int expert = 0; expert < c.config.num_experts; ++expert) {
        const auto rows = cases::rows_of_expert(c, expert);
        const auto own = std::count_if(rows.begin(), rows.end(), [&](const auto& row) { return row.src == rank; });
        ASSERT_EQ(counts[idx(c.num_ranks + expert)], own) << c.text() << ", rank " << rank << ", expert " << expert;
      }
    }
  }
}

TEST(Routing, IsTakenFromBothIdTypesAlike) {
  const Shape shape = shape_of(6, 3, 3);
  Carved<SendPlan> narrow(shape);
  Carved<SendPlan> wide(shape);
  ASSERT_FALSE(take<std::int32_t>(shape, {5, -1, 0, 2, 2, 4}, narrow.plan));
  ASSERT_FALSE(take<std::int64_t>(shape, {5, -1, 0, 2, 2, 4}, wide.plan));
  EXPECT_THAT(narrow.plan.ids.first(6), ElementsAre(5, -1, 0, 2, 2, 4));
  EXPECT_THAT(wide.plan.ids.first(6), ElementsAre(5, -1, 0, 2, 2, 4));
  EXPECT_EQ(wide.plan.num_tokens, 2);
  EXPECT_FALSE(wide.plan.has_weights);
}

TEST(Routing, KeepsWeightsWhereTheyAreGiven) {
  const Shape shape = shape_of(6, 3, 2);
  Carved<SendPlan> send(shape);
  const std::vector<std::int32_t> ids{0, 1};
  const std::vector<float> weights{0.5F, -2.0F};
  ASSERT_FALSE(take_routing(
      shape, tensor_2d(ids.data(), DType::i32, 1, 2), tensor_2d(weights.data(), DType::f32, 1, 2), 1, send.plan));
  EXPECT_TRUE(send.plan.has_weights);
  EXPECT_THAT(send.plan.weights.first(2), ElementsAre(0.5F, -2.0F));
}

struct WrongId {
  const char* name;
  std::int64_t value;
  bool is_wide;
};

void PrintTo(const WrongId& id, std::ostream* out) { *out << id.name; }

class RoutingError : public testing::TestWithParam<WrongId> {};

TEST_P(RoutingError, NamesTokenChoiceAndValueOfTheFirstBadId) {
  const Shape shape = shape_of(10, 4, 3);
  Carved<SendPlan> send(shape);
  std::vector<std::int64_t> ids{0, 9, -1, 3, 4, GetParam().value, -7, 1, 1};  // token 1, choice 2; token 2 is worse
  std::optional<BadId> bad;
  if (GetParam().is_wide) {
    bad = take<std::int64_t>(shape, ids, send.plan);
  } else {
    bad = take<std::int32_t>(shape, std::vector<std::int32_t>(ids.begin(), ids.end()), send.plan);
  }
  ASSERT_TRUE(bad);
  EXPECT_EQ(bad->token, 1);
  EXPECT_EQ(bad->choice, 2);
  EXPECT_EQ(bad->value, GetParam().value);
}

INSTANTIATE_TEST_SUITE_P(Values,
                         RoutingError,
                         testing::Values(WrongId{"NumExpertsNarrow", 10, false},
                                         WrongId{"NumExpertsWide", 10, true},
                                         WrongId{"MinusTwoNarrow", -2, false},
                                         WrongId{"MinusTwoWide", -2, true},
                                         WrongId{"SmallestNarrow", INT32_MIN, false},
                                         WrongId{"BeyondThirtyTwoBits", std::int64_t{1} << 40, true},
                                         WrongId{"WrapsToMinusOne", 0xFFFFFFFFLL, true},
                                         WrongId{"WrapsToAnExpert", (std::int64_t{1} << 32) + 3, true},
                                         WrongId{"LargestWide", INT64_MAX, true},
                                         WrongId{"SmallestWide", INT64_MIN, true}),
                         [](const auto& id) { return std::string(id.param.name); });

TEST(Tables, HoldTokenSlotIdsAndWeightsOfTheirDestinationsTokens) {
  Case c;
  c.config.num_experts = 4;
  c.config.num_topk = 2;
  c.config.hidden = 1;
  c.config.max_tokens_per_rank = 3;
  c.num_ranks = 2;
  c.choices = {{3, {3, 0, -1, -1, 1, 2}, {0.5F, 0.25F, 0.0F, 0.0F, 2.0F, 4.0F}}, {}};
  const Plans plans(c);
  // Rank 1 gets token 0 (its second rank is 0, added last: slot 0 is rank 1) and token 2 (slot 1).
  std::int32_t row[4];
  std::memcpy(row, plans.tables[1].data(), sizeof(row));
  EXPECT_THAT(row, ElementsAre(0, 0, 3, 0));
  std::memcpy(row, plans.tables[1].data() + plans.format.stride_bytes, sizeof(row));
  EXPECT_THAT(row, ElementsAre(2, 1, 1, 2));
  float weights[2];
  std::memcpy(
      weights, plans.tables[1].data() + plans.format.stride_bytes + plans.format.weights_offset_bytes, sizeof(weights));
  EXPECT_THAT(weights, ElementsAre(2.0F, 4.0F));
}

TEST(Tables, AreWrittenNowhereBeyondTheirRows) {
  for (unsigned seed = 1; seed <= 100; ++seed) {
    const Case c = cases::random_case(seed, Layout::rank_major);
    const Plans plans(c);
    for (int dst = 0; dst < c.num_ranks; ++dst) {
      for (int src = 0; src < c.num_ranks; ++src) {
        const std::size_t stride = plans.format.stride_bytes;
        const std::size_t table = idx(src) * idx(c.config.max_tokens_per_rank) * stride;
        const std::size_t used = idx(plans.send[idx(src)].plan.num_rows_to[idx(dst)]) * stride;
        for (std::size_t at = table + used; at < table + idx(c.config.max_tokens_per_rank) * stride; ++at) {
          ASSERT_EQ(plans.tables[idx(dst)][at], std::byte{0xEE})
              << c.text() << ", " << src << " to " << dst << ", byte " << at;
        }
      }
    }
  }
}

TEST(RegionPlan, KeepsWithinEachDestinationsOwnGrant) {
  Case c;
  c.config.num_experts = 2;
  c.config.num_topk = 2;
  c.config.hidden = 1;
  c.config.max_tokens_per_rank = 3;
  c.config.path = Path::throughput;
  c.num_ranks = 2;
  c.choices = {{2, {0, 1, 0, 1}, {}}, {3, {0, 1, 1, -1, 0, 1}, {}}};
  const Plans plans(c);
  const std::vector<const std::int32_t*> counts{plans.counts[0].data(), plans.counts[1].data()};
  const std::vector<std::int64_t> granted{3, 4};
  Carved<RegionPlan> region(plans.shape);
  plan_region(plans.shape, plans.send[1].plan, 1, counts, granted, region.plan);
  // Rank 0 sends two rows to each; then come tokens 0 and 2 for rank 0, and 0, 1, 2 for rank 1.
  EXPECT_THAT(region.plan.positions.first(2), ElementsAre(2, -1));
  EXPECT_THAT(region.plan.positions.subspan(3, 3), ElementsAre(2, 3, -1));
}

}  // namespace
}  // namespace moebus::model
