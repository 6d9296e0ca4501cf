#include "backend/cpu/products.hpp"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "backend/cpu/backend_cpu.hpp"
#include "backend/cpu/processor.hpp"
#include "model/codec.hpp"

namespace moebus::backend {
namespace {

constexpr std::array kWidths{1, 15, 16, 17, 31, 32, 33, 64, 129, 513, 2880, 7168, 9999};
constexpr std::array kTypes{DType::bf16, DType::f16, DType::f32};

/// Random bits: every kind of number, subnormals, inf and NaN among them; or tame values only.
std::vector<std::byte> random_row(std::mt19937& random, DType dtype, int hidden, bool is_wild) {
  std::vector<std::byte> row(static_cast<std::size_t>(hidden) * size_of(dtype));
  std::normal_distribution<float> normal;
  for (std::size_t c = 0; c < static_cast<std::size_t>(hidden); ++c) {
    const float value = normal(random);
    std::uint32_t bits = dtype == DType::bf16  ? model::bf16_from_f32(value)
                         : dtype == DType::f16 ? model::f16_from_f32(value)
                                               : model::bits_of(value);
    if (is_wild && random() % 64 == 0) bits = static_cast<std::uint32_t>(random());
    std::memcpy(row.data() + c * size_of(dtype), &bits, size_of(dtype));
  }
  return row;
}

constexpr std::array<std::int32_t, 1> kOnlyRow{0};

std::vector<std::byte> scaled(const Kernels& kernels, DType dtype, std::vector<std::byte> row, float factor) {
  const int hidden = static_cast<int>(row.size() / size_of(dtype));
  scale_rows(kernels, {dtype, hidden, row.data(), 0, kOnlyRow, &factor});
  return row;
}

std::uint32_t dot_bits(const Kernels& kernels,
                       DType dtype,
                       const std::vector<std::byte>& left,
                       const std::vector<std::byte>& right) {
  const int hidden = static_cast<int>(left.size() / size_of(dtype));
  float dot = -1.0F;
  dot_rows(kernels, {dtype, hidden, left.data(), 0, right.data(), 0, kOnlyRow, &dot});
  return std::bit_cast<std::uint32_t>(dot);
}

void expect_scalar_products(std::mt19937& random, DType dtype, int hidden, bool is_wild) {
  constexpr std::array kFactors{0.0F, -0.0F, 1.0F, -0.37F, 1e-40F, 3e38F, std::numeric_limits<float>::quiet_NaN()};
  const auto left = random_row(random, dtype, hidden, is_wild);
  const auto right = random_row(random, dtype, hidden, is_wild);
  for (const NamedKernels& level : runnable_kernels()) {
    for (const float factor : kFactors) {
      ASSERT_TRUE(scaled(level.kernels, dtype, left, factor) == scaled({}, dtype, left, factor))
          << to_string(dtype) << " hidden " << hidden << " factor " << factor << " " << level.name;
    }
    ASSERT_EQ(dot_bits(level.kernels, dtype, left, right), dot_bits({}, dtype, left, right))
        << to_string(dtype) << " hidden " << hidden << " " << level.name;
  }
}

TEST(ProductLevels, EqualTheScalarOneOnRandomRowsOfEveryWidthAndType) {
  std::mt19937 random(31);
  for (const DType dtype : kTypes) {
    for (const int width : kWidths) expect_scalar_products(random, dtype, width, false);
  }
}

TEST(ProductLevels, EqualTheScalarOneOnSubnormalsInfAndNan) {
  std::mt19937 random(32);
  for (const DType dtype : kTypes) {
    for (const int width : {1, 33, 512, 2881}) {
      for (int round = 0; round < 10; ++round) expect_scalar_products(random, dtype, width, true);
    }
  }
}

TEST(Products, GiveTheCanonicalNan) {
  const std::vector<std::uint32_t> nan(16, 0xFFC12345U);
  std::vector<std::byte> row(nan.size() * sizeof(float));
  std::memcpy(row.data(), nan.data(), row.size());
  std::uint32_t first = 0;
  std::memcpy(&first, scaled({}, DType::f32, row, 1.0F).data(), sizeof(first));
  EXPECT_EQ(first, 0x7FC00000U);
  EXPECT_EQ(dot_bits({}, DType::f32, row, row), 0x7FC00000U);
}

TEST(Products, KeepTheSignOfZero) {
  const std::vector<std::byte> zeros(64, std::byte{0});
  std::uint32_t first = 0;
  std::memcpy(&first, scaled({}, DType::f32, zeros, -2.0F).data(), sizeof(first));
  EXPECT_EQ(first, 0x80000000U);
}

}  // namespace
}  // namespace moebus::backend
