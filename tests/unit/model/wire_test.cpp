#include "model/wire.hpp"

#include <gtest/gtest.h>

namespace moebus::model {
namespace {

ExchangeConfig config_of(int hidden, DType dtype = DType::bf16) {
  ExchangeConfig config;
  config.num_experts = 8;
  config.num_topk = 3;
  config.hidden = hidden;
  config.max_tokens_per_rank = 4;
  config.dtype = dtype;
  return config;
}

TEST(ScaleItems, CountTheShortLastBlockAndPackFourExponentsInAWord) {
  EXPECT_EQ(num_scale_items(7168, ScaleFormat::none), 0);
  EXPECT_EQ(num_scale_items(7168, ScaleFormat::f32), 56);
  EXPECT_EQ(num_scale_items(7168, ScaleFormat::ue8m0), 14);
  EXPECT_EQ(num_scale_items(129, ScaleFormat::f32), 2);
  EXPECT_EQ(num_scale_items(1, ScaleFormat::ue8m0), 1);
  EXPECT_EQ(num_scale_items(513, ScaleFormat::ue8m0), 2);
}

TEST(DispatchRowFormat, KeepsAnArrayForEachPartOnALine) {
  ExchangeConfig config = config_of(129, DType::e4m3);
  config.scale_format = ScaleFormat::f32;
  config.side_bytes = {3, 17};
  const auto format = dispatch_row_format(config);
  EXPECT_EQ(format.wire_dtype, DType::e4m3);
  EXPECT_EQ(format.payload_bytes, 129U);
  EXPECT_EQ(format.scales_bytes, 8U);
  EXPECT_EQ(format.payload_stride_bytes, 144U);
  EXPECT_EQ(format.content_bytes, 129U + 8U + 3U + 17U);
  EXPECT_EQ(format.stride_bytes, 192U + 64U + 64U + 64U);  // each part on 64
  const SlotLayout slots = slot_layout(format, 10);
  EXPECT_EQ(slots.scales_offset_bytes, 1472U);  // 1440 on 64
  EXPECT_EQ(slots.side_offset_bytes[0], 1472U + 128U);
  EXPECT_EQ(slots.side_offset_bytes[1], 1472U + 128U + 64U);
  EXPECT_EQ(slots.total_bytes, 1472U + 128U + 64U + 192U);
  for (const std::int64_t num : {1, 3, 128}) {
    EXPECT_LE(slot_layout(format, num).total_bytes, static_cast<std::size_t>(num) * format.stride_bytes);
  }
}

TEST(DispatchRowFormat, TravelsAsE4m3WithScalesAfterTheCast) {
  ExchangeConfig config = config_of(7168);
  config.cast = Cast::fp8;
  config.scale_format = ScaleFormat::f32;
  const auto format = dispatch_row_format(config);
  EXPECT_EQ(format.input_dtype, DType::bf16);
  EXPECT_EQ(format.wire_dtype, DType::e4m3);
  EXPECT_EQ(format.content_bytes, 7168U + 56U * 4U);
  EXPECT_EQ(format.stride_bytes, 7168U + 256U);
}

TEST(DispatchRowFormat, KeepsSlotsOnALineForTheNarrowestRow) {
  const auto format = dispatch_row_format(config_of(1, DType::u8));
  EXPECT_EQ(format.content_bytes, 1U);
  EXPECT_EQ(format.stride_bytes, 64U);
}

TEST(CombineRowFormat, HasNeitherLaneNorMaskUnlessConfigured) {
  const auto format = combine_row_format(config_of(7168), false);
  EXPECT_EQ(format.lane_bytes, 0U);
  EXPECT_EQ(format.mask_bytes, 0U);
  EXPECT_EQ(format.stride_bytes, 14336U);
}

TEST(CombineRowFormat, PutsLaneAndMaskBehindTheRow) {
  ExchangeConfig config = config_of(7168);
  config.combine_hidden = 10;
  config.combine_dtype = DType::f32;
  config.combine_lane = true;
  const auto format = combine_row_format(config, true);
  EXPECT_EQ(format.payload_bytes, 40U);
  EXPECT_EQ(format.lane_offset_bytes, 48U);
  EXPECT_EQ(format.lane_bytes, 12U);
  EXPECT_EQ(format.mask_offset_bytes, 64U);
  EXPECT_EQ(format.mask_bytes, 8U);
  EXPECT_EQ(format.content_bytes, 52U);
  EXPECT_EQ(format.stride_bytes, 128U);
}

}  // namespace
}  // namespace moebus::model
