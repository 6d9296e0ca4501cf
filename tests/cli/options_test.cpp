#include "cli/options.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace moebus::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string usage_error_of(BenchOptions options) {
  try {
    complete(options);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(BenchOptions, DescribeDeepSeekV3WithoutAModel) {
  BenchOptions options;
  complete(options);
  const ExchangeConfig config = exchange_config(options);
  EXPECT_EQ(config.hidden, 7168);
  EXPECT_EQ(config.num_topk, 8);
  EXPECT_EQ(config.num_experts, 256);
  EXPECT_EQ(config.dtype, DType::bf16);
  EXPECT_EQ(config.scale_format, ScaleFormat::none);
}

TEST(BenchOptions, TakeWhatIsNotGivenFromTheModel) {
  BenchOptions options;
  options.model = "mixtral-8x7b";
  options.topk = 1;
  complete(options);
  EXPECT_EQ(options.experts, 8);
  EXPECT_EQ(options.topk, 1);
}

TEST(BenchOptions, MakeFp8RowsInsideFromBf16WithACast) {
  BenchOptions options;
  options.has_cast = true;
  options.scales = "ue8m0";
  complete(options);
  const ExchangeConfig config = exchange_config(options);
  EXPECT_EQ(config.dtype, DType::bf16);
  EXPECT_EQ(config.cast, Cast::fp8);
  EXPECT_EQ(config.scale_format, ScaleFormat::ue8m0);
}

TEST(BenchOptions, SendGivenFp8RowsWithScalesWithoutACast) {
  BenchOptions options;
  options.dtype = "fp8";
  complete(options);
  const ExchangeConfig config = exchange_config(options);
  EXPECT_EQ(config.dtype, DType::e4m3);
  EXPECT_EQ(config.cast, Cast::none);
  EXPECT_EQ(config.scale_format, ScaleFormat::f32);
  EXPECT_EQ(config.combine_dtype, DType::bf16);
}

TEST(BenchOptions, RefuseMoreChoicesThanExperts) {
  BenchOptions options;
  options.topk = 9;
  options.experts = 8;
  EXPECT_THAT(usage_error_of(options), AllOf(HasSubstr("--topk 9"), HasSubstr("--experts 8")));
}

TEST(BenchOptions, RefuseACastToAnotherTypeThanFp8) {
  BenchOptions options;
  options.has_cast = true;
  options.dtype = "f32";
  EXPECT_THAT(usage_error_of(options), AllOf(HasSubstr("--cast"), HasSubstr("--dtype f32")));
}

TEST(BenchOptions, RefuseScalesWithoutFp8Rows) {
  BenchOptions options;
  options.scales = "f32";
  EXPECT_THAT(usage_error_of(options), AllOf(HasSubstr("--scales f32"), HasSubstr("--dtype bf16")));
}

TEST(BenchOptions, NameARoutingThatCannotBe) {
  BenchOptions options;
  options.routing = "zipf:many";
  EXPECT_THAT(usage_error_of(options), AllOf(HasSubstr("--routing zipf:many"), HasSubstr("uniform")));
}

TEST(BenchOptions, NameAnUnknownModelAndTheKnownOnes) {
  BenchOptions options;
  options.model = "gpt-9";
  EXPECT_THAT(usage_error_of(options), AllOf(HasSubstr("--model gpt-9"), HasSubstr("deepseek-v3")));
}

TEST(BenchOptions, RefuseAPictureThatIsNeitherSvgNorPng) {
  BenchOptions options;
  options.plot = "out.pdf";
  EXPECT_THAT(usage_error_of(options), AllOf(HasSubstr("--plot out.pdf"), HasSubstr(".svg")));
}

TEST(BenchOptions, RefuseStagedDeliveryOnTheLatencyPath) {
  BenchOptions options;
  options.delivery = "staged";
  EXPECT_THAT(usage_error_of(options), AllOf(HasSubstr("--delivery staged"), HasSubstr("--path throughput")));
}

TEST(BenchOptions, SayHowRowsCrossBetweenNodes) {
  BenchOptions options;
  options.topology = {"2", "node", "direct", 2};
  options.ranks = 2;
  complete(options);
  EXPECT_EQ(exchange_config(options).inter_node, InterNode::direct);
}

TEST(BenchOptions, RefuseMoreNodesThanRanks) {
  BenchOptions options;
  options.topology.nodes = "4";
  options.ranks = 2;
  EXPECT_THAT(usage_error_of(options), AllOf(HasSubstr("--nodes 4"), HasSubstr("2 ranks")));
}

TEST(BenchOptions, RefuseToCompareTheSameMapping) {
  BenchOptions options;
  options.compares_map = true;
  EXPECT_THAT(usage_error_of(options), AllOf(HasSubstr("--compare-map"), HasSubstr("--map none")));
}

TEST(BenchOptions, RefuseOverlapWithoutExperts) {
  BenchOptions options;
  options.has_overlap = true;
  EXPECT_THAT(usage_error_of(options), AllOf(HasSubstr("--overlap"), HasSubstr("bench layer")));
}

TEST(CheckOptions, ChooseFromNumbersOfRanksThatTheNodesAllow) {
  CheckOptions options;
  options.topology.nodes = "4";
  complete(options);
  EXPECT_EQ(options.ranks, (std::vector<int>{4, 7, 8}));
}

TEST(CheckOptions, RefuseRanksThatDoNotFitTheNodes) {
  CheckOptions options;
  options.topology.nodes = "3+1";
  options.ranks = {2, 4};
  EXPECT_THROW(complete(options), UsageError);
}

}  // namespace
}  // namespace moebus::cli
