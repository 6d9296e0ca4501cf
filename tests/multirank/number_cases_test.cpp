// Numbers that broke other libraries, each with its value, seen through the public calls.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/math.hpp"
#include "oracle/numbers.hpp"
#include "tests/support/exchange_run.hpp"
#include "tests/support/test_names.hpp"

namespace moebus::tests {
namespace {

using base::idx;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// A row of a block or more, as it came out of the cast on the receiving rank.
struct Casted {
  std::vector<std::uint8_t> values;
  std::vector<float> scales;            // f32
  std::vector<std::uint8_t> exponents;  // ue8m0

  [[nodiscard]] float value(std::size_t column) const {
    const std::size_t block = column / kScaleBlock;
    const float scale = scales.empty() ? oracle::from_ue8m0(exponents[block]) : scales[block];
    return oracle::from_e4m3(values[column]) * scale;
  }
};

/// Sends one row of bf16 from rank 0 to rank 1 with the cast, and returns what rank 1 saw.
Casted cast_through(const std::vector<float>& row, ScaleFormat format, Route route = Route::latency) {
  const auto hidden = static_cast<int>(row.size());
  ExchangeConfig config = small_config(route);
  config.num_experts = 2;
  config.num_topk = 1;
  config.hidden = hidden;
  config.cast = Cast::fp8;
  config.scale_format = format;
  set_route(config, route, 2);
  std::vector<std::uint16_t> bits;
  for (const float x : row) bits.push_back(oracle::to_bf16(x));
  const std::int64_t expert = 1;
  Casted seen;
  expect_ok(run_group(2, false, [&](Group& group) {
    Exchange exchange(group, config);
    exchange.prepare();
    const std::int64_t tokens = group.rank() == 0 ? 1 : 0;
    DispatchInput input;
    input.tokens = tensor_2d(std::as_const(bits).data(), DType::bf16, tokens, hidden);
    input.topk_idx = tensor_2d(&expert, DType::i64, tokens, 1);
    const DispatchResult result = exchange.dispatch(input);
    if (group.rank() == 0) return;
    ASSERT_EQ(result.num_rows, 1);
    ASSERT_EQ(result.tokens.dtype, DType::e4m3);
    seen.values.resize(idx(hidden));
    std::memcpy(seen.values.data(), result.tokens.data, idx(hidden));
    const std::size_t blocks = idx((hidden + kScaleBlock - 1) / kScaleBlock);
    if (format == ScaleFormat::f32) {
      ASSERT_EQ(result.scales.dtype, DType::f32);
      seen.scales.resize(blocks);
      std::memcpy(seen.scales.data(), result.scales.data, blocks * 4);
    } else {
      ASSERT_EQ(result.scales.dtype, DType::i32);
      seen.exponents.resize((blocks + 3) / 4 * 4);
      std::memcpy(seen.exponents.data(), result.scales.data, seen.exponents.size());
    }
  }));
  return seen;
}

std::vector<float> block_of(float fill, std::initializer_list<float> first) {
  std::vector<float> row(kScaleBlock, fill);
  std::copy(first.begin(), first.end(), row.begin());
  return row;
}

/// One column; expert 0 and 1 at rank 0, 2 and 3 at rank 1, and so on. Returns what home adds up.
float combine_partials(const std::vector<float>& partials, Route route, CombineRows rows) {
  const auto num = static_cast<int>(partials.size());
  ExchangeConfig config = small_config(route, 4);
  config.num_experts = num;
  config.num_topk = num;
  config.hidden = 128;
  config.layout = Layout::expert_major;
  config.combine_rows = rows;
  set_route(config, route, 4);
  std::vector<std::int64_t> ids(idx(num));
  for (int k = 0; k < num; ++k) ids[idx(k)] = k;
  const std::vector<std::uint16_t> zeros(128, 0);
  float seen = 0;
  expect_ok(run_group(4, false, [&](Group& group) {
    Exchange exchange(group, config);
    exchange.prepare();
    const std::int64_t tokens = group.rank() == 0 ? 1 : 0;
    DispatchInput input;
    input.tokens = tensor_2d(zeros.data(), DType::bf16, tokens, 128);
    input.topk_idx = tensor_2d(std::as_const(ids).data(), DType::i64, tokens, num);
    for (int turn = 0; turn < 3; ++turn) {
      const DispatchResult result = exchange.dispatch(input);
      std::vector<std::uint16_t> answers;
      for (int e = 0; e < exchange.num_local_experts(); ++e) {
        answers.insert(answers.end(), 128, oracle::to_bf16(partials[idx(exchange.first_local_expert() + e)]));
      }
      CombineInput back;
      back.handle = result.handle;
      back.rows = tensor_2d(std::as_const(answers).data(), DType::bf16, result.num_rows, 128);
      const CombineResult combined = exchange.combine(back);
      if (group.rank() != 0) continue;
      std::uint16_t bits = 0;
      std::memcpy(&bits, combined.tokens.data + 2 * 127, 2);
      seen = oracle::from_bf16(bits);
      EXPECT_EQ(seen, 264.0F);
    }
  }));
  return seen;
}

TEST(CombineAccuracy, AddsInFloatAndRoundsOnce) {
  for (const Route route : kRoutes) {
    // 256 + 7 is 263, which rounds to 264; a running sum in bf16 stays at 256.
    EXPECT_EQ(combine_partials({256, 1, 1, 1, 1, 1, 1, 1}, route, CombineRows::per_expert), 264.0F);
    EXPECT_EQ(combine_partials({1, 1, 1, 1, 1, 1, 1, 256}, route, CombineRows::per_expert), 264.0F);
  }
}

class Fp8 : public ::testing::TestWithParam<Route> {};

TEST_P(Fp8, GivesZerosTheScaleOfTheFloor) {
  const Casted f32 = cast_through(block_of(0.0F, {}), ScaleFormat::f32, GetParam());
  EXPECT_EQ(f32.scales[0], 1e-4F / 448.0F);
  const Casted e8 = cast_through(block_of(0.0F, {}), ScaleFormat::ue8m0, GetParam());
  EXPECT_EQ(e8.exponents[0], 105);
  for (std::size_t i = 0; i < idx(kScaleBlock); ++i) {
    EXPECT_EQ(f32.values[i], 0);
    EXPECT_EQ(e8.values[i], 0);
  }
}

TEST_P(Fp8, KeepsTheSignOfZero) {
  for (const ScaleFormat format : {ScaleFormat::f32, ScaleFormat::ue8m0}) {
    const Casted seen = cast_through(block_of(-0.0F, {}), format, GetParam());
    EXPECT_EQ(seen.values[0], 0x80);
    EXPECT_EQ(seen.value(127), 0.0F);
  }
}

TEST_P(Fp8, BringsTinyValuesBackFinite) {
  const Casted three = cast_through(block_of(0.0F, {1e-5F, 2e-5F, -3e-5F}), ScaleFormat::f32, GetParam());
  EXPECT_NEAR(three.value(0), 9.82e-6F, 1e-8F);
  EXPECT_NEAR(three.value(1), 1.964e-5F, 1e-8F);
  EXPECT_NEAR(three.value(2), -2.857e-5F, 1e-8F);
  EXPECT_EQ(three.value(3), 0.0F);
  EXPECT_NEAR(cast_through(block_of(0.0F, {1e-7F}), ScaleFormat::f32, GetParam()).value(0), 9.766e-8F, 1e-11F);
  EXPECT_NEAR(cast_through(block_of(0.0F, {1e-7F}), ScaleFormat::ue8m0, GetParam()).value(0), 9.686e-8F, 1e-11F);
  EXPECT_NEAR(cast_through(block_of(0.0F, {4e-10F}), ScaleFormat::f32, GetParam()).value(0), 4.36e-10F, 1e-12F);
  EXPECT_EQ(cast_through(block_of(0.0F, {2e-10F}), ScaleFormat::f32, GetParam()).value(0), 0.0F);
}

TEST_P(Fp8, BringsTheSmallestSubnormalBackAsZero) {
  for (const ScaleFormat format : {ScaleFormat::f32, ScaleFormat::ue8m0}) {
    const Casted beside_zeros = cast_through(block_of(0.0F, {9.18e-41F}), format, GetParam());
    EXPECT_EQ(beside_zeros.value(0), 0.0F);
    EXPECT_EQ(beside_zeros.value(1), 0.0F);
    EXPECT_EQ(cast_through(block_of(9.18e-41F, {}), format, GetParam()).value(64), 0.0F);
  }
}

TEST_P(Fp8, KeepsTheLargestValueFinite) {
  const float largest = oracle::from_bf16(0x7F7F);
  const Casted f32 = cast_through(block_of(0.0F, {largest, 1.0F}), ScaleFormat::f32, GetParam());
  EXPECT_EQ(oracle::to_bf16(f32.value(0)), 0x7F7F);
  EXPECT_EQ(f32.value(1), 0.0F);
  const Casted e8 = cast_through(block_of(0.0F, {largest, 1.0F, -largest}), ScaleFormat::ue8m0, GetParam());
  EXPECT_EQ(e8.exponents[0], 127 + 120);
  EXPECT_EQ(oracle::from_e4m3(e8.values[0]), 240.0F);
  EXPECT_EQ(oracle::from_e4m3(e8.values[2]), -240.0F);
  EXPECT_TRUE(std::isfinite(e8.value(0)));
}

TEST_P(Fp8, GivesPowersOfTwoTheExactScale) {
  // Many blocks in one row instead of many exchanges: k is -22 to 119.
  std::vector<float> row;
  for (int k = -22; k <= 119; ++k) {
    const std::vector<float> block = block_of(0.0F, {std::ldexp(448.0F, k), -std::ldexp(448.0F, k)});
    row.insert(row.end(), block.begin(), block.end());
  }
  const Casted seen = cast_through(row, ScaleFormat::ue8m0, GetParam());
  for (std::size_t b = 0; b < row.size() / kScaleBlock; ++b) {
    EXPECT_EQ(seen.exponents[b], 127 - 22 + b);
    EXPECT_EQ(oracle::from_e4m3(seen.values[b * kScaleBlock]), 448.0F);
    EXPECT_EQ(oracle::from_e4m3(seen.values[b * kScaleBlock + 1]), -448.0F);
  }
  EXPECT_EQ(seen.exponents[142], 0) << "bytes of a packed word past the last block are 0";
}

TEST_P(Fp8, RoundsAPackedScaleUpAndQuantisesWithIt) {
  const Casted seen = cast_through(block_of(0.0F, {3.0F}), ScaleFormat::ue8m0, GetParam());
  EXPECT_EQ(oracle::from_ue8m0(seen.exponents[0]), 0.0078125F);
  EXPECT_EQ(oracle::from_e4m3(seen.values[0]), 384.0F);
  EXPECT_EQ(seen.value(0), 3.0F);
}

TEST_P(Fp8, GivesTheLastShortBlockItsOwnScale) {
  std::vector<float> row(2880, 1.0F);
  const Casted seen = cast_through(row, ScaleFormat::f32, GetParam());
  ASSERT_EQ(seen.scales.size(), 23U);
  EXPECT_EQ(seen.scales[22], 1.0F / 448.0F);
  row[2815] = 1e30F;  // the last column of the block before
  const Casted beside = cast_through(row, ScaleFormat::f32, GetParam());
  EXPECT_EQ(beside.scales[22], 1.0F / 448.0F);
  EXPECT_EQ(beside.scales[21], oracle::from_bf16(oracle::to_bf16(1e30F)) / 448.0F);
}

TEST_P(Fp8, TurnsTheBlockOfAnInfinityIntoNanAndNoOther) {
  std::vector<float> row = block_of(1.0F, {kInf, 1.0F, 2.0F});
  row.resize(256, 3.0F);
  const Casted f32 = cast_through(row, ScaleFormat::f32, GetParam());
  const Casted e8 = cast_through(row, ScaleFormat::ue8m0, GetParam());
  EXPECT_EQ(f32.scales[0], kInf);
  EXPECT_EQ(e8.exponents[0], 0xFF);
  for (std::size_t i = 0; i < idx(kScaleBlock); ++i) {
    EXPECT_EQ(f32.values[i] & 0x7F, 0x7F) << i;
    EXPECT_EQ(e8.values[i] & 0x7F, 0x7F) << i;
  }
  const Casted clean = cast_through(block_of(3.0F, {}), ScaleFormat::f32, GetParam());
  EXPECT_EQ(f32.scales[1], clean.scales[0]);
  EXPECT_EQ(f32.values[128], clean.values[0]);
}

TEST_P(Fp8, KeepsANanToItself) {
  for (const ScaleFormat format : {ScaleFormat::f32, ScaleFormat::ue8m0}) {
    const Casted seen = cast_through(block_of(0.0F, {kNan, 1.0F, 2.0F}), format, GetParam());
    EXPECT_EQ(seen.values[0] & 0x7F, 0x7F);
    EXPECT_EQ(seen.value(1), 1.0F);
    EXPECT_EQ(seen.value(2), 2.0F);
    EXPECT_EQ(seen.value(3), 0.0F);
  }
}

INSTANTIATE_TEST_SUITE_P(Every, Fp8, ::testing::ValuesIn(kRoutes), name_of_route_case);

TEST(ScaleFormats, AreATypeErrorForAConsumerOfTheOther) {
  ExchangeCase one;
  one.config = small_config();
  one.config.dtype = DType::e4m3;
  one.config.scale_format = ScaleFormat::ue8m0;
  one.num_tokens = {2, 2};
  const DispatchTruth good = make_dispatch_truth(one, 0);
  const CombineTruth back = make_combine_truth(one, good, 0);
  expect_ok(run_group(2, false, [&](Group& group) {
    ExchangeRun run(group, one);
    DispatchBuffers buffers;
    DispatchInput input = run.input(good, buffers);
    if (group.rank() == 0) input.scales.dtype = DType::f32;
    const std::string text = error_of(ErrorCode::invalid_argument, 0, [&] { run.exchange().dispatch(input); });
    EXPECT_THAT(
        text,
        ::testing::AllOf(::testing::HasSubstr("scales"), ::testing::HasSubstr("f32"), ::testing::HasSubstr("ue8m0")));
    run.exchange_once(good, back);
  }));
}

TEST(Bf16Rows, TravelBitForBitWhateverTheyHold) {
  for (const Route route : kRoutes) {
    ExchangeConfig config = small_config(route);
    config.num_experts = 2;
    config.num_topk = 1;
    config.hidden = 65536 / 16;
    set_route(config, route, 2);
    std::vector<std::uint16_t> every(65536);  // NaN payloads, infinities, zeros of both signs, subnormals
    for (std::size_t i = 0; i < every.size(); ++i) every[i] = static_cast<std::uint16_t>(i);
    const std::vector<std::int64_t> ids(16, 1);
    expect_ok(run_group(2, false, [&](Group& group) {
      Exchange exchange(group, config);
      exchange.prepare();
      const std::int64_t tokens = group.rank() == 0 ? 16 : 0;
      DispatchInput input;
      input.tokens = tensor_2d(std::as_const(every).data(), DType::bf16, tokens, config.hidden);
      input.topk_idx = tensor_2d(ids.data(), DType::i64, tokens, 1);
      const DispatchResult result = exchange.dispatch(input);
      if (group.rank() == 0) return;
      ASSERT_EQ(result.num_rows, 16);
      EXPECT_EQ(std::memcmp(result.tokens.data, every.data(), every.size() * 2), 0);
    }));
  }
}

}  // namespace
}  // namespace moebus::tests
