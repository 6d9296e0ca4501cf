#include "model/shape.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

namespace moebus::model {
namespace {

ExchangeConfig good_config() {
  ExchangeConfig config;
  config.num_experts = 16;
  config.num_topk = 4;
  config.hidden = 64;
  config.max_tokens_per_rank = 32;
  return config;
}

struct WrongField {
  const char* name;
  std::function<void(ExchangeConfig&)> spoil;
  const char* message;
};

void PrintTo(const WrongField& field, std::ostream* out) { *out << field.name; }

std::string name_of(const testing::TestParamInfo<WrongField>& field) { return field.param.name; }

class ConfigError : public testing::TestWithParam<WrongField> {};

TEST_P(ConfigError, NamesFieldValueAndLimit) {
  ExchangeConfig config = good_config();
  ASSERT_EQ(find_config_error(config, 4), std::nullopt);
  GetParam().spoil(config);
  EXPECT_EQ(find_config_error(config, 4), GetParam().message);
}

#define MOEBUS_WRONG(name, change, message)          \
  WrongField {                                       \
    name, [](ExchangeConfig& c) { change; }, message \
  }

INSTANTIATE_TEST_SUITE_P(
    Sizes,
    ConfigError,
    testing::Values(
        MOEBUS_WRONG("NoExperts", c.num_experts = 0, "config.num_experts is 0; allowed is 1 to 1048576"),
        MOEBUS_WRONG("NegativeExperts", c.num_experts = -3, "config.num_experts is -3; allowed is 1 to 1048576"),
        MOEBUS_WRONG("TooManyExperts",
                     c.num_experts = 1048577,
                     "config.num_experts is 1048577; allowed is 1 to 1048576"),
        MOEBUS_WRONG("NoTopk", c.num_topk = 0, "config.num_topk is 0; allowed is 1 to 64"),
        MOEBUS_WRONG("TooLargeTopk", c.num_topk = 65, "config.num_topk is 65; allowed is 1 to 64"),
        MOEBUS_WRONG("NoHidden", c.hidden = 0, "config.hidden is 0; allowed is 1 to 1048576"),
        MOEBUS_WRONG("TooWideHidden", c.hidden = 1048577, "config.hidden is 1048577; allowed is 1 to 1048576"),
        MOEBUS_WRONG("NoTokens",
                     c.max_tokens_per_rank = 0,
                     "config.max_tokens_per_rank is 0; allowed is 1 to 1073741823"),
        MOEBUS_WRONG("NegativeCombineHidden",
                     c.combine_hidden = -1,
                     "config.combine_hidden is -1; allowed is 0 to 1048576"),
        MOEBUS_WRONG("NoAlignment", c.expert_alignment = 0, "config.expert_alignment is 0; allowed is 1 to 65536"),
        MOEBUS_WRONG("TooLargeAlignment",
                     c.expert_alignment = 65537,
                     "config.expert_alignment is 65537; allowed is 1 to 65536"),
        MOEBUS_WRONG("NegativeCapacity",
                     c.capacity_rows = -1,
                     "config.capacity_rows is -1; allowed is 0 to 1073741823"),
        MOEBUS_WRONG("HugeCapacity",
                     c.capacity_rows = std::int64_t{1} << 40,
                     "config.capacity_rows is 1099511627776; allowed is 0 to 1073741823"),
        MOEBUS_WRONG("NoHandles", c.max_handles = 0, "config.max_handles is 0; allowed is 1 to 1024"),
        MOEBUS_WRONG("NegativeSide", c.side_bytes[1] = -1, "config.side_bytes is -1; allowed is 0 to 1048576"),
        MOEBUS_WRONG("HugeSide", c.side_bytes[0] = 1048577, "config.side_bytes is 1048577; allowed is 0 to 1048576"),
        MOEBUS_WRONG(
            "TooManyRows",
            c.max_tokens_per_rank = 1 << 29,
            "config.max_tokens_per_rank 536870912 over 4 ranks gives results of up to 2147483648 rows; at most "
            "1073741823 are supported: lower it, or set capacity_rows")),
    name_of);

INSTANTIATE_TEST_SUITE_P(
    Combinations,
    ConfigError,
    testing::Values(
        MOEBUS_WRONG("CastOfFloat32",
                     (c.cast = Cast::fp8, c.scale_format = ScaleFormat::f32, c.dtype = DType::f32),
                     "config.dtype is f32 with cast fp8; the cast takes bf16 rows: give bf16, or cast none"),
        MOEBUS_WRONG("CastWithoutScales",
                     c.cast = Cast::fp8,
                     "config.scale_format is none with cast fp8; choose f32 or ue8m0"),
        MOEBUS_WRONG("SumOfFp8",
                     c.combine_dtype = DType::e4m3,
                     "config.combine_dtype is e4m3; combine adds bf16, f16 or f32"),
        MOEBUS_WRONG("SecondSideAlone",
                     c.side_bytes[1] = 4,
                     "config.side_bytes[1] is set and side_bytes[0] is not; fill side tensors from the first on"),
        MOEBUS_WRONG(
            "AlignmentWithoutGroups",
            c.expert_alignment = 8,
            "config.expert_alignment is 8 with layout rank_major; only expert_major has groups to align: use 1"),
        MOEBUS_WRONG("PerExpertOfRankMajor",
                     c.combine_rows = CombineRows::per_expert,
                     "config.combine_rows is per_expert with layout rank_major, whose rows are already summed over the "
                     "local experts: use per_rank, or an expert layout"),
        MOEBUS_WRONG("CallerResultsDirect",
                     (c.caller_results = true, c.path = Path::throughput),
                     "config.caller_results is set with direct delivery, whose result is the registered region: use "
                     "staged delivery"),
        // One combined row of 64 bf16 is 128 bytes; 4 slots a token, two halves.
        MOEBUS_WRONG("StageSmallerThanACombineRound",
                     (c.path = Path::throughput, c.stage_bytes = 1023),
                     "config.stage_bytes is 1023; one row a round needs at least 1024"),
        MOEBUS_WRONG(
            "StageSmallerThanADispatchRound",
            (c.path = Path::throughput, c.delivery = Delivery::staged, c.side_bytes[0] = 100, c.stage_bytes = 2047),
            "config.stage_bytes is 2047; one row a round needs at least 2048")),
    name_of);

#undef MOEBUS_WRONG

TEST(Shape, TakesTheWorstCaseAsCapacityWhenNoneIsGiven) {
  ExchangeConfig config = good_config();
  EXPECT_EQ(make_shape(config, 4).capacity_rows, 4 * 32);
  EXPECT_FALSE(make_shape(config, 4).can_overflow);
  config.layout = Layout::expert_padded;
  EXPECT_EQ(make_shape(config, 4).capacity_rows, 4 * 32);
  EXPECT_EQ(make_shape(config, 4).result_rows, 4 * 32 * 4);
  config.layout = Layout::expert_major;
  config.expert_alignment = 8;
  // 4 x 32 tokens with min(4 choices, 4 experts) copies, and 7 rows of padding in each of 4 groups: 540, on 8.
  EXPECT_EQ(make_shape(config, 4).capacity_rows, 544);
}

TEST(Shape, CanOverflowOnlyBelowTheWorstCase) {
  ExchangeConfig config = good_config();
  config.capacity_rows = 4 * 32 - 1;
  EXPECT_TRUE(make_shape(config, 4).can_overflow);
  EXPECT_EQ(make_shape(config, 4).combine_row.mask_bytes, 8U);
  config.capacity_rows = 4 * 32;
  EXPECT_FALSE(make_shape(config, 4).can_overflow);
  EXPECT_EQ(make_shape(config, 4).combine_row.mask_bytes, 0U);
}

TEST(Shape, GivesATokenAsManyHomeSlotsAsRanksOrChoicesCanAnswer) {
  ExchangeConfig config = good_config();
  EXPECT_EQ(make_shape(config, 2).combine_slots_per_token, 2);
  EXPECT_EQ(make_shape(config, 8).combine_slots_per_token, 4);
  config.layout = Layout::expert_major;
  config.combine_rows = CombineRows::per_expert;
  EXPECT_EQ(make_shape(config, 2).combine_slots_per_token, 4);
}

TEST(Shape, HasADigestThatTellsEveryFieldAndTheNumberOfRanks) {
  const auto digest = make_shape(good_config(), 4).digest;
  EXPECT_EQ(make_shape(good_config(), 4).digest, digest);
  EXPECT_NE(make_shape(good_config(), 3).digest, digest);
  ExchangeConfig config = good_config();
  config.combine_lane = true;
  EXPECT_NE(make_shape(config, 4).digest, digest);
}

TEST(Description, ListsWhatRanksMustAgreeOn) {
  ExchangeConfig config = good_config();
  config.capacity_rows = 77;
  const std::string text = describe(config);
  EXPECT_THAT(text, testing::HasSubstr("num_experts=16\n"));
  EXPECT_THAT(text, testing::HasSubstr("capacity_rows=77\n"));
  EXPECT_THAT(text, testing::HasSubstr("layout=rank_major\n"));
  EXPECT_THAT(text, testing::HasSubstr("combine_lane=false\n"));
}

}  // namespace
}  // namespace moebus::model
