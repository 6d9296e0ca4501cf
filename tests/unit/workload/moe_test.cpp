#include "workload/moe.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "moebus/error.hpp"

namespace moebus::workload {
namespace {

using testing::ElementsAre;

ExchangeConfig config_of(DType dtype, DType combine_dtype, int hidden) {
  ExchangeConfig config;
  config.num_experts = 4;
  config.num_topk = 2;
  config.hidden = hidden;
  config.max_tokens_per_rank = 4;
  config.dtype = dtype;
  config.combine_dtype = combine_dtype;
  return config;
}

template <class T>
std::span<const std::byte> bytes(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

template <class Out, class In>
std::vector<Out> apply(const ExchangeConfig& config,
                       int expert,
                       const std::vector<In>& row,
                       std::span<const std::byte> scales = {}) {
  const int columns = config.combine_hidden > 0 ? config.combine_hidden : config.hidden;
  std::vector<Out> output(static_cast<std::size_t>(columns));
  apply_expert(config, expert, bytes(row), scales, std::as_writable_bytes(std::span(output)));
  return output;
}

TEST(ApplyExpert, MultipliesByExpertPlusOne) {
  const ExchangeConfig config = config_of(DType::bf16, DType::bf16, 3);
  const std::vector<std::uint16_t> row = {0x3F80, 0xBFC0, 0x7F81};  // 1, -1.5, a NaN
  EXPECT_THAT((apply<std::uint16_t>(config, 3, row)), ElementsAre(0x4080, 0xC0C0, 0x7FFF));
}

TEST(ApplyExpert, RoundsOnceToTheCombineType) {
  const std::vector<float> row = {
      1.0F + 0x1p-8F, 1.0F + 0x3p-8F, 65520.0F, 0x1p-25F, 0x3p-25F, 0.0F, -0x1p-14F, 1.0F + 0x3p-11F};
  EXPECT_THAT((apply<std::uint16_t>(config_of(DType::f32, DType::bf16, 8), 0, row)),
              ElementsAre(0x3F80, 0x3F82, 0x4780, 0x3300, 0x33C0, 0x0000, 0xB880, 0x3F80));
  EXPECT_THAT((apply<std::uint16_t>(config_of(DType::f32, DType::f16, 8), 0, row)),
              ElementsAre(0x3C04, 0x3C0C, 0x7C00, 0x0000, 0x0002, 0x0000, 0x8400, 0x3C02));
}

TEST(ApplyExpert, ReadsEveryElementType) {
  EXPECT_THAT((apply<float>(config_of(DType::u8, DType::f32, 2), 1, std::vector<std::uint8_t>{3, 255})),
              ElementsAre(6, 510));
  EXPECT_THAT((apply<float>(config_of(DType::i8, DType::f32, 2), 1, std::vector<std::int8_t>{-3, 7})),
              ElementsAre(-6, 14));
  EXPECT_THAT((apply<float>(config_of(DType::i16, DType::f32, 1), 1, std::vector<std::int16_t>{-300})),
              ElementsAre(-600));
  EXPECT_THAT((apply<float>(config_of(DType::i32, DType::f32, 1), 1, std::vector<std::int32_t>{70000})),
              ElementsAre(140000));
  EXPECT_THAT((apply<float>(config_of(DType::i64, DType::f32, 1), 1, std::vector<std::int64_t>{-1})), ElementsAre(-2));
  EXPECT_THAT((apply<float>(config_of(DType::f64, DType::f32, 1), 1, std::vector<double>{0.25})), ElementsAre(0.5F));
  EXPECT_THAT((apply<float>(config_of(DType::f16, DType::f32, 2), 1, std::vector<std::uint16_t>{0x3C00, 0x0001})),
              ElementsAre(2, 0x1p-23F));
  EXPECT_THAT((apply<float>(config_of(DType::e5m2, DType::f32, 2), 1, std::vector<std::uint8_t>{0x3C, 0xC0})),
              ElementsAre(2, -4));
  EXPECT_THAT((apply<float>(config_of(DType::e4m3, DType::f32, 3), 1, std::vector<std::uint8_t>{0x38, 0x7E, 0x81})),
              ElementsAre(2, 896, -0x1p-8F));
}

TEST(ApplyExpert, MultipliesE4m3RowsByTheirScales) {
  ExchangeConfig config = config_of(DType::e4m3, DType::f32, 130);
  std::vector<std::uint8_t> row(130, 0x38);
  config.scale_format = ScaleFormat::f32;
  const std::vector<float> f32 = {0.5F, 4.0F};
  auto output = apply<float>(config, 0, row, bytes(f32));
  EXPECT_EQ(output[127], 0.5F);
  EXPECT_EQ(output[128], 4.0F);
  config.scale_format = ScaleFormat::ue8m0;
  const std::vector<std::uint8_t> ue8m0 = {120, 130, 0, 0};
  output = apply<float>(config, 0, row, bytes(ue8m0));
  EXPECT_EQ(output[127], 0x1p-7F);
  EXPECT_EQ(output[129], 8.0F);
}

TEST(ApplyExpert, RepeatsOrCutsColumnsToTheCombineWidth) {
  ExchangeConfig config = config_of(DType::f32, DType::f32, 2);
  config.combine_hidden = 5;
  EXPECT_THAT((apply<float>(config, 0, std::vector<float>{1, 2})), ElementsAre(1, 2, 1, 2, 1));
  config.combine_hidden = 1;
  EXPECT_THAT((apply<float>(config, 0, std::vector<float>{1, 2})), ElementsAre(1));
}

TEST(ApplyExpert, RefusesRowsOfAnotherWidth) {
  EXPECT_THROW((void)(apply<float>(config_of(DType::f32, DType::f32, 2), 0, std::vector<float>{1})), Error);
}

TEST(RunExperts, AddsLocalExpertsOfRankMajorRows) {
  const ExchangeConfig config = config_of(DType::f32, DType::f32, 1);
  std::vector<float> tokens = {1, 10};
  std::vector<std::int32_t> ids = {1, 0, -1, 1};
  std::vector<float> weights = {0.5F, 2.0F, 0.0F, 0.25F};
  ReceivedView view;
  view.tokens = tensor_2d(tokens.data(), DType::f32, 2, 1);
  view.topk_idx = tensor_2d(ids.data(), DType::i32, 2, 2);
  std::vector<float> output(2);
  run_experts(config, 2, view, std::as_writable_bytes(std::span(output)));  // local experts 0, 1 multiply by 3, 4
  EXPECT_THAT(output, ElementsAre(7, 40));
  view.topk_weights = tensor_2d(weights.data(), DType::f32, 2, 2);
  run_experts(config, 2, view, std::as_writable_bytes(std::span(output)));
  EXPECT_THAT(output, ElementsAre(8, 10));
}

TEST(RunExperts, VisitsOnlyKeptRowsOfExpertLayouts) {
  ExchangeConfig config = config_of(DType::f32, DType::f32, 1);
  std::vector<float> tokens = {1, 2, 3, 4};
  std::vector<std::int32_t> counts = {1, 2};
  std::vector<std::int64_t> offsets = {0, 2, 4};
  ReceivedView view;
  view.counts = tensor_1d(counts.data(), DType::i32, 2);
  config.layout = Layout::expert_major;
  view.tokens = tensor_2d(tokens.data(), DType::f32, 4, 1);
  view.offsets = tensor_1d(offsets.data(), DType::i64, 3);
  std::vector<float> output(4, -1.0F);
  run_experts(config, 0, view, std::as_writable_bytes(std::span(output)));
  EXPECT_THAT(output, ElementsAre(1, -1, 6, 8));
  config.layout = Layout::expert_padded;
  view.tokens = tensor_3d(tokens.data(), DType::f32, 2, 2, 1);
  view.offsets = {};
  output.assign(4, -1.0F);
  run_experts(config, 0, view, std::as_writable_bytes(std::span(output)));
  EXPECT_THAT(output, ElementsAre(1, -1, 6, 8));
}

TEST(RunExperts, ReadsColumnMajorScales) {
  ExchangeConfig config = config_of(DType::e4m3, DType::f32, 129);
  config.layout = Layout::expert_major;
  config.scale_format = ScaleFormat::f32;
  std::vector<std::uint8_t> tokens(258, 0x38);
  std::vector<float> scales = {1, 2, 0, 0, 3, 4, 0, 0};  // [2 rows, 2 blocks], column stride 4
  std::vector<std::int32_t> counts = {2};
  std::vector<std::int64_t> offsets = {0, 2};
  ReceivedView view;
  view.tokens = tensor_2d(tokens.data(), DType::e4m3, 2, 129);
  TensorView scale_view = tensor_2d(scales.data(), DType::f32, 2, 2);
  scale_view.stride = {1, 4, 0};
  view.scales = scale_view;
  view.counts = tensor_1d(counts.data(), DType::i32, 1);
  view.offsets = tensor_1d(offsets.data(), DType::i64, 2);
  std::vector<float> output(258);
  run_experts(config, 0, view, std::as_writable_bytes(std::span(output)));
  EXPECT_EQ(output[0], 1.0F);
  EXPECT_EQ(output[128], 3.0F);
  EXPECT_EQ(output[129], 2.0F);
  EXPECT_EQ(output[257], 4.0F);
}

}  // namespace
}  // namespace moebus::workload
