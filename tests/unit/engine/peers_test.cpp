#include "engine/peers.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace moebus::engine {
namespace {

using testing::ElementsAre;

std::vector<int> peers_in_order(int rank, int num_ranks) {
  std::vector<int> peers;
  for_each_peer(rank, num_ranks, [&](int peer) { peers.push_back(peer); });
  return peers;
}

ExchangeConfig config_of(Layout layout, ScaleOrder order) {
  ExchangeConfig config;
  config.num_experts = 5;
  config.num_topk = 2;
  config.hidden = 300;
  config.max_tokens_per_rank = 3;
  config.cast = Cast::fp8;
  config.scale_format = ScaleFormat::f32;
  config.scale_order = order;
  config.side_bytes = {5, 7};
  config.layout = layout;
  return config;
}

TEST(Peers, AreTakenFromTheNextNeighbourOnAndNeverTheOwnRank) {
  EXPECT_THAT(peers_in_order(0, 4), ElementsAre(1, 2, 3));
  EXPECT_THAT(peers_in_order(2, 4), ElementsAre(3, 0, 1));
  EXPECT_THAT(peers_in_order(0, 1), ElementsAre());
}

TEST(ResultTensors, CoverTheCapacityRowMajor) {
  const auto shape = model::make_shape(config_of(Layout::rank_major, ScaleOrder::row_major), 2);
  const auto layout = model::result_layout(shape);
  std::vector<std::byte> memory(layout.total_bytes);
  const DispatchOutput output = result_tensors(shape, layout, 0, memory.data());
  EXPECT_EQ(output.tokens.data, memory.data());
  EXPECT_EQ(output.tokens.dtype, DType::e4m3);
  EXPECT_THAT(output.tokens.shape, ElementsAre(6, 300, 0));
  EXPECT_THAT(output.scales.shape, ElementsAre(6, 3, 0));
  EXPECT_THAT(output.scales.stride, ElementsAre(3, 1, 0));
  EXPECT_EQ(output.scales.data, memory.data() + layout.scales_offset);
  EXPECT_THAT(output.side[1].shape, ElementsAre(6, 7, 0));
  EXPECT_LE(output.side[1].data + 6 * 7, memory.data() + memory.size());
}

TEST(ResultTensors, TransposeScalesPerExpertWhenPaddedAndColumnMajor) {
  auto config = config_of(Layout::expert_padded, ScaleOrder::column_major);
  config.capacity_rows = 5;
  const auto shape = model::make_shape(config, 2);
  const auto layout = model::result_layout(shape);
  std::vector<std::byte> memory(layout.total_bytes);
  const DispatchOutput output = result_tensors(shape, layout, 0, memory.data());
  // Rank 0 owns three of five experts; a column of five rows takes eight items.
  EXPECT_THAT(output.tokens.shape, ElementsAre(3, 5, 300));
  EXPECT_THAT(output.scales.shape, ElementsAre(3, 5, 3));
  EXPECT_THAT(output.scales.stride, ElementsAre(24, 1, 8));
  EXPECT_THAT(result_tensors(shape, layout, 1, memory.data()).tokens.shape, ElementsAre(2, 5, 300));
}

TEST(ResultRows, SayTheSameOfTheMemoryAsTheTensors) {
  for (const Layout layout_kind : {Layout::rank_major, Layout::expert_major, Layout::expert_padded}) {
    for (const ScaleOrder order : {ScaleOrder::row_major, ScaleOrder::column_major}) {
      const auto shape = model::make_shape(config_of(layout_kind, order), 2);
      const auto layout = model::result_layout(shape);
      std::vector<std::byte> memory(layout.total_bytes);
      const auto rows = result_rows(shape, layout, memory.data());
      const auto tensors = output_rows(shape, result_tensors(shape, layout, 0, memory.data()));
      EXPECT_EQ(rows.tokens, tensors.tokens);
      EXPECT_EQ(rows.token_stride_bytes, tensors.token_stride_bytes);
      EXPECT_EQ(rows.scales, tensors.scales);
      EXPECT_EQ(rows.scale_row_stride_bytes, tensors.scale_row_stride_bytes);
      EXPECT_EQ(rows.scale_item_stride_bytes, tensors.scale_item_stride_bytes);
      // A row's scales lie where a group's first row and the row within it say.
      const auto scale_at = [](const backend::RowArrays& r, std::int64_t row) {
        const std::int64_t group = r.scale_group_rows > 0 ? row / r.scale_group_rows : 0;
        return group * r.scale_group_stride_bytes + (row - group * r.scale_group_rows) * r.scale_row_stride_bytes;
      };
      for (std::int64_t row = 0; row < shape.result_rows; ++row) {
        EXPECT_EQ(scale_at(rows, row), scale_at(tensors, row)) << to_string(layout_kind) << ", row " << row;
      }
      for (std::size_t s = 0; s < kMaxSideTensors; ++s) {
        EXPECT_EQ(rows.side[s], tensors.side[s]);
        EXPECT_EQ(rows.side_stride_bytes[s], tensors.side_stride_bytes[s]);
      }
    }
  }
}

TEST(InputRows, KeepTheCallersStrides) {
  DispatchInput input;
  std::vector<std::uint16_t> tokens(64);
  std::vector<float> scales(64);
  input.tokens = tensor_2d(tokens.data(), DType::bf16, 4, 8);
  input.tokens.stride[0] = 16;
  input.scales = tensor_2d(scales.data(), DType::f32, 4, 3);
  input.scales.stride = {1, 4, 0};
  const auto rows = input_rows(input);
  EXPECT_EQ(rows.token_stride_bytes, 32);
  EXPECT_EQ(rows.scale_row_stride_bytes, 4);
  EXPECT_EQ(rows.scale_item_stride_bytes, 16);
  EXPECT_EQ(rows.side[0], nullptr);
}

}  // namespace
}  // namespace moebus::engine
