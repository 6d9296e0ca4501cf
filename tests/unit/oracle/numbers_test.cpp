#include "oracle/numbers.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace moebus::oracle {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kMaxBf16 = 0x1.FEp127F;

std::uint32_t bits_of(float value) { return std::bit_cast<std::uint32_t>(value); }

float dequantised(const Fp8Block& block, std::size_t i, ScaleFormat format) {
  return from_e4m3(block.values[i]) * (format == ScaleFormat::f32 ? block.scale_f32 : from_ue8m0(block.scale_ue8m0));
}

std::vector<float> block_of(std::vector<float> first) {
  first.resize(128, 0.0F);
  return first;
}

TEST(Bf16, RoundsToNearestAndTiesToEven) {
  EXPECT_EQ(to_bf16(1.0F), 0x3F80);
  EXPECT_EQ(to_bf16(1.0F + 0x1p-8F), 0x3F80);  // tie, even below
  EXPECT_EQ(to_bf16(1.0F + 0x3p-8F), 0x3F82);  // tie, even above
  EXPECT_EQ(to_bf16(1.0F + 0x1p-8F + 0x1p-23F), 0x3F81);
  EXPECT_EQ(to_bf16(-1.0F - 0x3p-8F), 0xBF82);
  EXPECT_EQ(to_bf16(263.0F), to_bf16(264.0F));  // steps of 2 above 256; 263 is a tie
}

TEST(Bf16, KeepsSubnormalsZerosAndInfinities) {
  EXPECT_EQ(from_bf16(0x0001), 0x1p-133F);
  EXPECT_EQ(to_bf16(0x1p-133F), 0x0001);
  EXPECT_EQ(to_bf16(-0.0F), 0x8000);
  EXPECT_EQ(to_bf16(kInfinity), 0x7F80);
  EXPECT_EQ(to_bf16(std::numeric_limits<float>::max()), 0x7F80);
  EXPECT_EQ(to_bf16(kMaxBf16), 0x7F7F);
}

TEST(Bf16, GivesOneNan) {
  EXPECT_EQ(to_bf16(kNan), 0x7FFF);
  EXPECT_EQ(to_bf16(-kNan), 0x7FFF);
  EXPECT_EQ(to_bf16(std::bit_cast<float>(0x7F800001U)), 0x7FFF);
}

TEST(F16, RoundsAtItsEnds) {
  EXPECT_EQ(to_f16(65504.0F), 0x7BFF);
  EXPECT_EQ(to_f16(65519.0F), 0x7BFF);
  EXPECT_EQ(to_f16(65520.0F), 0x7C00);
  EXPECT_EQ(to_f16(-kInfinity), 0xFC00);
  EXPECT_EQ(to_f16(0x1p-24F), 0x0001);
  EXPECT_EQ(to_f16(0x1p-25F), 0x0000);      // tie, even below
  EXPECT_EQ(to_f16(0x3p-25F), 0x0002);      // tie, even above
  EXPECT_EQ(to_f16(0x1.FFCp-15F), 0x0400);  // tie between the largest subnormal and the smallest normal
  EXPECT_EQ(to_f16(-0.0F), 0x8000);
  EXPECT_EQ(to_f16(kNan), 0x7FFF);
}

TEST(F16, ComesBackFromItsOwnValue) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = from_f16(static_cast<std::uint16_t>(bits));
    ASSERT_EQ(to_f16(value), std::isnan(value) ? 0x7FFFU : bits);
  }
  EXPECT_EQ(from_f16(0x3C01), 1.0F + 0x1p-10F);
  EXPECT_EQ(from_f16(0x0001), 0x1p-24F);
}

TEST(E4m3, HasTheValuesOfItsDefinition) {
  EXPECT_EQ(from_e4m3(0x00), 0.0F);
  EXPECT_EQ(from_e4m3(0x01), 0x1p-9F);
  EXPECT_EQ(from_e4m3(0x07), 0x7p-9F);
  EXPECT_EQ(from_e4m3(0x08), 0x1p-6F);
  EXPECT_EQ(from_e4m3(0x38), 1.0F);
  EXPECT_EQ(from_e4m3(0x39), 1.125F);
  EXPECT_EQ(from_e4m3(0x7E), 448.0F);
  EXPECT_EQ(from_e4m3(0xFE), -448.0F);
  EXPECT_TRUE(std::isnan(from_e4m3(0x7F)));
  EXPECT_TRUE(std::isnan(from_e4m3(0xFF)));
}

