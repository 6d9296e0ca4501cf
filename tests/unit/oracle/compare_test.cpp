#include "oracle/compare.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "cases.hpp"

namespace moebus::oracle {
namespace {

using cases::rank_input;
using cases::small_config;
using testing::HasSubstr;

std::size_t idx(std::int64_t i) { return static_cast<std::size_t>(i); }

// A dispatch result in memory of its own, right in every byte until a test changes it.
struct OwnResult {
  explicit OwnResult(const DispatchExpectation& expected) : config(expected.config) {
    num_experts = static_cast<std::int64_t>(expected.counts.size());
    is_padded = config.layout == Layout::expert_padded;
    capacity = is_padded ? capacity_of(config, expected.num_ranks) : 0;
    num_positions = is_padded ? num_experts * capacity : expected.num_rows;
    row_bytes = received_row_bytes(config);
    num_scales = static_cast<std::int64_t>(scale_row_bytes(config.hidden, config.scale_format) / 4);
    const std::int64_t rows_per_group = is_padded ? capacity : num_positions;
    column_stride = (rows_per_group + 3) / 4 * 4;
    tokens.assign(idx(num_positions) * row_bytes, std::byte{0});
    scales.assign(idx(num_scales * (num_positions + 4) + num_experts * column_stride * num_scales), 0);
    side.assign(idx(num_positions * config.side_bytes[0]), std::byte{0});
    src_rank.assign(idx(num_positions), -1);
    src_token.assign(idx(num_positions), -1);
    row_weights.assign(idx(num_positions), 0.0F);
    for (const ReceivedRow& row : expected.rows) place(expected, row);
    counts = expected.counts;
    wanted = expected.wanted;
    offsets = expected.offsets;
    rank_counts = expected.rank_counts;
    topk_idx = expected.topk_idx;
    topk_weights = expected.topk_weights;
    num_rows = expected.num_rows;
    num_overflowed = expected.num_overflowed;
    has_weights = expected.has_weights;
  }

  void place(const DispatchExpectation& expected, const ReceivedRow& row) {
    std::memcpy(tokens.data() + idx(row.position) * row_bytes, expected.token_bytes(row).data(), row_bytes);
    for (std::int64_t s = 0; s < num_scales; ++s) {
      std::memcpy(&scale(row.position, s), expected.scale_bytes(row).data() + 4 * s, 4);
    }
    if (config.side_bytes[0] > 0) {
      const auto bytes = expected.side_bytes(row, 0);
      std::memcpy(side.data() + idx(row.position) * bytes.size(), bytes.data(), bytes.size());
    }
    src_rank[idx(row.position)] = row.src_rank;
    src_token[idx(row.position)] = static_cast<std::int32_t>(row.src_token);
    row_weights[idx(row.position)] = row.weight;
  }

  std::int32_t& scale(std::int64_t row, std::int64_t column) {
    if (config.scale_order == ScaleOrder::row_major) return scales[idx(row * num_scales + column)];
    const std::int64_t group = is_padded ? row / capacity : 0;
    const std::int64_t within = is_padded ? row % capacity : row;
    return scales[idx(group * num_scales * column_stride + column * column_stride + within)];
  }

  DispatchSeen seen() {
    const DType scale_dtype = config.scale_format == ScaleFormat::f32 ? DType::f32 : DType::i32;
    DispatchSeen view;
    view.tokens = is_padded ? tensor_3d(tokens.data(), received_dtype(config), num_experts, capacity, config.hidden)
                            : tensor_2d(tokens.data(), received_dtype(config), num_positions, config.hidden);
    if (num_scales > 0) {
      TensorView all = is_padded ? tensor_3d(scales.data(), scale_dtype, num_experts, capacity, num_scales)
                                 : tensor_2d(scales.data(), scale_dtype, num_positions, num_scales);
      if (config.scale_order == ScaleOrder::column_major) {
        all.stride[idx(all.num_dims - 2)] = 1;
        all.stride[idx(all.num_dims - 1)] = column_stride;
        if (is_padded) all.stride[0] = num_scales * column_stride;
      }
      view.scales = all;
    }
    if (config.side_bytes[0] > 0) view.side[0] = tensor_2d(side.data(), DType::u8, num_positions, config.side_bytes[0]);
    view.num_rows = num_rows;
    view.num_overflowed = num_overflowed;
    if (config.layout == Layout::rank_major) {
      view.topk_idx = tensor_2d(topk_idx.data(), DType::i32, num_positions, config.num_topk);
      if (has_weights) view.topk_weights = tensor_2d(topk_weights.data(), DType::f32, num_positions, config.num_topk);
    } else if (has_weights) {
      view.topk_weights = tensor_1d(row_weights.data(), DType::f32, num_positions);
    }
    view.src_rank = tensor_1d(src_rank.data(), DType::i32, num_positions);
    view.src_token = tensor_1d(src_token.data(), DType::i32, num_positions);
    view.counts = tensor_1d(counts.data(), DType::i32, num_experts);
    view.wanted = tensor_1d(wanted.data(), DType::i32, num_experts);
    if (!offsets.empty()) view.offsets = tensor_1d(offsets.data(), DType::i64, num_experts + 1);
    view.rank_counts = tensor_1d(rank_counts.data(), DType::i32, static_cast<std::int64_t>(rank_counts.size()));
    return view;
  }

