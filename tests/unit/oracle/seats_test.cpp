#include "oracle/seats.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cases.hpp"
#include "moebus/error.hpp"

namespace moebus::oracle {
namespace {

using cases::rank_input;
using cases::small_config;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

ExchangeConfig seat_config(int num_experts, int num_topk, int seats_per_rank) {
  ExchangeConfig config = small_config(num_experts, num_topk);
  config.seats_per_rank = seats_per_rank;
  return config;
}

std::string error_of(const ExchangeConfig& config, int num_ranks, const Placement& placement) {
  try {
    (void)seats_of(config, num_ranks, placement);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.what();
  }
  return {};
}

TEST(Seats, AreContiguousBlocksOfExpertsUnlessTheConfigurationHasSeats) {
  const Seats seats = seats_of(small_config(5, 1), 3);
  EXPECT_THAT(seats.first_on, ElementsAre(0, 2, 4, 5));
  EXPECT_THAT(seats.rank_of, ElementsAre(0, 0, 1, 1, 2));
  EXPECT_THAT(seats.of_expert[3], ElementsAre(3));
  EXPECT_EQ(seats.num_on(2), 1);
}

TEST(Seats, AreFilledInOrderUntilAPlacementIsGiven) {
  const Seats seats = seats_of(seat_config(3, 1, 2), 2);
  EXPECT_THAT(seats.first_on, ElementsAre(0, 2, 4));
  EXPECT_THAT(seats.of_expert[2], ElementsAre(2));
  EXPECT_EQ(seats.num_on(1), 2);  // one of them empty
}

TEST(Seats, FollowThePlacement) {
  const Seats seats = seats_of(seat_config(3, 1, 2), 2, {{2, 0, 1, 2}});
  EXPECT_THAT(seats.of_expert[0], ElementsAre(1));
  EXPECT_THAT(seats.of_expert[1], ElementsAre(2));
  EXPECT_THAT(seats.of_expert[2], ElementsAre(0, 3));
}

TEST(Seats, RefuseAPlacementThatDoesNotFit) {
  const ExchangeConfig config = seat_config(3, 1, 2);
  EXPECT_THAT(error_of(config, 2, {{0, 1, 2}}), HasSubstr("3 entries"));
  EXPECT_THAT(error_of(config, 1, {}), HasSubstr("3 experts"));
  EXPECT_THAT(error_of(config, 2, {{0, 1, 2, 3}}), HasSubstr("expert 3 is none of 0 to 2"));
  EXPECT_THAT(error_of(config, 2, {{0, 1, 2, -2}}), HasSubstr("expert -2"));
  EXPECT_THAT(error_of(config, 2, {{0, 1, 0, -1}}), HasSubstr("expert 2 has no seat"));
  EXPECT_THAT(error_of(config, 2, {{0, 1, 2, 2}}), HasSubstr("expert 2 sits twice on rank 1"));
  EXPECT_THAT(error_of(small_config(3, 1), 2, {{0, 1, 2}}), HasSubstr("seats_per_rank is 0"));
}

// Expert 0 sits on ranks 0 and 2 (seats 0 and 4), expert 1 on rank 1 alone (seat 2).
const Placement kReplicated{{0, -1, 1, -1, 0, -1}};

TEST(SeatChoices, StayOnTheTokensOwnRankIfThereIsAReplica) {
  const ExchangeConfig config = seat_config(2, 2, 2);
  const std::vector<RankInput> inputs(3, rank_input(config, {{0, 1}, {-1, 0}, {0, 0}}));
  const SeatChoices choices = choose_seats(config, inputs, kReplicated);
  EXPECT_THAT(choices.seat[0], ElementsAre(0, 2, -1, 0, 0, 0));
  EXPECT_THAT(choices.seat[2], ElementsAre(4, 2, -1, 4, 4, 4));
}

TEST(SeatChoices, GoRoundTheReplicasFromAnotherBeginningOnEachRank) {
  const ExchangeConfig config = seat_config(2, 2, 2);
  const std::vector<RankInput> inputs(3, rank_input(config, {{0, 1}, {-1, 0}, {0, 0}}));
  // Rank 1: (1 + token) % 2 is 1, 0, 1.
  EXPECT_THAT(choose_seats(config, inputs, kReplicated).seat[1], ElementsAre(4, 2, -1, 0, 4, 4));
}

TEST(SeatChoices, AskTheRuleOnlyWhereThereIsAChoice) {
  const ExchangeConfig config = seat_config(2, 2, 2);
  const std::vector<RankInput> inputs = {
      rank_input(config, {{0, 1}}), rank_input(config, {}), rank_input(config, {{1, 1}, {1, 0}})};
  std::vector<ReplicaChoice> asked;
  const SeatChoices choices = choose_seats(config, inputs, kReplicated, [&](const ReplicaChoice& choice) {
    EXPECT_THAT(choice.ranks, ElementsAre(0, 2));
    asked.push_back(choice);
    return choice.src_rank == 0 ? 1 : 0;
  });
  ASSERT_EQ(asked.size(), 2U);
  EXPECT_EQ(asked[1].src_rank, 2);
  EXPECT_EQ(asked[1].token, 1);
  EXPECT_EQ(asked[1].choice, 1);
  EXPECT_EQ(asked[1].expert, 0);
  EXPECT_THAT(choices.seat[0], ElementsAre(4, 2));
  EXPECT_THAT(choices.seat[2], ElementsAre(2, 2, 2, 0));
}

TEST(SeatChoices, TakeAnswersOutsideTheReplicasModuloTheirNumber) {
  const ExchangeConfig config = seat_config(1, 1, 1);
  const std::vector<RankInput> inputs(3, rank_input(config, {{0}}));
  for (const int answer : {5, -1}) {
    const auto rule = [&](const ReplicaChoice&) { return answer; };
    EXPECT_THAT(choose_seats(config, inputs, {{0, 0, 0}}, rule).seat[0], ElementsAre(2)) << answer;
  }
}

std::vector<DispatchExpectation> dispatched(const ExchangeConfig& config, const std::vector<RankInput>& inputs) {
  const auto shared = std::make_shared<const std::vector<RankInput>>(inputs);
  return dispatch(config, shared, GroupShape::one_node(3), kReplicated);
}

TEST(OracleDispatch, CountsSeatsWithAPlacement) {
  ExchangeConfig config = seat_config(2, 2, 2);
  const std::vector<RankInput> inputs = {
      rank_input(config, {{0, 1}}), rank_input(config, {{0, -1}, {0, 1}}), rank_input(config, {{1, -1}, {0, 0}})};
  const auto by_rank = dispatched(config, inputs);
  EXPECT_EQ(cases::sources(by_rank[0]), (std::vector<std::pair<int, std::int64_t>>{{0, 0}, {1, 1}}));
  EXPECT_EQ(cases::sources(by_rank[1]), (std::vector<std::pair<int, std::int64_t>>{{0, 0}, {1, 1}, {2, 0}}));
  EXPECT_EQ(cases::sources(by_rank[2]), (std::vector<std::pair<int, std::int64_t>>{{1, 0}, {2, 1}}));
  EXPECT_THAT(by_rank[0].counts, ElementsAre(2, 0));
  EXPECT_THAT(by_rank[2].topk_idx, ElementsAre(0, -1, 0, 0));

  config.layout = Layout::expert_major;
  config.expert_alignment = 4;
  const auto by_expert = dispatched(config, inputs);
  EXPECT_THAT(by_expert[1].wanted, ElementsAre(3, 0));
  EXPECT_THAT(by_expert[1].offsets, ElementsAre(0, 4, 4));
}

TEST(OracleDispatch, LeavesEmptySeatsEmpty) {
  ExchangeConfig config = seat_config(1, 1, 3);
  config.layout = Layout::expert_padded;
  const auto shared = std::make_shared<const std::vector<RankInput>>(2, rank_input(config, {{0}}));
  const auto results = dispatch(config, shared, GroupShape::one_node(2), {{-1, -1, 0, -1, -1, -1}});
  EXPECT_THAT(results[0].counts, ElementsAre(0, 0, 2));
  EXPECT_THAT(cases::positions(results[0]), ElementsAre(2 * 128, 2 * 128 + 1));  // 2 ranks x 64 tokens to a seat
  EXPECT_THAT(results[1].rows, IsEmpty());
}

TEST(OracleCombine, FindsRowsAtTheSeatThatWasTaken) {
  ExchangeConfig config = seat_config(2, 2, 2);
  config.layout = Layout::expert_major;
  config.combine_dtype = DType::f32;
  const auto results = dispatched(
      config, {rank_input(config, {{1, 0}}), rank_input(config, {{0, 1}, {0, 1}}), rank_input(config, {{-1, 0}})});
  cases::SameForAll experts(DType::f32, {{1}, {10}, {100}, {1000}, {10000}, {100000}});  // seat s answers 10^s
  CombineRequest request;
  request.expert_rows = experts.by_expert({0, 2, 4});
  EXPECT_EQ(combine_at(0, results, request).tokens, cases::bytes_of(DType::f32, {101}));
  EXPECT_EQ(combine_at(1, results, request).tokens, cases::bytes_of(DType::f32, {10100, 101}));
  EXPECT_EQ(combine_at(2, results, request).tokens, cases::bytes_of(DType::f32, {10000}));
}

}  // namespace
}  // namespace moebus::oracle