TEST(E4m3, RoundsToNearestTiesToEvenAndSaturates) {
  for (int code = 0; code < 0x7E; ++code) {
    const float here = from_e4m3(static_cast<std::uint8_t>(code));
    const float next = from_e4m3(static_cast<std::uint8_t>(code + 1));
    const float middle = (here + next) / 2;
    ASSERT_EQ(to_e4m3(here), code);
    ASSERT_EQ(to_e4m3(-here), code | 0x80);
    ASSERT_EQ(to_e4m3(middle), code % 2 == 0 ? code : code + 1);
    ASSERT_EQ(to_e4m3(std::nextafter(middle, 0.0F)), code);
    ASSERT_EQ(to_e4m3(std::nextafter(middle, kInfinity)), code + 1);
  }
  EXPECT_EQ(to_e4m3(464.0F), 0x7E);
  EXPECT_EQ(to_e4m3(1e30F), 0x7E);
  EXPECT_EQ(to_e4m3(-1e30F), 0xFE);
  EXPECT_EQ(to_e4m3(1e-44F), 0x00);
  EXPECT_EQ(to_e4m3(kNan), 0x7F);
  EXPECT_EQ(to_e4m3(-kNan), 0x7F);
}

TEST(Narrow, MakesNanCanonicalInEveryType) {
  const std::vector<float> values = {std::bit_cast<float>(0xFFC12345U), -0.0F};
  std::uint32_t f32[2] = {};
  narrow(DType::f32, values, reinterpret_cast<std::byte*>(f32));
  EXPECT_EQ(f32[0], 0x7FC00000U);
  EXPECT_EQ(f32[1], 0x80000000U);
}

TEST(Fp8Cast, TurnsZerosIntoZerosWithTheFloorsScale) {
  for (const float zero : {0.0F, -0.0F}) {
    const std::vector<float> block(128, zero);
    const Fp8Block f32 = cast_fp8_block(block, ScaleFormat::f32);
    const Fp8Block ue8m0 = cast_fp8_block(block, ScaleFormat::ue8m0);
    EXPECT_EQ(f32.scale_f32, 1e-4F / 448.0F);
    EXPECT_NEAR(f32.scale_f32, 2.232e-7F, 1e-10F);
    EXPECT_EQ(ue8m0.scale_ue8m0, 105);  // 2^-22
    for (std::size_t i = 0; i < block.size(); ++i) {
      ASSERT_EQ(f32.values[i] & 0x7F, 0);
      ASSERT_EQ(ue8m0.values[i] & 0x7F, 0);
    }
  }
}

TEST(Fp8Cast, KeepsTinyValuesFinite) {
  struct Case {
    float x, f32, ue8m0;
  };

  // By hand: 448 / 1e-4 = 4.48e6; 1e-5 * 4.48e6 = 44.8 -> 44 -> 44 * 2.232e-7, and so on; with scale
  // 2^-22: 1e-5 * 2^22 = 41.94 -> 40.
  const Case cases[] = {{1e-5F, 9.82143e-6F, 40 * 0x1p-22F},
                        {2e-5F, 1.96429e-5F, 80 * 0x1p-22F},
                        {-3e-5F, -2.85714e-5F, -128 * 0x1p-22F},
                        {1e-7F, 9.765625e-8F, 0.40625F * 0x1p-22F},
                        {4e-10F, 4.35965e-10F, 0x1p-9F * 0x1p-22F},
                        {2e-10F, 0.0F, 0.0F},
                        {9.18e-41F, 0.0F, 0.0F}};
  for (const Case& c : cases) {
    const std::vector<float> beside_zeros = block_of({c.x});
    const std::vector<float> alone = {c.x};
    for (const std::vector<float>& block : {beside_zeros, alone}) {
      const Fp8Block f32 = cast_fp8_block(block, ScaleFormat::f32);
      const Fp8Block ue8m0 = cast_fp8_block(block, ScaleFormat::ue8m0);
      EXPECT_NEAR(dequantised(f32, 0, ScaleFormat::f32), c.f32, std::fabs(c.f32) * 1e-4F) << c.x;
      EXPECT_EQ(dequantised(ue8m0, 0, ScaleFormat::ue8m0), c.ue8m0) << c.x;
      EXPECT_EQ(dequantised(f32, block.size() - 1, ScaleFormat::f32),
                block.size() == 1 ? dequantised(f32, 0, ScaleFormat::f32) : 0.0F);
    }
  }
}

TEST(Fp8Cast, BringsTheLargestBf16Back) {
  const std::vector<float> block = block_of({kMaxBf16, 1.0F});
  const Fp8Block f32 = cast_fp8_block(block, ScaleFormat::f32);
  EXPECT_EQ(to_bf16(dequantised(f32, 0, ScaleFormat::f32)), 0x7F7F);
  EXPECT_EQ(dequantised(f32, 1, ScaleFormat::f32), 0.0F);
  const Fp8Block ue8m0 = cast_fp8_block(block, ScaleFormat::ue8m0);
  EXPECT_EQ(ue8m0.scale_ue8m0, 127 + 120);
  EXPECT_EQ(from_e4m3(ue8m0.values[0]), 240.0F);
  EXPECT_EQ(dequantised(ue8m0, 0, ScaleFormat::ue8m0), 240 * 0x1p120F);
  EXPECT_EQ(cast_fp8_block(block_of({-kMaxBf16}), ScaleFormat::ue8m0).values[0], 0xF7);
}