  ExchangeConfig config;
  std::int64_t num_experts = 0, capacity = 0, num_positions = 0, num_scales = 0, column_stride = 0;
  std::int64_t num_rows = 0, num_overflowed = 0;
  bool is_padded = false, has_weights = false;
  std::size_t row_bytes = 0;
  std::vector<std::byte> tokens, side;
  std::vector<std::int32_t> scales, topk_idx, src_rank, src_token, counts, wanted, rank_counts;
  std::vector<std::int64_t> offsets;
  std::vector<float> topk_weights, row_weights;
};

// Rank 0 of two, with every kind of tensor, and padding in the expert layouts.
DispatchExpectation expectation(Layout layout, ScaleOrder order = ScaleOrder::row_major) {
  ExchangeConfig config = small_config(4, 2, 200);
  config.layout = layout;
  config.expert_alignment = 4;
  config.max_tokens_per_rank = 3;
  config.dtype = DType::e4m3;
  config.scale_format = ScaleFormat::f32;
  config.scale_order = order;
  config.side_bytes = {5, 0};
  config.zero_padding = true;
  std::vector<RankInput> inputs = {rank_input(config, {{0, 2}, {1, 0}}, {{1, 2}, {3, 4}}),
                                   rank_input(config, {{0, 1}, {3, -1}}, {{5, 6}, {7, 8}})};
  int next = 1;
  for (RankInput& input : inputs) {
    for (auto* rows : {&input.tokens, &input.scales, &input.side[0]}) {
      for (std::byte& byte : *rows) byte = static_cast<std::byte>(next++ % 120);
    }
  }
  return dispatch(config, inputs)[0];
}

constexpr std::array kLayouts = {Layout::rank_major, Layout::expert_major, Layout::expert_padded};

TEST(CompareDispatch, FindsNothingInARightResult) {
  for (const Layout layout : kLayouts) {
    for (const ScaleOrder order : {ScaleOrder::row_major, ScaleOrder::column_major}) {
      const DispatchExpectation expected = expectation(layout, order);
      const auto difference = compare(expected, OwnResult(expected).seen());
      EXPECT_FALSE(difference) << difference->text();
    }
  }
}

TEST(CompareDispatch, NamesRowSourceColumnAndValuesOfAWrongElement) {
  for (const Layout layout : kLayouts) {
    const DispatchExpectation expected = expectation(layout);
    OwnResult result(expected);
    result.tokens[1 * 200 + 17] ^= std::byte{0x80};
    const auto difference = compare(expected, result.seen());
    ASSERT_TRUE(difference);
    EXPECT_EQ(difference->field, "tokens");
    EXPECT_EQ(difference->row, 1);
    EXPECT_EQ(difference->column, 17);
    EXPECT_EQ(difference->src_rank, 0);
    EXPECT_EQ(difference->src_token, 1);
    EXPECT_EQ(difference->seen_row, result.tokens.data() + 200);
    EXPECT_THAT(difference->text(),
                HasSubstr("tokens on rank 0, row 1 (source rank 0, token 1), column 17: expected 0x"));
  }
}

TEST(CompareDispatch, SeesEveryKindOfDamage) {
  using Damage = void (*)(OwnResult&);

  struct Case {
    const char* field;
    Damage damage;
  };

  const Case cases[] = {
      {"tokens",
       [](OwnResult& r) { std::swap_ranges(r.tokens.begin(), r.tokens.begin() + 200, r.tokens.begin() + 200); }},
      {"tokens", [](OwnResult& r) { r.tokens.back() = std::byte{1}; }},  // padding, which must be zero here
      {"scales", [](OwnResult& r) { ++r.scale(2, 1); }},
      {"side[0]", [](OwnResult& r) { r.side[11] ^= std::byte{1}; }},
      {"src_rank", [](OwnResult& r) { r.src_rank[2] = 0; }},
      {"src_token", [](OwnResult& r) { r.src_token.back() = 0; }},
      {"counts", [](OwnResult& r) { ++r.counts[1]; }},
      {"wanted", [](OwnResult& r) { --r.wanted[0]; }},
      {"offsets", [](OwnResult& r) { r.offsets[1] = 3; }},
      {"rank_counts", [](OwnResult& r) { r.rank_counts[1] = 2; }},
      {"num_rows", [](OwnResult& r) { ++r.num_rows; }},
      {"num_overflowed", [](OwnResult& r) { ++r.num_overflowed; }},
      {"topk_weights", [](OwnResult& r) { r.row_weights[0] = 1.5F; }},
  };
  for (const Case& c : cases) {
    const DispatchExpectation expected = expectation(Layout::expert_major);
    OwnResult result(expected);
    c.damage(result);
    const auto difference = compare(expected, result.seen());
    ASSERT_TRUE(difference) << c.field;
    EXPECT_EQ(difference->field, c.field) << difference->text();
  }
}

TEST(CompareDispatch, LooksAtRankMajorChoices) {
  const DispatchExpectation expected = expectation(Layout::rank_major);
  OwnResult result(expected);
  result.topk_idx[1] = 0;
  EXPECT_EQ(compare(expected, result.seen())->field, "topk_idx");
  result = OwnResult(expected);
  result.topk_weights[1] = 2.0F;  // must be +0: that choice lives elsewhere
  EXPECT_EQ(compare(expected, result.seen())->field, "topk_weights");
}

TEST(CompareDispatch, LeavesPaddingAloneUnlessItMustBeZero) {
  DispatchExpectation expected = expectation(Layout::expert_padded);
  OwnResult result(expected);
  result.tokens.back() = std::byte{1};
  EXPECT_TRUE(compare(expected, result.seen()));
  expected.config.zero_padding = false;
  EXPECT_FALSE(compare(expected, result.seen()));
}

TEST(CompareDispatch, RefusesShapesAndTypesThatDiffer) {
  const DispatchExpectation expected = expectation(Layout::rank_major);
  OwnResult result(expected);
  DispatchSeen seen = result.seen();
  seen.tokens.dtype = DType::u8;
  EXPECT_THAT(compare(expected, seen)->text(), HasSubstr("expected e4m3 [3, 200], seen u8 [3, 200]"));
  seen = result.seen();
  seen.scales = {};
  EXPECT_THAT(compare(expected, seen)->text(), HasSubstr("scales on rank 0: expected f32 [3, 2], seen not given"));
}

TEST(CompareDispatch, WantsColumnMajorScalesAligned) {
  const DispatchExpectation expected = expectation(Layout::rank_major, ScaleOrder::column_major);
  OwnResult result(expected);
  DispatchSeen seen = result.seen();
  seen.scales.stride[1] = 3;
  EXPECT_THAT(compare(expected, seen)->text(), HasSubstr("column stride 3"));
}

TEST(CompareCombine, FindsTheFirstWrongElement) {
  CombineExpectation expected;
  expected.config = small_config(2, 1, 2);
  expected.num_tokens = 2;
  expected.tokens = cases::bytes_of(DType::bf16, {1, 2, 3, 4});
  expected.lane = {0.5F, 0.25F};
  expected.missing = {0, 1};
  expected.num_incomplete = 1;
  std::vector<std::byte> tokens = expected.tokens;
  std::vector<float> lane = expected.lane;
  std::vector<std::int64_t> missing = expected.missing;
  const auto seen = [&] {
    return CombineSeen{tensor_2d(tokens.data(), DType::bf16, 2, 2),
                       tensor_2d(lane.data(), DType::f32, 2, 1),
                       tensor_1d(missing.data(), DType::i64, 2),
                       1};
  };
  EXPECT_FALSE(compare(expected, seen()));
  tokens = cases::bytes_of(DType::bf16, {1, 2, 3, 5});
  EXPECT_EQ(compare(expected, seen())->text(),
            "tokens on rank 0, row 1 (source rank 0, token 1), column 1: expected 0x4080 (4), seen 0x40a0 (5)");
  tokens = expected.tokens;
  lane[0] = 0;
  EXPECT_EQ(compare(expected, seen())->field, "lane");
  lane = expected.lane;
  missing[0] = 1;
  EXPECT_EQ(compare(expected, seen())->field, "missing");
}

TEST(CompareCombine, TellsMinusZeroFromZero) {
  CombineExpectation expected;
  expected.config = small_config(1, 1);
  expected.num_tokens = 1;
  expected.tokens = cases::bytes_of(DType::bf16, {0.0F});
  const std::vector<std::byte> minus_zero = cases::bytes_of(DType::bf16, {-0.0F});
  CombineSeen seen;
  seen.tokens = tensor_2d(minus_zero.data(), DType::bf16, 1, 1);
  EXPECT_TRUE(compare(expected, seen));
}

}  // namespace
}  // namespace moebus::oracle
