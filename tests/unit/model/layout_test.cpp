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

/// `count` equal stretches from `first` on.
void add_areas(
    std::vector<Area>& areas, const std::string& name, std::size_t first, std::size_t count, std::size_t bytes) {
  for (std::size_t i = 0; i < count; ++i) {
    areas.push_back({name + std::to_string(i), first + i * bytes, first + (i + 1) * bytes});
  }
}

/// Facts, tables and counts: what every call leaves in a parity.
std::vector<Area> control_areas(const Shape& shape, const WindowLayout& layout) {
  const std::size_t ranks = idx(shape.num_ranks);
  std::vector<Area> areas{{"facts", layout.facts_offset, layout.facts_offset + ranks * sizeof(CallFacts)}};
  for (std::size_t src = 0; src < ranks; ++src) {
    const std::size_t table = layout.tables_offset + src * layout.table_stride;
    const std::size_t table_bytes = idx(shape.config.max_tokens_per_rank) * layout.table_row.stride_bytes;
    areas.push_back({"table " + std::to_string(src), table, table + table_bytes});
    if (shape.config.path == Path::latency) continue;
    const std::size_t counts = layout.counts_offset + src * layout.counts_stride;
    areas.push_back({"counts " + std::to_string(src), counts, counts + (ranks + idx(shape.num_seats)) * 4});
  }
  return areas;
}

/// A dispatch's areas of a parity.
std::vector<Area> parity_areas(const Shape& shape, const WindowLayout& layout) {
  std::vector<Area> areas = control_areas(shape, layout);
  if (shape.config.path == Path::throughput) return areas;
  const std::size_t slots = idx(shape.config.max_tokens_per_rank) * shape.dispatch_row.stride_bytes;
  add_areas(areas, "dispatch slots of ", layout.slots_offset, idx(shape.num_ranks), slots);
  return areas;
}

/// A combine's areas of a parity.
std::vector<Area> combine_areas(const Shape& shape, const WindowLayout& layout) {
  std::vector<Area> areas = control_areas(shape, layout);
  if (shape.config.path == Path::throughput) return areas;
  const std::size_t slot = idx(shape.config.max_tokens_per_rank) * shape.combine_row.stride_bytes;
  add_areas(areas, "home slot ", layout.slots_offset, idx(shape.combine_slots_per_token), slot);
  if (!shape.has_partial_sums) return areas;
  const std::size_t served = idx(shape.topology.max_served());
  add_areas(areas, "relay slots ", layout.relay_offset, served, idx(shape.relay_slots_per_token) * slot);
  return areas;
}

/// The stage as a combine uses it: home's two halves, then those of each source served.
std::vector<Area> stage_areas(const Shape& shape, const WindowLayout& layout) {
  const std::size_t slot = idx(layout.combine_round_tokens) * shape.combine_row.stride_bytes;
  std::vector<Area> areas;
  add_areas(areas, "home half ", 0, 2, idx(shape.combine_slots_per_token) * slot);
  if (!shape.has_partial_sums) return areas;
  const std::size_t halves = 2 * idx(shape.topology.max_served());
  add_areas(areas, "relay half ", layout.relay_stage_offset, halves, idx(shape.relay_slots_per_token) * slot);
  return areas;
}

