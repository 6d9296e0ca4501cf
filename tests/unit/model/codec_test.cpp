#include "model/codec.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

namespace moebus::model {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// Float32 bit patterns that are dense where rounding decides: around every bf16, every tie, and random ones.
std::vector<float> rounding_samples() {
  std::vector<float> samples;
  for (std::uint32_t high = 0; high < 0x10000U; high += 3) {
    for (const std::uint32_t low : {0U, 1U, 0x7FFFU, 0x8000U, 0x8001U, 0xFFFFU})
      samples.push_back(float_of(high << 16 | low));
  }
  std::mt19937 random(7);
  for (int i = 0; i < 200'000; ++i) samples.push_back(float_of(static_cast<std::uint32_t>(random())));
  return samples;
}

/// Rounds by searching all values of a small format: the nearest one, the even code of two equally near.
template <class Widen>
std::uint32_t nearest_code(float value, std::uint32_t max_code, Widen widen) {
  const double magnitude = std::fabs(static_cast<double>(value));
  std::uint32_t low = 0;  // the largest code whose value is <= magnitude
  std::uint32_t high = max_code;
  while (low < high) {
    const std::uint32_t middle = (low + high + 1) / 2;
    if (static_cast<double>(widen(middle)) <= magnitude) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  if (low == max_code) return low;
  const double below = magnitude - static_cast<double>(widen(low));
  const double above = static_cast<double>(widen(low + 1)) - magnitude;
  if (below == above) return low % 2 == 0 ? low : low + 1;
  return below < above ? low : low + 1;
}

/// Quantises a block as dispatch does, and gives back what a consumer would compute.
struct Quantised {
  Fp8Block block;
  std::vector<std::uint8_t> codes;
  std::vector<float> values;
};

Quantised quantised(const std::vector<float>& x, ScaleFormat format) {
  float amax = kAmaxFloor;
  for (const float value : x) amax = amax_of(amax, bf16_from_f32(value));
  Quantised result;
  result.block = format == ScaleFormat::f32 ? fp8_block_f32(amax) : fp8_block_ue8m0(amax);
  for (const float value : x) {
    result.codes.push_back(fp8_quantise(result.block, bf16_from_f32(value)));
    result.values.push_back(f32_from_e4m3(result.codes.back()) * result.block.scale);
  }
  return result;
}

TEST(Bf16, SurvivesTheWayToFloat32AndBackInEveryPattern) {
  for (std::uint32_t bits = 0; bits < 0x10000U; ++bits) {
    const auto pattern = static_cast<std::uint16_t>(bits);
    const bool is_a_nan = (bits & 0x7FFFU) > 0x7F80U;
    ASSERT_EQ(bf16_from_f32(f32_from_bf16(pattern)), is_a_nan ? kNanBf16 : pattern) << "pattern " << bits;
  }
}

TEST(Bf16, RoundsToTheNearestAndTiesToEven) {
  EXPECT_EQ(bf16_from_f32(float_of(0x3F808000)), 0x3F80);
  EXPECT_EQ(bf16_from_f32(float_of(0x3F818000)), 0x3F82);
  EXPECT_EQ(bf16_from_f32(float_of(0x3F808001)), 0x3F81);
  EXPECT_EQ(bf16_from_f32(float_of(0x3F807FFF)), 0x3F80);
  EXPECT_EQ(bf16_from_f32(float_of(0x7F7FFFFF)), 0x7F80);
  EXPECT_EQ(bf16_from_f32(-kInf), 0xFF80);
  EXPECT_EQ(bf16_from_f32(-0.0F), 0x8000);
  EXPECT_EQ(bf16_from_f32(float_of(0x00018000)), 0x0002);
  EXPECT_EQ(bf16_from_f32(float_of(0x00008000)), 0x0000);
}

TEST(Bf16, IsTheNearestOfAllValuesForEverySample) {
  const auto widen = [](std::uint32_t code) { return f32_from_bf16(static_cast<std::uint16_t>(code)); };
  for (const float value : rounding_samples()) {
    if (!(std::fabs(value) <= f32_from_bf16(0x7F7F))) continue;
    const std::uint32_t sign = std::signbit(value) ? 0x8000U : 0U;
    ASSERT_EQ(bf16_from_f32(value), sign | nearest_code(value, 0x7F7F, widen)) << std::hexfloat << value;
  }
}

TEST(F16, SurvivesTheWayToFloat32AndBackInEveryPattern) {
  for (std::uint32_t bits = 0; bits < 0x10000U; ++bits) {
    const auto pattern = static_cast<std::uint16_t>(bits);
    const bool is_a_nan = (bits & 0x7FFFU) > 0x7C00U;
    ASSERT_EQ(f16_from_f32(f32_from_f16(pattern)), is_a_nan ? kNanF16 : pattern) << "pattern " << bits;
  }
}

TEST(F16, WidensEveryFinitePatternToItsValue) {
  for (std::uint32_t bits = 0; bits < 0x7C00U; ++bits) {
    const int exponent = static_cast<int>(bits >> 10);
    const double mantissa = static_cast<double>(bits & 0x3FFU) / 1024.0;
    const double expected = exponent == 0 ? std::ldexp(mantissa, -14) : std::ldexp(1.0 + mantissa, exponent - 15);
    ASSERT_EQ(static_cast<double>(f32_from_f16(static_cast<std::uint16_t>(bits))), expected) << "pattern " << bits;
  }
}

TEST(F16, IsTheNearestOfAllValuesForEverySample) {
  const auto widen = [](std::uint32_t code) { return f32_from_f16(static_cast<std::uint16_t>(code)); };
  for (const float value : rounding_samples()) {
    if (!(std::fabs(value) < 65520.0F)) continue;
    const std::uint32_t sign = std::signbit(value) ? 0x8000U : 0U;
    ASSERT_EQ(f16_from_f32(value), sign | nearest_code(value, 0x7BFF, widen)) << std::hexfloat << value;
  }
}

TEST(F16, BecomesInfFromHalfAUnitAboveItsLargest) {
  EXPECT_EQ(f16_from_f32(65519.996F), 0x7BFF);
  EXPECT_EQ(f16_from_f32(65520.0F), 0x7C00);
  EXPECT_EQ(f16_from_f32(-std::numeric_limits<float>::max()), 0xFC00);
  EXPECT_EQ(f16_from_f32(0x1p-25F), 0x0000);
  EXPECT_EQ(f16_from_f32(0x1.000002p-25F), 0x0001);
}

TEST(NotANumber, BecomesOnePatternPerType) {
  for (const std::uint32_t bits : {0x7F800001U, 0x7FC00000U, 0xFFC00000U, 0xFFFFFFFFU, 0x7FFF1234U}) {
    EXPECT_EQ(bf16_from_f32(float_of(bits)), 0x7FFF);
    EXPECT_EQ(f16_from_f32(float_of(bits)), 0x7FFF);
    EXPECT_EQ(e4m3_from_f32(float_of(bits)), 0x7F);
    EXPECT_EQ(bits_of(canonical_f32(float_of(bits))), 0x7FC00000U);
  }
  EXPECT_EQ(bits_of(canonical_f32(-0.0F)), 0x80000000U);
  EXPECT_EQ(canonical_f32(-kInf), -kInf);
}

TEST(E4m3, WidensEveryCodeToItsValue) {
  for (int code = 0; code < 0x7F; ++code) {
    const int exponent = code >> 3;
    const double mantissa = (code & 7) / 8.0;
    const double expected = exponent == 0 ? std::ldexp(mantissa, -6) : std::ldexp(1.0 + mantissa, exponent - 7);
    EXPECT_EQ(static_cast<double>(f32_from_e4m3(static_cast<std::uint8_t>(code))), expected) << "code " << code;
    EXPECT_EQ(static_cast<double>(f32_from_e4m3(static_cast<std::uint8_t>(code | 0x80))), -expected) << "code " << code;
  }
  EXPECT_EQ(f32_from_e4m3(0x7E), 448.0F);
  EXPECT_TRUE(std::isnan(f32_from_e4m3(0x7F)));
  EXPECT_TRUE(std::isnan(f32_from_e4m3(0xFF)));
}

TEST(E4m3, IsTheNearestOfAllCodesForEverySample) {
  const auto widen = [](std::uint32_t code) { return f32_from_e4m3(static_cast<std::uint8_t>(code)); };
  for (const float value : rounding_samples()) {
    if (!std::isfinite(value)) continue;
    const std::uint32_t sign = std::signbit(value) ? 0x80U : 0U;
    ASSERT_EQ(e4m3_from_f32(value), sign | nearest_code(value, kMaxCodeE4m3, widen)) << std::hexfloat << value;
  }
}

TEST(E4m3, RoundsEveryTieToTheEvenCode) {
  for (int code = 0; code < 0x7E; ++code) {
    const float low = f32_from_e4m3(static_cast<std::uint8_t>(code));
    const float high = f32_from_e4m3(static_cast<std::uint8_t>(code + 1));
    const float tie = (low + high) / 2;
    EXPECT_EQ(e4m3_from_f32(tie), code % 2 == 0 ? code : code + 1);
    EXPECT_EQ(e4m3_from_f32(std::nextafter(tie, 0.0F)), code);
    EXPECT_EQ(e4m3_from_f32(std::nextafter(tie, kInf)), code + 1);
  }
}

TEST(E4m3, SaturatesFiniteValuesAndTurnsInfIntoNan) {
  EXPECT_EQ(e4m3_from_f32(464.0F), 0x7E);
  EXPECT_EQ(e4m3_from_f32(-1e30F), 0xFE);
  EXPECT_EQ(e4m3_from_f32(kInf), 0x7F);
  EXPECT_EQ(e4m3_from_f32(-kInf), 0x7F);
  EXPECT_EQ(e4m3_from_f32(255.0F, 0x77), 0x77);
  EXPECT_EQ(e4m3_from_f32(-0.0F), 0x80);
  EXPECT_EQ(e4m3_from_f32(-1e-9F), 0x80);
}

TEST(Ue8m0, WidensEveryByteToItsPowerOfTwo) {
  for (int exponent = 0; exponent < 255; ++exponent) {
    EXPECT_EQ(f32_from_ue8m0(static_cast<std::uint8_t>(exponent)), std::ldexp(1.0F, exponent - 127));
  }
  EXPECT_TRUE(std::isnan(f32_from_ue8m0(0xFF)));
}

TEST(Fp8Block, KeepsZerosZeroByTheFloor) {
  const std::vector<float> zeros(128, 0.0F);
  const Quantised f32 = quantised(zeros, ScaleFormat::f32);
  EXPECT_EQ(f32.block.scale, 1e-4F / 448.0F);
  EXPECT_NEAR(static_cast<double>(f32.block.scale), 2.232e-7, 1e-10);
  const Quantised ue8m0 = quantised(zeros, ScaleFormat::ue8m0);
  EXPECT_EQ(ue8m0.block.exponent, 105);
  EXPECT_EQ(ue8m0.block.scale, 0x1p-22F);
  for (int c = 0; c < 128; ++c) {
    EXPECT_EQ(f32.codes[static_cast<std::size_t>(c)], 0);
    EXPECT_EQ(ue8m0.codes[static_cast<std::size_t>(c)], 0);
  }
}

TEST(Fp8Block, KeepsTheSignOfMinusZero) {
  for (const ScaleFormat format : {ScaleFormat::f32, ScaleFormat::ue8m0}) {
    const Quantised result = quantised(std::vector<float>(128, -0.0F), format);
    for (const std::uint8_t code : result.codes) EXPECT_EQ(code, 0x80);
    EXPECT_EQ(bits_of(result.values[0]), 0x80000000U);
  }
}

TEST(Fp8Block, KeepsTinyValuesAsFarAsTheFloorAllows) {
  struct Case {
    float x;
    double f32;
    double ue8m0;
  };

  // Each value is alone in its block, or beside a zero: the floor decides either way.
  for (const Case& c : {Case{1e-7F, 9.766e-8, 9.686e-8},
                        Case{4e-10F, 4.36e-10, 4.657e-10},
                        Case{2e-10F, 0.0, 0.0},
                        Case{9.18e-41F, 0.0, 0.0}}) {
    for (const bool is_alone : {true, false}) {
      std::vector<float> x{c.x};
      if (!is_alone) x.push_back(0.0F);
      const double f32 = static_cast<double>(quantised(x, ScaleFormat::f32).values[0]);
      const double ue8m0 = static_cast<double>(quantised(x, ScaleFormat::ue8m0).values[0]);
      EXPECT_NEAR(f32, c.f32, c.f32 * 1e-3) << c.x;
      EXPECT_NEAR(ue8m0, c.ue8m0, c.ue8m0 * 1e-3) << c.x;
    }
  }
  const std::vector<float> mixed{1e-5F, 2e-5F, -3e-5F};
  const Quantised result = quantised(mixed, ScaleFormat::f32);
  EXPECT_NEAR(static_cast<double>(result.values[0]), 9.82e-6, 1e-8);
  EXPECT_NEAR(static_cast<double>(result.values[1]), 1.964e-5, 1e-8);
  EXPECT_NEAR(static_cast<double>(result.values[2]), -2.857e-5, 1e-8);
}

TEST(Fp8Block, GivesNoNanBesideTheSmallestSubnormal) {
  for (const ScaleFormat format : {ScaleFormat::f32, ScaleFormat::ue8m0}) {
    const Quantised result = quantised({f32_from_bf16(1), 0.0F}, format);
    EXPECT_EQ(result.values[0], 0.0F);
    EXPECT_EQ(result.values[1], 0.0F);
  }
}

TEST(Fp8Block, ReturnsTheLargestBf16WithAFloat32Scale) {
  const float largest = f32_from_bf16(0x7F7F);
  const Quantised result = quantised({largest, 1.0F}, ScaleFormat::f32);
  EXPECT_EQ(bf16_from_f32(result.values[0]), 0x7F7F);
  EXPECT_EQ(result.values[1], 0.0F);
}

TEST(Fp8Block, KeepsTheLargestBf16FiniteWithAPowerOfTwo) {
  const float largest = f32_from_bf16(0x7F7F);
  const Quantised result = quantised({largest, -largest, 1.0F}, ScaleFormat::ue8m0);
  EXPECT_EQ(result.block.scale, 0x1p120F);
  EXPECT_EQ(result.block.exponent, 247);
  EXPECT_EQ(f32_from_e4m3(result.codes[0]), 240.0F);
  EXPECT_EQ(result.values[0], 240.0F * 0x1p120F);
  EXPECT_EQ(result.values[1], -240.0F * 0x1p120F);
  EXPECT_EQ(result.values[2], 0.0F);
}

TEST(Fp8Block, IsFiniteForEveryFiniteBf16) {
  for (std::uint32_t bits = 0; bits < 0x7F80U; ++bits) {
    const float x = f32_from_bf16(static_cast<std::uint16_t>(bits));
    for (const ScaleFormat format : {ScaleFormat::f32, ScaleFormat::ue8m0}) {
      const Quantised result = quantised({x}, format);
      ASSERT_TRUE(std::isfinite(f32_from_bf16(bf16_from_f32(result.values[0])))) << x;
      if (x >= kAmaxFloor && x < 248.0F * 0x1p120F) {
        ASSERT_NEAR(static_cast<double>(result.values[0]) / static_cast<double>(x), 1.0, 1.0 / 16) << x;
      }
    }
  }
}

TEST(Fp8Block, TakesTheExactPowerOfTwoWhenAmaxIs448TimesIt) {
  for (int k = -22; k <= 119; ++k) {
    const Quantised result = quantised({std::ldexp(448.0F, k), std::ldexp(-448.0F, k)}, ScaleFormat::ue8m0);
    EXPECT_EQ(result.block.scale, std::ldexp(1.0F, k)) << "k " << k;
    EXPECT_EQ(result.codes[0], 0x7E) << "k " << k;
    EXPECT_EQ(result.codes[1], 0xFE) << "k " << k;
  }
}

TEST(Fp8Block, RoundsTheScaleUpForEveryAmax) {
  for (std::uint32_t bits = 0; bits < 0x7F80U; ++bits) {
    const float amax = std::max(kAmaxFloor, f32_from_bf16(static_cast<std::uint16_t>(bits)));
    const double scale = static_cast<double>(fp8_block_ue8m0(amax).scale);
    const double exact = static_cast<double>(amax) / 448.0;
    ASSERT_GE(scale, exact) << "amax " << amax;
    ASSERT_LT(scale / 2, exact) << "amax " << amax;
  }
}

TEST(Fp8Block, RequantisesForTheRoundedScale) {
  EXPECT_NEAR(static_cast<double>(quantised({3.0F}, ScaleFormat::f32).block.scale), 0.0066964, 1e-7);
  const Quantised result = quantised({3.0F}, ScaleFormat::ue8m0);
  EXPECT_EQ(result.block.scale, 0x1p-7F);
  EXPECT_EQ(f32_from_e4m3(result.codes[0]), 384.0F);
  EXPECT_EQ(result.values[0], 3.0F);
}

TEST(Fp8Block, BecomesNanAsAWholeByAnInf) {
  const std::vector<float> x{-kInf, 1.0F, 2.0F, kNan};
  for (const std::uint8_t code : quantised(x, ScaleFormat::f32).codes) EXPECT_EQ(code, 0x7F);
  for (const std::uint8_t code : quantised(x, ScaleFormat::ue8m0).codes) EXPECT_EQ(code, 0x7F);
  EXPECT_EQ(quantised(x, ScaleFormat::f32).block.scale, kInf);
  EXPECT_EQ(quantised(x, ScaleFormat::ue8m0).block.exponent, 0xFF);
}

TEST(Fp8Block, KeepsANanToItsOwnElement) {
  for (const ScaleFormat format : {ScaleFormat::f32, ScaleFormat::ue8m0}) {
    const Quantised result = quantised({kNan, 1.0F, 2.0F, -kNan}, format);
    EXPECT_EQ(result.codes[0], 0x7F);
    EXPECT_EQ(result.codes[3], 0x7F);
    EXPECT_EQ(bf16_from_f32(result.values[1]), bf16_from_f32(1.0F));
    EXPECT_EQ(bf16_from_f32(result.values[2]), bf16_from_f32(2.0F));
  }
}

TEST(Fp8Block, FloorsABlockOfNothingButNan) {
  const Quantised result = quantised({kNan, kNan}, ScaleFormat::f32);
  EXPECT_EQ(result.block.scale, 1e-4F / 448.0F);
  EXPECT_EQ(result.codes[0], 0x7F);
}

}  // namespace
}  // namespace moebus::model
