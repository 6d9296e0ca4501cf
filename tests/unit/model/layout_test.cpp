#include "model/layout.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace moebus::model {
namespace {

using base::idx;

ExchangeConfig deepseek_config(int max_tokens) {
  ExchangeConfig config;
  config.num_experts = 256;
  config.num_topk = 8;
  config.hidden = 7168;
  config.max_tokens_per_rank = max_tokens;
  return config;
}

/// A named stretch of a window.
struct Area {
  std::string name;
  std::size_t first;
  std::size_t last;
};

void expect_apart_and_within(const std::vector<Area>& areas, std::size_t end, const std::string& what) {
  for (std::size_t i = 0; i < areas.size(); ++i) {
    EXPECT_LE(areas[i].last, end) << what << ": " << areas[i].name << " ends past its area";
    EXPECT_EQ(areas[i].first % kSlotAlign, 0U) << what << ": " << areas[i].name;
    for (std::size_t j = 0; j < i; ++j) {
      const bool is_apart = areas[i].last <= areas[j].first || areas[j].last <= areas[i].first;
      EXPECT_TRUE(is_apart) << what << ": " << areas[i].name << " overlaps " << areas[j].name;
    }
  }
}

std::vector<Area> parity_areas(const Shape& shape, const WindowLayout& layout) {
  const std::size_t ranks = idx(shape.num_ranks);
  const std::size_t tokens = idx(shape.config.max_tokens_per_rank);
  std::vector<Area> areas{{"facts", layout.facts_offset, layout.facts_offset + ranks * sizeof(CallFacts)}};
  for (std::size_t src = 0; src < ranks; ++src) {
    const std::size_t table = layout.tables_offset + src * layout.table_stride;
    areas.push_back({"table " + std::to_string(src), table, table + tokens * layout.table_row.stride_bytes});
    if (shape.config.path == Path::throughput) {
      const std::size_t counts = layout.counts_offset + src * layout.counts_stride;
      areas.push_back({"counts " + std::to_string(src), counts, counts + (ranks + idx(shape.config.num_experts)) * 4});
    } else {
      const std::size_t slots = tokens * shape.dispatch_row.stride_bytes;
      const std::size_t first = layout.slots_offset + src * slots;
      areas.push_back({"dispatch slots of " + std::to_string(src), first, first + slots});
    }
  }
  return areas;
}

TEST(WindowLayout, RegistersAtMostThirtyTwoMebibytesForEightRanksAndOneHundredTwentyEightTokens) {
  const auto shape = make_shape(deepseek_config(128), 8);
  const std::size_t total = window_layout(shape).bytes.total();
  EXPECT_LE(total, std::size_t{32} << 20);
  // 2 parities x 8 sources x 128 tokens x 14336 bytes of rows are 29.36 MB; tables and facts are the rest.
  EXPECT_GT(total, 29'400'000U);
  EXPECT_LT(total, 29'600'000U);
}

TEST(WindowLayout, KeepsTheAreasOfAParityApart) {
  for (const Path path : {Path::latency, Path::throughput}) {
    for (const int ranks : {1, 2, 3, 7, 8, 64}) {
      for (const int tokens : {1, 3, 128}) {
        ExchangeConfig config = deepseek_config(tokens);
        config.hidden = 33;
        config.num_topk = 5;
        config.path = path;
        const auto shape = make_shape(config, ranks);
        const auto layout = window_layout(shape);
        expect_apart_and_within(parity_areas(shape, layout),
                                layout.bytes.parity,
                                std::string(to_string(path)) + ", " + std::to_string(ranks) + " ranks, " +
                                    std::to_string(tokens) + " tokens");
      }
    }
  }
}

TEST(WindowLayout, HoldsTheCombineSlotsOfEveryTokenInTheParity) {
  ExchangeConfig config = deepseek_config(16);
  config.layout = Layout::expert_major;
  config.combine_rows = CombineRows::per_expert;
  config.combine_dtype = DType::f32;
  const auto shape = make_shape(config, 2);
  const auto layout = window_layout(shape);
  // Eight rows of 28672 bytes a token are more than two rows of 14336.
  EXPECT_GE(layout.bytes.parity - layout.slots_offset, 16U * 8U * 28672U);
}

TEST(WindowLayout, GivesTheThroughputPathRoundsThatFitItsStage) {
  ExchangeConfig config = deepseek_config(4096);
  config.path = Path::throughput;
  config.delivery = Delivery::staged;
  config.stage_bytes = std::size_t{8} << 20;
  const auto shape = make_shape(config, 8);
  const auto layout = window_layout(shape);
  // 8 MiB / (2 halves x 8 sources x 14336 bytes)
  EXPECT_EQ(layout.dispatch_round_rows, 36);
  EXPECT_LE(idx(layout.combine_round_tokens) * 2 * 8 * shape.combine_row.stride_bytes, layout.bytes.stage);
  EXPECT_LE(layout.bytes.stage, config.stage_bytes + 4096);
  EXPECT_EQ(layout.bytes.region, 0U);
}

TEST(WindowLayout, HasRoundsOfAtLeastOneRowAndAtMostAllTokens) {
  ExchangeConfig config = deepseek_config(3);
  config.path = Path::throughput;
  config.delivery = Delivery::staged;
  EXPECT_EQ(window_layout(make_shape(config, 2)).dispatch_round_rows, 3);
  EXPECT_EQ(window_layout(make_shape(config, 2)).combine_round_tokens, 3);
  config.stage_bytes = 2 * 2 * 14336;
  ASSERT_EQ(find_config_error(config, 2), std::nullopt);
  EXPECT_EQ(window_layout(make_shape(config, 2)).dispatch_round_rows, 1);
  EXPECT_EQ(window_layout(make_shape(config, 2)).combine_round_tokens, 1);
}

TEST(WindowLayout, RegistersTheResultForDirectDeliveryOnly) {
  ExchangeConfig config = deepseek_config(64);
  EXPECT_EQ(window_layout(make_shape(config, 4)).bytes.region, 0U);
  config.path = Path::throughput;
  const auto shape = make_shape(config, 4);
  EXPECT_GE(window_layout(shape).bytes.region, result_layout(shape).total_bytes);
  EXPECT_LT(window_layout(shape).bytes.region, result_layout(shape).total_bytes + 4096);
}

TEST(WindowBytes, CoverTakesTheLargerOfEachArea) {
  WindowBytes bytes{100, 20, 3};
  bytes.cover({7, 50, 3000});
  EXPECT_EQ(bytes.parity, 100U);
  EXPECT_EQ(bytes.stage, 50U);
  EXPECT_EQ(bytes.region, 3000U);
  EXPECT_EQ(bytes.stage_offset(), 200U);
  EXPECT_EQ(bytes.region_offset(), 250U);
  EXPECT_EQ(bytes.total(), 3250U);
}

TEST(WindowBytes, AlternatesParitiesAcrossTheWrapOfEpochs) {
  const WindowBytes bytes{100, 0, 0};
  EXPECT_EQ(bytes.parity_offset(6), 0U);
  EXPECT_EQ(bytes.parity_offset(7), 100U);
  EXPECT_NE(bytes.parity_offset(0xFFFFFFFFU), bytes.parity_offset(0));
}

TEST(TableRowFormat, HoldsTokenAndSlotThenIdsThenWeights) {
  const auto format = table_row_format(8);
  EXPECT_EQ(format.ids_offset_bytes, 8U);
  EXPECT_EQ(format.weights_offset_bytes, 40U);
  EXPECT_EQ(format.stride_bytes, 72U);
  EXPECT_EQ(table_row_format(1).stride_bytes, 16U);
}

TEST(ResultLayout, PutsRowsThenScalesThenSides) {
  ExchangeConfig config = deepseek_config(2);
  config.hidden = 300;
  config.cast = Cast::fp8;
  config.scale_format = ScaleFormat::f32;
  config.side_bytes = {5, 7};
  const auto layout = result_layout(make_shape(config, 2));  // 4 rows
  EXPECT_EQ(layout.token_stride, 300U);
  EXPECT_EQ(layout.scales_offset, 1216U);  // 1200, on 64
  EXPECT_EQ(layout.scale_row_stride, 12U);
  EXPECT_EQ(layout.scale_item_stride, 4U);
  EXPECT_EQ(layout.side_offset[0], 1280U);  // 1216 + 48, on 64
  EXPECT_EQ(layout.side_offset[1], 1344U);  // 1280 + 20, on 64
  EXPECT_EQ(layout.total_bytes, 1408U);     // 1344 + 28, on 64
}

TEST(ResultLayout, StartsEveryScaleColumnOnSixteenBytesWhenColumnMajor) {
  ExchangeConfig config = deepseek_config(3);
  config.hidden = 300;
  config.cast = Cast::fp8;
  config.scale_format = ScaleFormat::f32;
  config.scale_order = ScaleOrder::column_major;
  const auto flat = result_layout(make_shape(config, 2));  // 6 rows, 3 blocks
  EXPECT_EQ(flat.scale_row_stride, 4U);
  EXPECT_EQ(flat.scale_item_stride, 32U);
  EXPECT_EQ(flat.scale_group_rows, 6);
  EXPECT_GE(flat.total_bytes, flat.scales_offset + 3 * 32);

  config.layout = Layout::expert_padded;
  config.num_experts = 6;
  config.capacity_rows = 5;
  const auto padded = result_layout(make_shape(config, 2));  // 3 experts of 5 rows
  EXPECT_EQ(padded.scale_group_rows, 5);
  EXPECT_EQ(padded.scale_item_stride, 32U);
  EXPECT_EQ(padded.scale_group_stride, 96U);
  EXPECT_GE(padded.total_bytes, padded.scales_offset + 3 * 96);
}

}  // namespace
}  // namespace moebus::model
