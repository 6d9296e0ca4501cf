#include "engine/arguments.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

namespace moebus::engine {
namespace {

alignas(64) std::byte memory[4096];

ExchangeConfig base_config() {
  ExchangeConfig config;
  config.num_experts = 4;
  config.num_topk = 2;
  config.hidden = 8;
  config.max_tokens_per_rank = 3;
  return config;
}

TensorView tensor(DType dtype, std::int64_t rows, std::int64_t columns) {
  return tensor_2d(memory, dtype, rows, columns);
}

/// One wrong argument: the configuration that it is wrong for, what spoils it, and what must be said.
template <class Input>
struct Wrong {
  const char* name;
  std::function<void(ExchangeConfig&)> configure;
  std::function<void(Input&)> spoil;
  const char* message;
};

template <class Input>
void PrintTo(const Wrong<Input>& wrong, std::ostream* out) {
  *out << wrong.name;
}

template <class Input>
std::string name_of(const testing::TestParamInfo<Wrong<Input>>& wrong) {
  return wrong.param.name;
}

void as_is(ExchangeConfig& config) { static_cast<void>(config); }

void with_scales(ExchangeConfig& config) { config.scale_format = ScaleFormat::f32; }

void with_exponents(ExchangeConfig& config) { config.scale_format = ScaleFormat::ue8m0; }

void with_cast(ExchangeConfig& config) {
  config.cast = Cast::fp8;
  config.scale_format = ScaleFormat::f32;
}

void with_sides(ExchangeConfig& config) { config.side_bytes = {4, 6}; }

void with_caller_results(ExchangeConfig& config) { config.caller_results = true; }

void with_direct_delivery(ExchangeConfig& config) { config.path = Path::throughput; }

void padded(ExchangeConfig& config) { config.layout = Layout::expert_padded; }

void by_expert(ExchangeConfig& config) { config.layout = Layout::expert_major; }

void with_lane(ExchangeConfig& config) { config.combine_lane = true; }

void padded_with_lane(ExchangeConfig& config) {
  padded(config);
  with_lane(config);
}

std::string message_of(const std::optional<Refusal>& refusal) {
  if (!refusal) return "nothing is wrong";
  EXPECT_EQ(refusal->code, ErrorCode::invalid_argument);
  return refusal->text;
}

// Dispatch ------------------------------------------------------------------------------------------------------------

/// Two tokens, right in every respect for `config`.
DispatchInput good_dispatch(const ExchangeConfig& config) {
  DispatchInput input;
  input.tokens = tensor(config.dtype, 2, config.hidden);
  input.topk_idx = tensor(DType::i32, 2, config.num_topk);
  input.topk_weights = tensor(DType::f32, 2, config.num_topk);
  if (config.cast == Cast::none && config.scale_format != ScaleFormat::none) {
    input.scales = tensor(config.scale_format == ScaleFormat::f32 ? DType::f32 : DType::i32, 2, 1);
  }
  for (std::size_t s = 0; s < kMaxSideTensors; ++s) {
    if (config.side_bytes[s] > 0) input.side[s] = tensor(DType::u8, 2, config.side_bytes[s]);
  }
  if (config.caller_results) input.output.tokens = tensor(DType::bf16, 6, config.hidden);
  return input;
}

using WrongDispatch = Wrong<DispatchInput>;

class DispatchArguments : public testing::TestWithParam<WrongDispatch> {};

TEST_P(DispatchArguments, AreRefusedWithArgumentValueAndLimit) {
  ExchangeConfig config = base_config();
  GetParam().configure(config);
  ASSERT_EQ(model::find_config_error(config, 2), std::nullopt);
  const model::Shape shape = model::make_shape(config, 2);
  DispatchInput input = good_dispatch(config);
  ASSERT_EQ(message_of(check_dispatch_input(shape, 0, input)), "nothing is wrong");
  GetParam().spoil(input);
  EXPECT_EQ(message_of(check_dispatch_input(shape, 0, input)), GetParam().message);
}

#define MOEBUS_WRONG(name, configure, change, message)          \
  WrongDispatch {                                               \
    name, configure, [](DispatchInput& in) { change; }, message \
  }

INSTANTIATE_TEST_SUITE_P(
    Tokens,
    DispatchArguments,
    testing::Values(
        MOEBUS_WRONG("NotGiven", as_is, in.tokens = {}, "dispatch: tokens is not given; pass [0, 8] for no tokens"),
        MOEBUS_WRONG("NegativeRows", as_is, in.tokens.shape[0] = -1, "dispatch: tokens has -1 rows"),
        MOEBUS_WRONG(
            "TooMany",
            as_is,
            in.tokens.shape[0] = 4,
            "dispatch: tokens has 4 rows; config.max_tokens_per_rank is 3: raise it, or send fewer tokens in a "
            "call"),
        MOEBUS_WRONG("ThreeDimensions",
                     as_is,
                     in.tokens = tensor_3d(memory, DType::bf16, 2, 8, 1),
                     "dispatch: tokens has 3 dimensions; 2 are needed"),
        MOEBUS_WRONG("OtherType",
                     as_is,
                     in.tokens.dtype = DType::f16,
                     "dispatch: tokens is f16; the exchange was configured for bf16"),
        MOEBUS_WRONG("OnTheDevice",
                     as_is,
                     in.tokens.memory = MemoryKind::device,
                     "dispatch: tokens is in device memory; CPU ranks exchange host memory"),
        MOEBUS_WRONG("OtherWidth",
                     as_is,
                     in.tokens = tensor(DType::bf16, 2, 9),
                     "dispatch: tokens has shape [2, 9]; dimension 1 must be 8"),
        MOEBUS_WRONG(
            "NoData", as_is, in.tokens.data = nullptr, "dispatch: tokens has shape [2, 8] and no data (null pointer)"),
        MOEBUS_WRONG(
            "TransposedColumns",
            as_is,
            (in.tokens.stride = {1, 2, 0}),
            "dispatch: tokens has stride 2 in dimension 1; 1 is needed there. A copy would hide the cost: pass a "
            "contiguous tensor"),
        MOEBUS_WRONG("OverlappingRows",
                     as_is,
                     in.tokens.stride[0] = 7,
                     "dispatch: tokens has stride 7 in dimension 0; 8 at least is needed there. A copy would hide the "
                     "cost: pass a contiguous tensor")),
    name_of<DispatchInput>);

INSTANTIATE_TEST_SUITE_P(
    Routing,
    DispatchArguments,
    testing::Values(
        MOEBUS_WRONG("NotGiven", as_is, in.topk_idx = {}, "dispatch: topk_idx has 0 dimensions; 2 are needed"),
        MOEBUS_WRONG(
            "FloatIds", as_is, in.topk_idx.dtype = DType::f32, "dispatch: topk_idx is f32; i32 or i64 is needed"),
        MOEBUS_WRONG(
            "ShortIds", as_is, in.topk_idx.dtype = DType::i16, "dispatch: topk_idx is i16; i32 or i64 is needed"),
        MOEBUS_WRONG("FewerTokens",
                     as_is,
                     in.topk_idx = tensor(DType::i64, 1, 2),
                     "dispatch: topk_idx has shape [1, 2]; dimension 0 must be 2"),
        MOEBUS_WRONG("MoreChoices",
                     as_is,
                     in.topk_idx = tensor(DType::i32, 2, 3),
                     "dispatch: topk_idx has shape [2, 3]; dimension 1 must be 2"),
        MOEBUS_WRONG(
            "Gaps",
            as_is,
            in.topk_idx.stride[0] = 4,
            "dispatch: topk_idx has stride 4 in dimension 0; 2 is needed there. A copy would hide the cost: pass "
            "a contiguous tensor"),
        MOEBUS_WRONG("OddAddress",
                     as_is,
                     (in.topk_idx = tensor(DType::i64, 2, 2), in.topk_idx.data = memory + 4),
                     "dispatch: topk_idx starts at an address that is not a multiple of 8"),
        MOEBUS_WRONG("DoubleWeights",
                     as_is,
                     in.topk_weights.dtype = DType::f64,
                     "dispatch: topk_weights is f64; the exchange was configured for f32"),
        MOEBUS_WRONG("WeightsOfOneChoice",
                     as_is,
                     in.topk_weights = tensor(DType::f32, 2, 1),
                     "dispatch: topk_weights has shape [2, 1]; dimension 1 must be 2"),
        MOEBUS_WRONG("WeightsWithoutData",
                     as_is,
                     in.topk_weights.data = nullptr,
                     "dispatch: topk_weights has shape [2, 2] and no data (null pointer)")),
    name_of<DispatchInput>);

INSTANTIATE_TEST_SUITE_P(
    ScalesAndSides,
    DispatchArguments,
    testing::Values(
        MOEBUS_WRONG("ScalesMissing",
                     with_scales,
                     in.scales = {},
                     "dispatch: scales are not given; with config.scale_format f32 and cast none they must be"),
        MOEBUS_WRONG("ScalesUnasked",
                     as_is,
                     in.scales = tensor(DType::f32, 2, 1),
                     "dispatch: scales are given; with config.scale_format none and cast none they must not be"),
        MOEBUS_WRONG("ScalesWithTheCast",
                     with_cast,
                     in.scales = tensor(DType::f32, 2, 1),
                     "dispatch: scales are given; with config.scale_format f32 and cast fp8 they must not be"),
        MOEBUS_WRONG("OtherScaleFormat",
                     with_exponents,
                     in.scales.dtype = DType::f32,
                     "dispatch: scales are f32; config.scale_format ue8m0 means i32. Scales of another format must be "
                     "converted and the rows quantised anew, never reinterpreted"),
        MOEBUS_WRONG("MoreScaleBlocks",
                     with_scales,
                     in.scales = tensor(DType::f32, 2, 2),
                     "dispatch: scales has shape [2, 2]; dimension 1 must be 1"),
        MOEBUS_WRONG("FlatScales",
                     with_scales,
                     in.scales = tensor_1d(memory, DType::f32, 2),
                     "dispatch: scales has 1 dimensions; 2 are needed"),
        MOEBUS_WRONG(
            "SideMissing", with_sides, in.side[1] = {}, "dispatch: side[1] is not given; config.side_bytes[1] is 6"),
        MOEBUS_WRONG("SideUnasked",
                     as_is,
                     in.side[0] = tensor(DType::u8, 2, 4),
                     "dispatch: side[0] is given; config.side_bytes[0] is 0"),
        MOEBUS_WRONG("SideOfFloats",
                     with_sides,
                     in.side[0].dtype = DType::f32,
                     "dispatch: side[0] is f32; the exchange was configured for u8"),
        MOEBUS_WRONG("SideOfOtherWidth",
                     with_sides,
                     in.side[1] = tensor(DType::u8, 2, 5),
                     "dispatch: side[1] has shape [2, 5]; dimension 1 must be 6")),
    name_of<DispatchInput>);

INSTANTIATE_TEST_SUITE_P(
    Outputs,
    DispatchArguments,
    testing::Values(
        MOEBUS_WRONG("PromisedButMissing",
                     with_caller_results,
                     in.output.tokens = {},
                     "dispatch: output.tokens is not given; config.caller_results promised it"),
        MOEBUS_WRONG(
            "WithDirectDelivery",
            with_direct_delivery,
            in.output.tokens = tensor(DType::bf16, 6, 8),
            "dispatch: output.tokens is given with direct delivery, whose result is the registered region: use "
            "staged delivery"),
        MOEBUS_WRONG("FewerRowsThanTheCapacity",
                     as_is,
                     in.output.tokens = tensor(DType::bf16, 5, 8),
                     "dispatch: output.tokens has shape [5, 8]; dimension 0 must be 6"),
        MOEBUS_WRONG("FlatForPadded",
                     padded,
                     in.output.tokens = tensor(DType::bf16, 12, 8),
                     "dispatch: output.tokens has 2 dimensions; 3 are needed"),
        MOEBUS_WRONG("FewerExpertsForPadded",
                     padded,
                     in.output.tokens = tensor_3d(memory, DType::bf16, 1, 6, 8),
                     "dispatch: output.tokens has shape [1, 6, 8]; dimension 0 must be 2"),
        MOEBUS_WRONG("NotCast",
                     with_cast,
                     in.output.tokens = tensor(DType::bf16, 6, 8),
                     "dispatch: output.tokens is bf16; the exchange was configured for e4m3"),
        MOEBUS_WRONG("WithoutScales",
                     with_scales,
                     in.output.tokens = tensor(DType::bf16, 6, 8),
                     "dispatch: output.scales has 0 dimensions; 2 are needed"),
        MOEBUS_WRONG("WithoutTheSecondSide",
                     with_sides,
                     (in.output.tokens = tensor(DType::bf16, 6, 8), in.output.side[0] = tensor(DType::u8, 6, 4)),
                     "dispatch: output.side[1] has 0 dimensions; 2 are needed"),
        MOEBUS_WRONG(
            "WithGaps",
            as_is,
            (in.output.tokens = tensor(DType::bf16, 6, 8), in.output.tokens.stride[0] = 16),
            "dispatch: output.tokens has stride 16 in dimension 0; 8 is needed there. A copy would hide the cost: "
            "pass a contiguous tensor")),
    name_of<DispatchInput>);

#undef MOEBUS_WRONG

TEST(DispatchInput, MayHaveNoTokensAndNoData) {
  const model::Shape shape = model::make_shape(base_config(), 2);
  DispatchInput input;
  input.tokens = tensor_2d(static_cast<std::byte*>(nullptr), DType::bf16, 0, 8);
  input.topk_idx = tensor_2d(static_cast<std::byte*>(nullptr), DType::i64, 0, 2);
  EXPECT_EQ(message_of(check_dispatch_input(shape, 0, input)), "nothing is wrong");
}

TEST(DispatchInput, MayHaveRowsFarApartAndScalesInColumns) {
  ExchangeConfig config = base_config();
  config.hidden = 200;
  with_scales(config);
  const model::Shape shape = model::make_shape(config, 2);
  DispatchInput input = good_dispatch(config);
  input.tokens.stride[0] = 256;
  input.scales = tensor(DType::f32, 2, 2);
  input.scales.stride = {1, 4, 0};
  EXPECT_EQ(message_of(check_dispatch_input(shape, 0, input)), "nothing is wrong");
}

// Combine -------------------------------------------------------------------------------------------------------------

constexpr std::int64_t kNumRows = 5;
constexpr std::int64_t kNumTokens = 2;

/// Rows of a dispatch that gave five rows for two own tokens, right in every respect.
CombineInput good_combine(const ExchangeConfig& config) {
  CombineInput input;
  input.rows = tensor(DType::bf16, kNumRows, 8);
  if (config.layout == Layout::expert_padded) input.rows = tensor_3d(memory, DType::bf16, 2, 6, 8);
  return input;
}

using WrongCombine = Wrong<CombineInput>;

class CombineArguments : public testing::TestWithParam<WrongCombine> {};

TEST_P(CombineArguments, AreRefusedWithArgumentValueAndLimit) {
  ExchangeConfig config = base_config();
  GetParam().configure(config);
  ASSERT_EQ(model::find_config_error(config, 2), std::nullopt);
  const model::Shape shape = model::make_shape(config, 2);
  CombineInput input = good_combine(config);
  ASSERT_EQ(message_of(check_combine_input(shape, 0, kNumRows, kNumTokens, input)), "nothing is wrong");
  GetParam().spoil(input);
  EXPECT_EQ(message_of(check_combine_input(shape, 0, kNumRows, kNumTokens, input)), GetParam().message);
}

#define MOEBUS_WRONG(name, configure, change, message)         \
  WrongCombine {                                               \
    name, configure, [](CombineInput& in) { change; }, message \
  }

INSTANTIATE_TEST_SUITE_P(
    Rows,
    CombineArguments,
    testing::Values(
        MOEBUS_WRONG("NotGiven", as_is, in.rows = {}, "combine: rows has 0 dimensions; 2 are needed"),
        MOEBUS_WRONG("OtherType",
                     as_is,
                     in.rows.dtype = DType::f32,
                     "combine: rows is f32; the exchange was configured for bf16"),
        MOEBUS_WRONG("Fewer",
                     as_is,
                     in.rows = tensor(DType::bf16, 4, 8),
                     "combine: rows has 4 rows; the dispatch of this handle gave 5"),
        MOEBUS_WRONG("OtherWidth",
                     as_is,
                     in.rows = tensor(DType::bf16, 5, 7),
                     "combine: rows has shape [5, 7]; dimension 1 must be 8"),
        MOEBUS_WRONG("FlatForPadded",
                     padded,
                     in.rows = tensor(DType::bf16, 12, 8),
                     "combine: rows has 2 dimensions; 3 are needed"),
        MOEBUS_WRONG("OtherCapacityForPadded",
                     padded,
                     in.rows = tensor_3d(memory, DType::bf16, 2, 5, 8),
                     "combine: rows has shape [2, 5, 8]; dimension 1 must be 6"),
        MOEBUS_WRONG(
            "GapsForPadded",
            padded,
            in.rows.stride[0] = 64,
            "combine: rows has stride 64 in dimension 0; 48 is needed there. A copy would hide the cost: pass a "
            "contiguous tensor")),
    name_of<CombineInput>);

INSTANTIATE_TEST_SUITE_P(
    Weights,
    CombineArguments,
    testing::Values(
        MOEBUS_WRONG("DispatchedForRankMajor",
                     as_is,
                     in.weighting = Weighting::dispatched,
                     "combine: weighting is dispatched with layout rank_major, whose rows the caller has weighted and "
                     "summed already: use none"),
        MOEBUS_WRONG("GivenButMissing",
                     by_expert,
                     in.weighting = Weighting::given,
                     "combine: topk_weights is not given and weighting is given"),
        MOEBUS_WRONG("ThereButUnasked",
                     by_expert,
                     (in.weighting = Weighting::dispatched, in.topk_weights = tensor(DType::f32, 2, 2)),
                     "combine: topk_weights is given and weighting is dispatched"),
        MOEBUS_WRONG("OfOtherTokens",
                     by_expert,
                     (in.weighting = Weighting::given, in.topk_weights = tensor(DType::f32, 3, 2)),
                     "combine: topk_weights has shape [3, 2]; dimension 0 must be 2"),
        MOEBUS_WRONG("OfOtherType",
                     by_expert,
                     (in.weighting = Weighting::given, in.topk_weights = tensor(DType::bf16, 2, 2)),
                     "combine: topk_weights is bf16; the exchange was configured for f32")),
    name_of<CombineInput>);

INSTANTIATE_TEST_SUITE_P(
    BiasLaneAndOutput,
    CombineArguments,
    testing::Values(MOEBUS_WRONG("SecondBiasAlone",
                                 as_is,
                                 in.bias[1] = tensor(DType::bf16, 2, 8),
                                 "combine: bias[1] is given and bias[0] is not"),
                    MOEBUS_WRONG("BiasOfOtherType",
                                 as_is,
                                 in.bias[0] = tensor(DType::f32, 2, 8),
                                 "combine: bias[0] is f32; the exchange was configured for bf16"),
                    MOEBUS_WRONG("SecondBiasOfOtherShape",
                                 as_is,
                                 (in.bias[0] = tensor(DType::bf16, 2, 8), in.bias[1] = tensor(DType::bf16, 1, 8)),
                                 "combine: bias[1] has shape [1, 8]; dimension 0 must be 2"),
                    MOEBUS_WRONG("LaneUnasked",
                                 as_is,
                                 in.lane = tensor(DType::f32, 5, 2),
                                 "combine: lane is given; set config.combine_lane, so that windows have room for it"),
                    MOEBUS_WRONG("LaneWithFewerRows",
                                 with_lane,
                                 in.lane = tensor(DType::f32, 4, 2),
                                 "combine: lane has 4 rows; the result of the dispatch has 5"),
                    MOEBUS_WRONG("LaneWithFewerRowsForPadded",
                                 padded_with_lane,
                                 in.lane = tensor(DType::f32, 11, 2),
                                 "combine: lane has 11 rows; the result of the dispatch has 12"),
                    MOEBUS_WRONG("LaneOfOtherType",
                                 with_lane,
                                 in.lane = tensor(DType::bf16, 5, 2),
                                 "combine: lane is bf16; the exchange was configured for f32"),
                    MOEBUS_WRONG("LaneOfOneChoice",
                                 with_lane,
                                 in.lane = tensor(DType::f32, 5, 1),
                                 "combine: lane has shape [5, 1]; dimension 1 must be 2"),
                    MOEBUS_WRONG("OutputOfOtherTokens",
                                 as_is,
                                 in.output = tensor(DType::bf16, 3, 8),
                                 "combine: output has shape [3, 8]; dimension 0 must be 2"),
                    MOEBUS_WRONG("OutputOfOtherType",
                                 as_is,
                                 in.output = tensor(DType::f16, 2, 8),
                                 "combine: output is f16; the exchange was configured for bf16"),
                    MOEBUS_WRONG("OutputWithoutData",
                                 as_is,
                                 (in.output = tensor(DType::bf16, 2, 8), in.output.data = nullptr),
                                 "combine: output has shape [2, 8] and no data (null pointer)")),
    name_of<CombineInput>);

#undef MOEBUS_WRONG

TEST(CombineInput, MayHaveMoreRowsThanTheDispatchGave) {
  const model::Shape shape = model::make_shape(base_config(), 2);
  CombineInput input;
  input.rows = tensor(DType::bf16, 6, 8);
  EXPECT_EQ(message_of(check_combine_input(shape, 0, kNumRows, kNumTokens, input)), "nothing is wrong");
}

TEST(CombineInput, MayHaveNoRowsAndNoData) {
  const model::Shape shape = model::make_shape(base_config(), 2);
  CombineInput input;
  input.rows = tensor_2d(static_cast<std::byte*>(nullptr), DType::bf16, 0, 8);
  EXPECT_EQ(message_of(check_combine_input(shape, 0, 0, 0, input)), "nothing is wrong");
}

}  // namespace
}  // namespace moebus::engine