/// Groups of one and several nodes, all of at most eight ranks.
std::vector<GroupFacts> many_groups() {
  std::vector<GroupFacts> groups;
  for (const std::vector<int>& node_of : {std::vector<int>{0, 0, 0, 1},
                                          std::vector<int>{0, 1, 2, 2},
                                          std::vector<int>{0, 1, 0, 1},
                                          std::vector<int>{0, 0, 0, 0, 1, 1, 1, 1}}) {
    for (const int levels : {1, 2}) groups.push_back({Topology::of_nodes(node_of), levels, 0});
  }
  groups.back().topology.set_unmapped(2, 5);
  return groups;
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

TEST(WindowLayout, KeepsHomeAndRelaySlotsApartOnSeveralNodes) {
  for (const GroupFacts& group : many_groups()) {
    for (const Path path : {Path::latency, Path::throughput}) {
      for (const int topk : {1, 3, 9}) {
        ExchangeConfig config = deepseek_config(5);
        config.hidden = 33;
        config.num_topk = topk;
        config.num_experts = 12;
        config.seats_per_rank = 5;
        config.combine_dtype = DType::f32;
        config.path = path;
        const auto shape = make_shape(config, group);
        const auto layout = window_layout(shape);
        const std::string what = std::string(to_string(path)) + ", top-" + std::to_string(topk) + ", levels " +
                                 std::to_string(group.levels) + "\n" + group.topology.describe();
        expect_apart_and_within(parity_areas(shape, layout), layout.bytes.parity, what);
        expect_apart_and_within(combine_areas(shape, layout), layout.bytes.parity, what);
        expect_apart_and_within(stage_areas(shape, layout), layout.bytes.stage, what);
      }
    }
  }
}

TEST(WindowLayout, IsTheSameOnEveryRankOfUnevenNodes) {
  for (const Path path : {Path::latency, Path::throughput}) {
    ExchangeConfig config = deepseek_config(5);
    config.path = path;
    GroupFacts group{Topology::of_nodes(std::vector<int>{0, 0, 0, 1}), 2, 0};
    const auto first = window_layout(make_shape(config, group));
    for (group.rank = 1; group.rank < 4; ++group.rank) {
      const auto layout = window_layout(make_shape(config, group));
      EXPECT_EQ(layout.bytes.total(), first.bytes.total());
      EXPECT_EQ(layout.relay_offset, first.relay_offset);
      EXPECT_EQ(layout.relay_stage_offset, first.relay_stage_offset);
      EXPECT_EQ(layout.dispatch_round_rows, first.dispatch_round_rows);
      EXPECT_EQ(layout.combine_round_tokens, first.combine_round_tokens);
    }
  }
}

TEST(WindowLayout, HasDispatchRoundsForDirectDeliveryWhereSomebodyCannotWriteStraight) {
  ExchangeConfig config = deepseek_config(64);
  config.path = Path::throughput;
  EXPECT_EQ(window_layout(make_shape(config, 4)).dispatch_round_rows, 0);
  GroupFacts group = GroupFacts::one_node(4);
  group.topology.set_unmapped(1, 3);
  const auto shape = make_shape(config, group);
  const auto layout = window_layout(shape);
  EXPECT_GT(layout.dispatch_round_rows, 0);
  EXPECT_GE(layout.bytes.stage, idx(layout.dispatch_round_rows) * 2 * 4 * shape.dispatch_row.stride_bytes);
  EXPECT_GT(layout.bytes.region, 0U);
}

TEST(WindowLayout, KeepsRoundsThroughGatewaysWithinTheStageThatIsLent) {
  ExchangeConfig config = deepseek_config(4096);
  config.path = Path::throughput;
  const std::vector<int> node_of{0, 0, 0, 0, 1, 1, 1, 1};
  const GroupFacts group{Topology::of_nodes(node_of), 2, 0};
  // One token a round: 2 halves of 8 home slots and, for one source, 4 relay slots; dispatch has 8 shares of a row.
  config.stage_bytes = 2 * (8 + 4) * 14336;
  ASSERT_EQ(find_config_error(config, group), std::nullopt);
  const auto least = window_layout(make_shape(config, group));
  EXPECT_EQ(least.combine_round_tokens, 1);
  EXPECT_EQ(least.dispatch_round_rows, 1);
  EXPECT_LE(least.bytes.stage, config.stage_bytes + 4096);
  config.stage_bytes = std::size_t{64} << 20;
  const auto usual = window_layout(make_shape(config, group));
  EXPECT_GE(usual.combine_round_tokens, 8);
  EXPECT_LE(usual.bytes.stage, config.stage_bytes);
}

TEST(WindowLayout, HasAnOutboxOfFourPiecesOnlyWhereSomebodyIsNotMapped) {
  for (const Path path : {Path::latency, Path::throughput}) {
    ExchangeConfig config = deepseek_config(64);
    config.path = path;
    EXPECT_EQ(window_layout(make_shape(config, 4)).bytes.outbox, 0U);
    GroupFacts group = GroupFacts::one_node(4);
    group.topology.set_unmapped(1, 3);
    const auto shape = make_shape(config, group);
    const auto layout = window_layout(shape);
    const std::size_t piece = outbox_piece_bytes(shape);
    EXPECT_GE(layout.bytes.outbox, 4 * piece);
    EXPECT_EQ(layout.bytes.outbox_offset() + layout.bytes.outbox, layout.bytes.total());
    EXPECT_GE(piece, slot_layout(shape.dispatch_row, 32).total_bytes);
    EXPECT_GE(piece, 128 * shape.combine_row.stride_bytes);
    EXPECT_GE(piece, 64 * layout.table_row.stride_bytes);
    EXPECT_EQ(piece % kSlotAlign, 0U);
  }
}

TEST(WindowLayout, HasPiecesForTablesAndCountsLargerThanRows) {
  ExchangeConfig config = deepseek_config(4096);
  config.hidden = 1;
  const std::size_t table_row = table_row_format(8).stride_bytes;
  EXPECT_EQ(outbox_piece_bytes(make_shape(config, 4)), 4096 * table_row);
  config.max_tokens_per_rank = 1;
  config.num_experts = 1 << 20;
  EXPECT_GE(outbox_piece_bytes(make_shape(config, 4)), (std::size_t{1} << 22) + 4 * 4);
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
  WindowBytes bytes{100, 20, 3, 9};
  bytes.cover({7, 50, 3000, 8});
  EXPECT_EQ(bytes.parity, 100U);
  EXPECT_EQ(bytes.stage, 50U);
  EXPECT_EQ(bytes.region, 3000U);
  EXPECT_EQ(bytes.stage_offset(), 200U);
  EXPECT_EQ(bytes.region_offset(), 250U);
  EXPECT_EQ(bytes.outbox_offset(), 3250U);
  EXPECT_EQ(bytes.total(), 3259U);
}

TEST(WindowBytes, AlternatesParitiesAcrossTheWrapOfEpochs) {
  const WindowBytes bytes{100, 0, 0, 0};
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
