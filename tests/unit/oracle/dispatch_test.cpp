#include "oracle/dispatch.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "cases.hpp"
#include "moebus/error.hpp"

namespace moebus::oracle {
namespace {

using cases::positions;
using cases::rank_input;
using cases::small_config;
using cases::sources;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Two ranks, experts {0, 1} and {2, 3}. Rank 0 receives token (0,0) for 0, (0,1) for 1 and 0, (1,0) for 0 and 1;
// rank 1 receives (0,0) for 2 and (1,1) for 3.
std::vector<RankInput> four_tokens(const ExchangeConfig& config) {
  return {rank_input(config, {{0, 2}, {1, 0}}, {{0.5F, 0.25F}, {0.125F, 2.0F}}),
          rank_input(config, {{0, 1}, {3, -1}}, {{4.0F, 8.0F}, {16.0F, kNan}})};
}

TEST(Placement, GivesTheFirstRanksOneExpertMore) {
  EXPECT_EQ(first_local_expert(10, 4, 0), 0);
  EXPECT_EQ(first_local_expert(10, 4, 1), 3);
  EXPECT_EQ(first_local_expert(10, 4, 2), 6);
  EXPECT_EQ(first_local_expert(10, 4, 3), 8);
  EXPECT_EQ(num_local_experts(10, 4, 1), 3);
  EXPECT_EQ(num_local_experts(10, 4, 3), 2);
  EXPECT_EQ(owner_of(10, 4, 5), 1);
  EXPECT_EQ(owner_of(10, 4, 6), 2);
  EXPECT_EQ(owner_of(10, 4, 9), 3);
  EXPECT_EQ(num_local_experts(2, 3, 2), 0);
  EXPECT_EQ(owner_of(2, 3, 1), 1);
}

TEST(OracleDispatch, OrdersRankMajorRowsBySourceRankAndToken) {
  const ExchangeConfig config = small_config(4, 2);
  const auto results = dispatch(config, four_tokens(config));
  EXPECT_THAT(sources(results[0]), ElementsAre(Pair(0, 0), Pair(0, 1), Pair(1, 0)));
  EXPECT_THAT(results[0].topk_idx, ElementsAre(0, -1, 1, 0, 0, 1));
  EXPECT_THAT(results[0].topk_weights, ElementsAre(0.5F, 0.0F, 0.125F, 2.0F, 4.0F, 8.0F));
  EXPECT_THAT(results[0].counts, ElementsAre(3, 2));
  EXPECT_THAT(results[0].rank_counts, ElementsAre(2, 1));
  EXPECT_EQ(results[0].num_rows, 3);
  EXPECT_THAT(sources(results[1]), ElementsAre(Pair(0, 0), Pair(1, 1)));
  EXPECT_THAT(results[1].topk_idx, ElementsAre(-1, 0, 1, -1));
  EXPECT_THAT(results[1].topk_weights, ElementsAre(0.0F, 0.25F, 16.0F, 0.0F));
  EXPECT_THAT(results[1].rank_counts, ElementsAre(1, 1));
}

TEST(OracleDispatch, GroupsExpertMajorRowsAndAlignsGroups) {
  ExchangeConfig config = small_config(4, 2);
  config.layout = Layout::expert_major;
  config.expert_alignment = 4;
  const auto results = dispatch(config, four_tokens(config));
  EXPECT_THAT(sources(results[0]), ElementsAre(Pair(0, 0), Pair(0, 1), Pair(1, 0), Pair(0, 1), Pair(1, 0)));
  EXPECT_THAT(positions(results[0]), ElementsAre(0, 1, 2, 4, 5));
  EXPECT_THAT(results[0].offsets, ElementsAre(0, 4, 8));
  EXPECT_EQ(results[0].num_rows, 8);
  EXPECT_EQ(results[0].rows[1].weight, 2.0F);
  EXPECT_EQ(results[0].rows[3].weight, 0.125F);
  EXPECT_EQ(results[0].num_overflowed, 0);
}

TEST(OracleDispatch, PlacesExpertPaddedRowsInTheirExpertsBlock) {
  ExchangeConfig config = small_config(4, 2);
  config.layout = Layout::expert_padded;
  config.max_tokens_per_rank = 5;  // 10 rows per expert
  const auto results = dispatch(config, four_tokens(config));
  EXPECT_THAT(positions(results[0]), ElementsAre(0, 1, 2, 10, 11));
  EXPECT_THAT(results[0].offsets, IsEmpty());
  EXPECT_EQ(results[0].num_rows, 5);
}

TEST(OracleDispatch, DropsTheHighestSourceRanksFirstInRankMajor) {
  ExchangeConfig config = small_config(4, 2);
  config.capacity_rows = 2;
  const auto results = dispatch(config, four_tokens(config));
  EXPECT_THAT(sources(results[0]), ElementsAre(Pair(0, 0), Pair(0, 1)));
  EXPECT_THAT(results[0].counts, ElementsAre(2, 1));
  EXPECT_THAT(results[0].wanted, ElementsAre(3, 2));
  EXPECT_THAT(results[0].rank_counts, ElementsAre(2, 1));
  EXPECT_EQ(results[0].num_overflowed, 1);
  EXPECT_EQ(results[1].num_overflowed, 0);
}

TEST(OracleDispatch, DropsByTheAlignedIndexInExpertMajor) {
  ExchangeConfig config = small_config(4, 2);
  config.layout = Layout::expert_major;
  config.expert_alignment = 2;
  config.capacity_rows = 5;
  const auto results = dispatch(config, four_tokens(config));
  EXPECT_THAT(positions(results[0]), ElementsAre(0, 1, 2, 4));
  EXPECT_THAT(results[0].counts, ElementsAre(3, 1));
  EXPECT_THAT(results[0].wanted, ElementsAre(3, 2));
  EXPECT_THAT(results[0].offsets, ElementsAre(0, 4, 6));
  EXPECT_EQ(results[0].num_rows, 5);
  EXPECT_EQ(results[0].num_overflowed, 1);
}

TEST(OracleDispatch, DropsPerExpertInExpertPadded) {
  ExchangeConfig config = small_config(4, 2);
  config.layout = Layout::expert_padded;
  config.capacity_rows = 2;
  const auto results = dispatch(config, four_tokens(config));
  EXPECT_THAT(positions(results[0]), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(results[0].counts, ElementsAre(2, 2));
  EXPECT_EQ(results[0].num_overflowed, 1);
  EXPECT_EQ(results[0].find(0, 1, 0), nullptr);
  EXPECT_EQ(results[0].find(1, 1, 0)->position, 3);
}

TEST(OracleDispatch, MakesOneRowOfAnExpertThatIsListedTwice) {
  for (const Layout layout : {Layout::rank_major, Layout::expert_major, Layout::expert_padded}) {
    ExchangeConfig config = small_config(4, 2);
    config.layout = layout;
    const auto results = dispatch(config, {rank_input(config, {{3, 3}}, {{0.25F, 0.5F}})});
    EXPECT_EQ(results[0].rows.size(), 1U);
    EXPECT_THAT(results[0].counts, ElementsAre(0, 0, 0, 1));
    EXPECT_THAT(results[0].rank_counts, ElementsAre(1));
    EXPECT_EQ(results[0].rows[0].weight, layout == Layout::rank_major ? 0.0F : 0.75F);
  }
}

TEST(OracleDispatch, LeavesOutMaskedChoicesAndTokens) {
  const ExchangeConfig config = small_config(2, 2);
  const auto results = dispatch(config, {rank_input(config, {{-1, -1}, {-1, 1}}), rank_input(config, {{-1, -1}})});
  EXPECT_THAT(results[0].rows, IsEmpty());
  EXPECT_THAT(sources(results[1]), ElementsAre(Pair(0, 1)));
  EXPECT_THAT(results[1].topk_idx, ElementsAre(-1, 0));
  EXPECT_THAT(results[1].rank_counts, ElementsAre(1, 0));
}

TEST(OracleDispatch, SendsAllTokensToOneRankOnceEach) {
  const ExchangeConfig config = small_config(8, 2);
  const cases::Ids ids(64, {0, 1});
  const auto results = dispatch(config, std::vector<RankInput>(4, rank_input(config, ids)));
  EXPECT_THAT(results[0].counts, ElementsAre(256, 256));
  EXPECT_EQ(results[0].num_rows, 256);
  EXPECT_THAT(results[0].rank_counts, ElementsAre(64, 64, 64, 64));
  for (int rank = 1; rank < 4; ++rank) {
    EXPECT_EQ(results[static_cast<std::size_t>(rank)].num_rows, 0);
    EXPECT_THAT(results[static_cast<std::size_t>(rank)].counts, ElementsAre(0, 0));
  }
}

TEST(OracleDispatch, TakesRanksWithoutTokens) {
  ExchangeConfig config = small_config(4, 8);
  const cases::Ids one = {{0, 1, 2, 3, -1, -1, -1, -1}};
  const auto some = dispatch(config, {rank_input(config, one), rank_input(config, {}), rank_input(config, {})});
  for (const auto& result : some) EXPECT_EQ(result.num_rows, 1);
  const auto none = dispatch(config, std::vector<RankInput>(3, rank_input(config, {})));
  for (const auto& result : none) EXPECT_EQ(result.num_rows, 0);
}

TEST(OracleDispatch, CarriesBytesUnchangedWithScalesAndSides) {
  ExchangeConfig config = small_config(2, 1, 3);
  config.dtype = DType::bf16;
  config.scale_format = ScaleFormat::f32;
  config.side_bytes = {1, 2};
  RankInput input = rank_input(config, {{1}, {1}});
  const std::vector<std::uint16_t> odd = {
      0x7F81, 0xFF80, 0x8000, 0x0001, 0xFFFF, 0x7FC1};  // NaN payloads, -inf, -0, subnormal
  std::memcpy(input.tokens.data(), odd.data(), input.tokens.size());
  input.scales[5] = std::byte{7};
  input.side[1][3] = std::byte{9};
  const auto results = dispatch(config, {input, rank_input(config, {})});
  const ReceivedRow& second = results[1].rows[1];
  EXPECT_EQ(std::memcmp(results[1].token_bytes(second).data(), odd.data() + 3, 6), 0);
  EXPECT_EQ(results[1].scale_bytes(second)[1], std::byte{7});
  EXPECT_EQ(results[1].side_bytes(second, 0).size(), 1U);
  EXPECT_EQ(results[1].side_bytes(second, 1)[1], std::byte{9});
}

TEST(OracleDispatch, CastsRowsWhenTheConfigurationSaysSo) {
  ExchangeConfig config = small_config(1, 1, 2);
  config.cast = Cast::fp8;
  config.scale_format = ScaleFormat::ue8m0;
  RankInput input = rank_input(config, {{0}});
  input.tokens = cases::bytes_of(DType::bf16, {3.0F, -0.75F});
  const auto results = dispatch(config, {input});
  EXPECT_THAT(results[0].token_bytes(results[0].rows[0]), ElementsAre(std::byte{0x7C}, std::byte{0xEC}));  // 384, -96
  EXPECT_THAT(results[0].scale_bytes(results[0].rows[0]),
              ElementsAre(std::byte{120}, std::byte{0}, std::byte{0}, std::byte{0}));
}

TEST(OracleDispatch, RefusesIdsOutOfRangeAndNamesThem) {
  const ExchangeConfig config = small_config(4, 2);
  for (const std::int64_t bad : {std::int64_t{4}, std::int64_t{-2}, std::int64_t{1} << 40}) {
    try {
      (void)dispatch(config, {rank_input(config, {{0, 1}}), rank_input(config, {{0, 1}, {2, bad}})});
      FAIL() << bad;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_THAT(error.what(), HasSubstr("rank 1: topk_idx[1][1] is " + std::to_string(bad)));
    }
  }
}

TEST(OracleDispatch, RefusesInputsOfTheWrongSize) {
  const ExchangeConfig config = small_config(4, 2);
  RankInput short_rows = rank_input(config, {{0, 1}});
  short_rows.tokens.pop_back();
  EXPECT_THROW((void)dispatch(config, {short_rows}), Error);
  EXPECT_THROW((void)dispatch(config, {rank_input(config, {{0, 1}}, {{1, 1}}), rank_input(config, {{0, 1}})}), Error);
  EXPECT_THROW((void)dispatch(config, {rank_input(config, cases::Ids(65, {0, 1}))}), Error);
}

}  // namespace
}  // namespace moebus::oracle
