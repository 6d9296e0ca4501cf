#include "model/send_plan.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <map>
#include <set>

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

std::vector<int> hops_of_token(const Shape& shape, const SendPlan& plan, int token) {
  const auto hops = plan.hops.subspan(idx(token * max_hops_per_token(shape)), plan.num_hops[idx(token)]);
  return {hops.begin(), hops.end()};
}

TEST(SendPlan, OrdersRanksByThePositionOfTheirLastChosenExpert) {
  const Shape shape = shape_of(8, 4, 4);  // two experts a rank
  Carved<SendPlan> send(shape);
  ASSERT_FALSE(take<std::int32_t>(shape, {6, 0, 3, 7, /**/ 0, 2, 1, -1}, send.plan));
  plan_send(shape, send.plan);
  EXPECT_THAT(hops_of_token(shape, send.plan, 0), ElementsAre(0, 1, 3));
  EXPECT_THAT(hops_of_token(shape, send.plan, 1), ElementsAre(1, 0));
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
  EXPECT_THAT(hops_of_token(shape, send.plan, 1), ElementsAre(0));
}

TEST(SendPlan, SendsAFullyMaskedTokenNowhere) {
  const Shape shape = shape_of(4, 2, 2);
  Carved<SendPlan> send(shape);
  ASSERT_FALSE(take<std::int32_t>(shape, {-1, -1, /**/ -1, 3}, send.plan));
  plan_send(shape, send.plan);
  EXPECT_EQ(send.plan.num_hops[0], 0);
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

/// Cases on one node and on several.
Case any_case(unsigned seed, Layout layout) {
  return seed % 2 == 0 ? cases::random_case(seed, layout) : cases::random_node_case(seed, layout);
}

TEST(SendPlan, AgreesWithTheReferenceForRandomRouting) {
  for (unsigned seed = 1; seed <= 400; ++seed) {
    const Case c = any_case(seed, Layout::rank_major);
    const Plans plans(c);
    for (int rank = 0; rank < c.num_ranks; ++rank) {
      const SendPlan& plan = plans.send[idx(rank)].plan;
      std::vector<std::vector<std::int32_t>> tokens_for(idx(c.num_ranks));
      for (int token = 0; token < c.choices[idx(rank)].num_tokens; ++token) {
        const std::vector<int> hops = cases::hops_of(c, rank, token);
        ASSERT_EQ(hops_of_token(plans.shape, plan, token), hops)
            << c.text() << ", rank " << rank << ", token " << token;
        for (const int dst : hops) tokens_for[idx(dst)].push_back(token);
      }
      for (int dst = 0; dst < c.num_ranks; ++dst) {
        ASSERT_THAT(plan.tokens_for(plans.shape, dst), testing::ElementsAreArray(tokens_for[idx(dst)]))
            << c.text() << ", rank " << rank << " to " << dst;
      }
    }
  }
}

TEST(SendPlan, CrossesToEveryOtherNodeOncePerTokenAndOnlyToItsGateway) {
  for (unsigned seed = 1; seed <= 200; ++seed) {
    Case c = cases::random_node_case(seed, Layout::rank_major);
    c.config.inter_node = InterNode::gateway;
    const Plans plans(c);
    for (int rank = 0; rank < c.num_ranks; ++rank) {
      for (int token = 0; token < c.choices[idx(rank)].num_tokens; ++token) {
        std::map<int, std::set<int>> owners;  // by node
        for (const int owner : cases::ranks_of(c, rank, token)) owners[c.node_of[idx(owner)]].insert(owner);
        std::map<int, std::set<int>> hops;
        for (const int hop : hops_of_token(plans.shape, plans.send[idx(rank)].plan, token)) {
          ASSERT_TRUE(hops[c.node_of[idx(hop)]].insert(hop).second) << c.text() << ", rank " << rank;
        }
        const int home = c.node_of[idx(rank)];
        ASSERT_EQ(hops[home], owners[home]) << c.text() << ", rank " << rank << ", token " << token;
        for (const auto& [node, ranks] : owners) {
          if (node == home) continue;
          const std::set<int> gateway{cases::hop_of(c, rank, *ranks.begin())};
          ASSERT_EQ(hops[node], gateway) << c.text() << ", rank " << rank << ", token " << token;
        }
        std::erase_if(hops, [](const auto& node) { return node.second.empty(); });
        std::erase_if(owners, [](const auto& node) { return node.second.empty(); });
        ASSERT_EQ(hops.size(), owners.size()) << c.text() << ", rank " << rank << ", token " << token;
      }
    }
  }
}

TEST(SendPlan, CountsRowsPerOwnerAndPerSeatWhateverTheHopAndRepeatedSeatsOnce) {
  for (unsigned seed = 1; seed <= 160; ++seed) {
    const Case c = any_case(seed, Layout::expert_major);
    const Plans plans(c);
    for (int rank = 0; rank < c.num_ranks; ++rank) {
      const std::vector<std::int32_t>& counts = plans.counts[idx(rank)];
      ASSERT_EQ(counts.size(), idx(c.num_ranks + cases::num_seats(c)));
      const auto own = [&](const std::vector<cases::WireRow>& rows) {
        return std::count_if(rows.begin(), rows.end(), [&](const auto& row) { return row.src == rank; });
      };
      for (int dst = 0; dst < c.num_ranks; ++dst) {
        ASSERT_EQ(counts[idx(dst)], own(cases::wire_rows(c, dst))) << c.text() << ", rank " << rank << " to " << dst;
      }
      for (int seat = 0; seat < cases::num_seats(c); ++seat) {
        ASSERT_EQ(counts[idx(c.num_ranks + seat)], own(cases::rows_of_seat(c, seat)))
            << c.text() << ", rank " << rank << ", seat " << seat;
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

/// Three ranks of two seats; expert 0 sits on all, expert 1 on ranks 0 and 2, expert 2 on rank 1 alone.
Shape replicated_shape(int rank) {
  ExchangeConfig config;
  config.num_experts = 3;
  config.num_topk = 2;
  config.hidden = 1;
  config.max_tokens_per_rank = 4;
  config.seats_per_rank = 2;
  GroupFacts group = GroupFacts::one_node(3);
  group.rank = rank;
  const Placement placement{{0, 1, 2, 0, 1, 0}};
  return make_shape(config, group, &placement);
}

TEST(Routing, NamesSeatsOwnReplicasFirstElseInTurn) {
  const std::vector<std::int32_t> ids{0, 1, -1, 2, 1, 1, 1, 0};
  const Shape at_two = replicated_shape(2);
  Carved<SendPlan> own(at_two);
  ASSERT_FALSE(take<std::int32_t>(at_two, ids, own.plan));
  EXPECT_THAT(own.plan.ids.first(8), ElementsAre(5, 4, -1, 2, 4, 4, 4, 5));
  // Expert 1 (seats 0+1 and 4) is not on rank 1: its tokens 0, 2, 3 take turns, beginning at the second seat.
  const Shape at_one = replicated_shape(1);
  Carved<SendPlan> turns(at_one);
  ASSERT_FALSE(take<std::int32_t>(at_one, ids, turns.plan));
  EXPECT_THAT(turns.plan.ids.first(8), ElementsAre(3, 4, -1, 2, 4, 4, 1, 3));
}

TEST(Routing, AsksTheCallersRuleAboutExpertsWithSeveralSeatsOnly) {
  const Shape shape = replicated_shape(1);
  Carved<SendPlan> send(shape);
  const std::vector<std::int32_t> ids{0, 1, -1, 2};
  std::vector<std::vector<std::int64_t>> asked;
  const ReplicaRule rule = [&](const ReplicaChoice& choice) {
    asked.push_back({choice.src_rank, choice.token, choice.choice, choice.expert});
    asked.back().insert(asked.back().end(), choice.ranks.begin(), choice.ranks.end());
    return 0;
  };
  ASSERT_FALSE(take_routing(shape, tensor_2d(ids.data(), DType::i32, 2, 2), {}, 2, send.plan, rule));
  EXPECT_THAT(asked, ElementsAre(ElementsAre(1, 0, 0, 0, 0, 1, 2), ElementsAre(1, 0, 1, 1, 0, 2)));
  EXPECT_THAT(send.plan.ids.first(4), ElementsAre(0, 1, -1, 2));
}

TEST(Routing, TakesARulesAnswerModuloTheNumberOfReplicas) {
  const Shape shape = replicated_shape(1);
  const std::vector<std::int32_t> ids{0, 1};
  const std::map<int, std::vector<std::int32_t>> seats{
      {-1, {5, 4}}, {4, {3, 1}}, {std::numeric_limits<int>::min(), {3, 1}}, {3, {0, 4}}};
  for (const auto& [answer, expected] : seats) {
    Carved<SendPlan> send(shape);
    const int number = answer;
    const ReplicaRule rule = [number](const ReplicaChoice&) { return number; };
    ASSERT_FALSE(take_routing(shape, tensor_2d(ids.data(), DType::i32, 1, 2), {}, 1, send.plan, rule));
    EXPECT_THAT(send.plan.ids.first(2), testing::ElementsAreArray(expected)) << "answer " << answer;
  }
}

TEST(Routing, FindsBadIdsOfPlacedExpertsBeforeTheRuleIsAsked) {
  const Shape shape = replicated_shape(0);
  Carved<SendPlan> send(shape);
  const auto bad = take<std::int32_t>(shape, {0, 1, 2, 3}, send.plan);
  ASSERT_TRUE(bad);
  EXPECT_EQ(bad->token, 1);
  EXPECT_EQ(bad->choice, 1);
  EXPECT_EQ(bad->value, 3);  // six seats, but three experts
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