TEST(Fp8Cast, GivesPowersOfTwoExactly) {
  for (int k = -22; k <= 119; ++k) {
    const float amax = std::ldexp(448.0F, k);
    const Fp8Block ue8m0 = cast_fp8_block(block_of({amax, -amax}), ScaleFormat::ue8m0);
    ASSERT_EQ(ue8m0.scale_ue8m0, 127 + k) << k;
    ASSERT_EQ(ue8m0.values[0], 0x7E) << k;
    ASSERT_EQ(ue8m0.values[1], 0xFE) << k;
  }
}

TEST(Fp8Cast, RoundsThePowerOfTwoUpAndQuantisesWithIt) {
  const std::vector<float> block = block_of({3.0F});
  EXPECT_EQ(cast_fp8_block(block, ScaleFormat::f32).scale_f32, 3.0F / 448.0F);
  const Fp8Block ue8m0 = cast_fp8_block(block, ScaleFormat::ue8m0);
  EXPECT_EQ(ue8m0.scale_ue8m0, 120);  // 2^-7
  EXPECT_EQ(from_e4m3(ue8m0.values[0]), 384.0F);
}

TEST(Fp8Cast, MakesABlockWithInfinityNan) {
  for (const float inf : {kInfinity, -kInfinity}) {
    const Fp8Block f32 = cast_fp8_block(block_of({inf, 1.0F, 2.0F}), ScaleFormat::f32);
    const Fp8Block ue8m0 = cast_fp8_block(block_of({inf, 1.0F, 2.0F}), ScaleFormat::ue8m0);
    EXPECT_EQ(f32.scale_f32, kInfinity);
    EXPECT_EQ(ue8m0.scale_ue8m0, 0xFF);
    for (std::size_t i = 0; i < 128; ++i) {
      ASSERT_EQ(f32.values[i], 0x7F);
      ASSERT_EQ(ue8m0.values[i], 0x7F);
    }
  }
}

TEST(Fp8Cast, LeavesNanAlone) {
  const Fp8Block with = cast_fp8_block(block_of({kNan, 1.0F, 2.0F}), ScaleFormat::f32);
  const Fp8Block without = cast_fp8_block(block_of({0.0F, 1.0F, 2.0F}), ScaleFormat::f32);
  EXPECT_EQ(with.values[0], 0x7F);
  EXPECT_EQ(with.scale_f32, without.scale_f32);
  EXPECT_EQ(with.values[1], without.values[1]);
  EXPECT_EQ(with.values[2], 0x7E);
  const Fp8Block only_nan = cast_fp8_block(std::vector<float>(4, -kNan), ScaleFormat::ue8m0);
  EXPECT_EQ(only_nan.values[3], 0x7F);
  EXPECT_EQ(only_nan.scale_ue8m0, 105);
}

TEST(Fp8Row, GivesAShortLastBlockItsOwnScale) {
  constexpr int kHidden = 2880;  // 22 blocks of 128 and one of 64
  std::vector<std::uint16_t> rows(2U * kHidden, to_bf16(1.0F));
  for (int c = 22 * 128; c < kHidden; ++c) rows[static_cast<std::size_t>(c)] = to_bf16(2.0F);
  rows[kHidden] = to_bf16(1e30F);  // the row after it
  std::vector<std::byte> values(kHidden);
  std::vector<float> scales(23);
  ASSERT_EQ(num_scale_blocks(kHidden), 23);
  ASSERT_EQ(scale_row_bytes(kHidden, ScaleFormat::f32), 92U);
  cast_fp8_row(reinterpret_cast<const std::byte*>(rows.data()),
               kHidden,
               ScaleFormat::f32,
               values.data(),
               reinterpret_cast<std::byte*>(scales.data()));
  EXPECT_EQ(scales[21], 1.0F / 448.0F);
  EXPECT_EQ(scales[22], 2.0F / 448.0F);
  EXPECT_EQ(values[kHidden - 1], std::byte{0x7E});
}

TEST(Fp8Row, PacksFourPowersOfTwoToAWordAndFillsWithZeros) {
  constexpr int kHidden = 5 * 128;
  std::vector<std::uint16_t> row(kHidden, to_bf16(448.0F));
  row[512] = to_bf16(896.0F);
  std::vector<std::byte> values(kHidden);
  std::vector<std::byte> scales(8, std::byte{0xAA});
  ASSERT_EQ(scale_row_bytes(kHidden, ScaleFormat::ue8m0), 8U);
  cast_fp8_row(
      reinterpret_cast<const std::byte*>(row.data()), kHidden, ScaleFormat::ue8m0, values.data(), scales.data());
  const std::vector<std::byte> expected = {std::byte{127},
                                           std::byte{127},
                                           std::byte{127},
                                           std::byte{127},
                                           std::byte{128},
                                           std::byte{0},
                                           std::byte{0},
                                           std::byte{0}};
  EXPECT_EQ(scales, expected);
}

TEST(Numbers, TellMinusZeroFromZero) { EXPECT_NE(bits_of(from_bf16(0x8000)), bits_of(from_bf16(0x0000))); }

}  // namespace
}  // namespace moebus::oracle
