#include "oracle/combine.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "cases.hpp"
#include "moebus/error.hpp"

namespace moebus::oracle {
namespace {

using cases::bytes_of;
using cases::floats_of;
using cases::rank_input;
using cases::SameForAll;
using cases::small_config;
using testing::ElementsAre;
using testing::IsEmpty;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

ExchangeConfig expert_config(int num_experts, int num_topk) {
  ExchangeConfig config = small_config(num_experts, num_topk);
  config.layout = Layout::expert_major;
  return config;
}

std::vector<float> values_of(const CombineExpectation& result) {
  return floats_of(result.config.combine_dtype, result.tokens);
}

// One token on rank 0 of `num_ranks` ranks with one expert each; every rank's rows hold one value.
float sum_over_ranks(ExchangeConfig config,
                     const std::vector<std::int64_t>& choices,
                     const std::vector<float>& by_rank) {
  config.num_experts = static_cast<int>(by_rank.size());
  config.num_topk = static_cast<int>(choices.size());
  std::vector<RankInput> inputs(by_rank.size(), rank_input(config, {}));
  inputs[0] = rank_input(config, {choices});
  std::vector<std::vector<float>> rows;
  for (const float value : by_rank) rows.push_back({value});
  SameForAll experts(config.combine_dtype, rows);
  CombineRequest request;
  request.expert_rows = experts.by_rank();
  return values_of(combine_at(0, dispatch(config, inputs), request))[0];
}

TEST(OracleCombine, AddsPartialsInFloatAndRoundsOnce) {
  const std::vector<float> partials = {256, 1, 1, 1, 1, 1, 1, 1};
  EXPECT_EQ(sum_over_ranks(small_config(8, 8), {0, 1, 2, 3, 4, 5, 6, 7}, partials), 264.0F);
  EXPECT_EQ(sum_over_ranks(small_config(8, 8), {7, 6, 5, 4, 3, 2, 1, 0}, partials), 264.0F);
  EXPECT_EQ(sum_over_ranks(expert_config(8, 8), {0, 1, 2, 3, 4, 5, 6, 7}, partials), 264.0F);
}

TEST(OracleCombine, AddsRanksByTheirLastPlaceInTheTopk) {
  ExchangeConfig config = small_config(3, 3);
  config.combine_dtype = DType::f32;
  const std::vector<float> by_rank = {0x1p24F, 1.0F, -0x1p24F};  // 1 is lost unless the large ones meet first
  EXPECT_EQ(sum_over_ranks(config, {0, 1, 2}, by_rank), 0.0F);
  EXPECT_EQ(sum_over_ranks(config, {0, 2, 1}, by_rank), 1.0F);
  EXPECT_EQ(sum_over_ranks(config, {2, 0, 1}, by_rank), 1.0F);
  EXPECT_EQ(sum_over_ranks(config, {1, 0, 2}, by_rank), 0.0F);
  EXPECT_EQ(sum_over_ranks(config, {1, 0, 2, 1}, by_rank), 1.0F);  // rank 1 moves to its last place
}

TEST(OracleCombine, CountsBothWeightsOfAnExpertThatIsListedTwice) {
  ExchangeConfig config = expert_config(4, 2);
  const auto dispatched = dispatch(config, {rank_input(config, {{3, 3}}, {{0.25F, 0.5F}})});
  SameForAll experts(DType::bf16, {{0}, {0}, {0}, {2}});
  CombineRequest request;
  request.expert_rows = experts.by_expert({0});
  request.weighting = Weighting::dispatched;
  EXPECT_THAT(values_of(combine_at(0, dispatched, request)), ElementsAre(1.5F));
  request.weighting = Weighting::none;
  EXPECT_THAT(values_of(combine_at(0, dispatched, request)), ElementsAre(4.0F));
}

TEST(OracleCombine, MultipliesAndAddsWithOneRounding) {
  for (const CombineRows rows : {CombineRows::per_rank, CombineRows::per_expert}) {
    ExchangeConfig config = expert_config(2, 2);
    config.combine_dtype = DType::f32;
    config.combine_rows = rows;
    const auto dispatched = dispatch(config, {rank_input(config, {{0, 1}}, {{-1.0F, 1.0F + 0x1p-12F}})});
    SameForAll experts(DType::f32, {{1.0F + 0x1p-11F}, {1.0F + 0x1p-12F}});
    CombineRequest request;
    request.expert_rows = experts.by_expert({0});
    request.weighting = Weighting::dispatched;
    EXPECT_THAT(values_of(combine_at(0, dispatched, request)), ElementsAre(0x1p-24F));  // 0 with two roundings
  }
}

TEST(OracleCombine, RoundsAtTheOwnerOnlyWithRowsPerRank) {
  ExchangeConfig config = expert_config(4, 4);
  std::vector<RankInput> inputs = {rank_input(config, {{0, 1, 2, 3}}), rank_input(config, {})};
  SameForAll experts(DType::bf16, {{256}, {1}, {1}, {0}});
  CombineRequest request;
  request.expert_rows = experts.by_expert({0, 2});
  EXPECT_THAT(values_of(combine_at(0, dispatch(config, inputs), request)),
              ElementsAre(256.0F));  // 257 -> 256, + 1 again
  config.combine_rows = CombineRows::per_expert;
  EXPECT_THAT(values_of(combine_at(0, dispatch(config, inputs), request)), ElementsAre(258.0F));
}

TEST(OracleCombine, NeverMultipliesRankMajorRows) {
  const ExchangeConfig config = small_config(1, 1);
  const auto dispatched = dispatch(config, {rank_input(config, {{0}}, {{0.5F}})});
  SameForAll rows(DType::bf16, {{3}});
  CombineRequest request;
  request.expert_rows = rows.by_rank();
  request.weighting = Weighting::dispatched;
  EXPECT_THAT(values_of(combine_at(0, dispatched, request)), ElementsAre(3.0F));
}

TEST(OracleCombine, SelectsMaskedChoicesAwayWhateverTheirWeight) {
  ExchangeConfig config = expert_config(2, 2);
  const auto dispatched = dispatch(config, {rank_input(config, {{1, -1}, {-1, -1}}, {{0.5F, kNan}, {kNan, kNan}})});
  SameForAll experts(DType::bf16, {{kNan}, {4}});
  CombineRequest request;
  request.expert_rows = experts.by_expert({0});
  request.weighting = Weighting::dispatched;
  const CombineExpectation result = combine_at(0, dispatched, request);
  EXPECT_EQ(result.tokens, bytes_of(DType::bf16, {2.0F, 0.0F}));  // bits: +0
  EXPECT_THAT(result.missing, ElementsAre(0, 0));
}

TEST(OracleCombine, GivesPlusZeroForMinusZeroRows) {
  const ExchangeConfig config = small_config(1, 1);
  SameForAll rows(DType::bf16, {{-0.0F}});
  CombineRequest request;
  request.expert_rows = rows.by_rank();
  const auto result = combine_at(0, dispatch(config, {rank_input(config, {{0}})}), request);
  EXPECT_EQ(result.tokens, bytes_of(DType::bf16, {0.0F}));
}

TEST(OracleCombine, StartsFromTheBiases) {
  ExchangeConfig config = small_config(1, 1);
  const auto dispatched = dispatch(config, {rank_input(config, {{0}, {-1}})});
  SameForAll rows(DType::bf16, {{1}});
  CombineRequest request;
  request.expert_rows = rows.by_rank();
  request.homes.resize(1);
  request.homes[0].bias[0] = bytes_of(DType::bf16, {256, 10});
  EXPECT_THAT(values_of(combine_at(0, dispatched, request)), ElementsAre(256.0F, 10.0F));
  request.homes[0].bias[1] = bytes_of(DType::bf16, {1, -3});
  EXPECT_THAT(values_of(combine_at(0, dispatched, request)), ElementsAre(258.0F, 7.0F));
}

TEST(OracleCombine, TakesWeightsThatAreGivenAtHome) {
  ExchangeConfig config = expert_config(2, 2);
  const std::vector<RankInput> inputs = {rank_input(config, {{1, 0}}), rank_input(config, {{0, 1}})};
  SameForAll experts(DType::bf16, {{1}, {8}});
  CombineRequest request;
  request.expert_rows = experts.by_expert({0, 1});
  request.weighting = Weighting::given;
  request.homes.resize(2);
  request.homes[0].topk_weights = {0.5F, 2.0F};
  request.homes[1].topk_weights = {4.0F, 1.0F};
  const auto results = combine(dispatch(config, inputs), request);
  EXPECT_THAT(values_of(results[0]), ElementsAre(6.0F));
  EXPECT_THAT(values_of(results[1]), ElementsAre(12.0F));
}

// Rank 0 owns experts 0 and 1 with room for one row each; rank 1 owns 2 and 3. Rank 1's token finds rank 0 full.
TEST(OracleCombine, AddsWhatWasKeptAndNamesTheRest) {
  ExchangeConfig config = expert_config(4, 3);
  config.layout = Layout::expert_padded;
  config.capacity_rows = 1;
  const std::vector<RankInput> inputs = {rank_input(config, {{0, -1, -1}}), rank_input(config, {{2, 0, 1}})};
  SameForAll experts(DType::bf16, {{1}, {10}, {100}, {1000}});
  CombineRequest request;
  request.expert_rows = experts.by_expert({0, 2});
  request.lane = [](int owner, const ReceivedRow& row, int choice) {
    return static_cast<float>(100 * owner + 10 * row.local_expert + choice + 1);
  };
  const auto results = combine(dispatch(config, inputs), request);
  EXPECT_THAT(values_of(results[1]), ElementsAre(110.0F));
  EXPECT_THAT(results[1].missing, ElementsAre(2));
  EXPECT_EQ(results[1].num_incomplete, 1);
  EXPECT_THAT(results[1].lane, ElementsAre(101.0F, 0.0F, 13.0F));
  EXPECT_EQ(results[0].num_incomplete, 0);
  EXPECT_THAT(results[0].lane, ElementsAre(1.0F, 0.0F, 0.0F));
}

TEST(OracleCombine, GivesTheBiasWhenNothingIsLeft) {
  ExchangeConfig config = small_config(2, 2);
  config.capacity_rows = 1;
  const auto dispatched = dispatch(config, {rank_input(config, {{0, -1}, {0, 0}}), rank_input(config, {})});
  SameForAll rows(DType::bf16, {{5}, {7}});
  CombineRequest request;
  request.expert_rows = rows.by_rank();
  EXPECT_EQ(combine_at(0, dispatched, request).tokens, bytes_of(DType::bf16, {5.0F, 0.0F}));
  EXPECT_THAT(combine_at(0, dispatched, request).missing, ElementsAre(0, 3));
  request.homes.resize(2);
  request.homes[0].bias[0] = bytes_of(DType::bf16, {1, -2});
  EXPECT_THAT(values_of(combine_at(0, dispatched, request)), ElementsAre(6.0F, -2.0F));
}

TEST(OracleCombine, KeepsTheRoutingsOrderWhenRowsAreDropped) {
  ExchangeConfig config = expert_config(6, 4);
  config.layout = Layout::expert_padded;
  config.combine_dtype = DType::f32;
  config.capacity_rows = 1;
  // Ranks own {0,1}, {2,3}, {4,5}. Token 1 of rank 0 chooses rank 1 last by expert 2, which token 0 has filled.
  const std::vector<RankInput> inputs = {
      rank_input(config, {{2, -1, -1, -1}, {3, 0, 4, 2}}), rank_input(config, {}), rank_input(config, {})};
  SameForAll experts(DType::f32, {{0x1p24F}, {0}, {9}, {1}, {-0x1p24F}, {0}});
  CombineRequest request;
  request.expert_rows = experts.by_expert({0, 2, 4});
  const auto result = combine_at(0, dispatch(config, inputs), request);
  EXPECT_THAT(result.missing, ElementsAre(0, 8));
  EXPECT_THAT(values_of(result), ElementsAre(9.0F, 1.0F));  // 0 if rank 1 came first
}

TEST(OracleCombine, GivesNothingForARankWithoutTokens) {
  const ExchangeConfig config = small_config(2, 1);
  SameForAll rows(DType::bf16, {{1}, {1}});
  CombineRequest request;
  request.expert_rows = rows.by_rank();
  const auto result = combine_at(1, dispatch(config, {rank_input(config, {{0}}), rank_input(config, {})}), request);
  EXPECT_THAT(result.tokens, IsEmpty());
  EXPECT_EQ(result.num_tokens, 0);
}

TEST(OracleCombine, ReadsRowsFromBuffersByPosition) {
  ExchangeConfig config = small_config(2, 1, 2);
  const auto dispatched = dispatch(config, {rank_input(config, {{0}, {0}}), rank_input(config, {{0}})});
  const std::vector<std::vector<std::byte>> buffers = {bytes_of(DType::bf16, {1, 2, 3, 4, 5, 6}), {}};
  CombineRequest request;
  request.expert_rows = rows_in(buffers, 4);
  const auto results = combine(dispatched, request);
  EXPECT_THAT(values_of(results[0]), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(values_of(results[1]), ElementsAre(5, 6));
}

TEST(OracleCombine, RefusesRequestsThatDoNotFit) {
  ExchangeConfig config = expert_config(1, 1);
  const auto dispatched = dispatch(config, {rank_input(config, {{0}})});
  SameForAll experts(DType::bf16, {{1}});
  CombineRequest request;
  EXPECT_THROW((void)combine_at(0, dispatched, request), Error);  // no rows
  request.expert_rows = experts.by_expert({0});
  request.weighting = Weighting::dispatched;
  EXPECT_THROW((void)combine_at(0, dispatched, request), Error);  // none were dispatched
  request.weighting = Weighting::none;
  request.homes.resize(1);
  request.homes[0].bias[0] = bytes_of(DType::bf16, {1, 2});
  EXPECT_THROW((void)combine_at(0, dispatched, request), Error);  // bias of two tokens
}

}  // namespace
}  // namespace moebus::oracle
