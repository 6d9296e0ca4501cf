#include "backend/cpu/cast.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "backend/cpu/processor.hpp"
#include "backend/cpu/rows.hpp"
#include "model/codec.hpp"

namespace moebus::backend {
namespace {

constexpr std::array kWidths{1, 7, 31, 32, 33, 64, 127, 128, 129, 511, 512, 513, 2880, 4096, 4100, 7168, 9999};

/// Casts one row that starts `shift` bytes into its memory; returns codes, then scales.
std::vector<std::byte> cast_of(const Kernels& kernels,
                               ScaleFormat scales,
                               const std::vector<std::uint16_t>& row,
                               int shift) {
  ExchangeConfig config;
  config.hidden = static_cast<int>(row.size());
  config.cast = Cast::fp8;
  config.scale_format = scales;
  const auto format = model::dispatch_row_format(config);
  std::vector<std::byte> memory(row.size() * 2 + 64);
  std::memcpy(memory.data() + shift, row.data(), row.size() * 2);
  std::vector<std::byte> result(format.payload_bytes + format.scales_bytes, std::byte{0xEE});
  ConstRowParts source;
  source.tokens = memory.data() + shift;
  RowParts sink;
  sink.tokens = result.data();
  sink.scales = result.data() + format.payload_bytes;
  cast_row({kernels, false}, format, source, sink, source.tokens);
  return result;
}

void expect_scalar_cast(const std::vector<std::uint16_t>& row, const std::string& what, int shift = 0) {
  for (const ScaleFormat scales : {ScaleFormat::f32, ScaleFormat::ue8m0}) {
    const auto expected = cast_of(Kernels{}, scales, row, shift);
    for (const NamedKernels& vectors : runnable_kernels()) {
      const auto seen = cast_of(vectors.kernels, scales, row, shift);
      const auto differs = std::mismatch(seen.begin(), seen.end(), expected.begin()).first - seen.begin();
      ASSERT_TRUE(seen == expected) << what << ", " << vectors.name << ", " << to_string(scales)
                                    << ": first difference at byte " << differs << " of " << expected.size();
    }
  }
}

/// The scalar row code itself, against the codec block by block.
TEST(Cast, QuantisesEveryBlockByItsOwnAmax) {
  std::vector<std::uint16_t> row(2880);
  std::mt19937 random(10);
  for (auto& x : row) x = static_cast<std::uint16_t>(random() & 0xBFFFU);
  const auto seen = cast_of(Kernels{}, ScaleFormat::f32, row, 0);
  for (std::size_t first = 0; first < row.size(); first += 128) {
    float amax = model::kAmaxFloor;
    const std::size_t end = std::min(first + 128, row.size());
    for (std::size_t c = first; c < end; ++c) amax = model::amax_of(amax, row[c]);
    const model::Fp8Block block = model::fp8_block_f32(amax);
    float scale = 0;
    std::memcpy(&scale, seen.data() + row.size() + first / 128 * 4, 4);
    ASSERT_EQ(scale, block.scale) << "block at column " << first;
    for (std::size_t c = first; c < end; ++c) ASSERT_EQ(seen[c], std::byte{model::fp8_quantise(block, row[c])});
  }
}

TEST(Cast, ClearsTheBytesOfAScaleWordPastTheLastBlock) {
  for (const int width : {1, 128, 129, 384, 640, 2880}) {
    const std::vector<std::uint16_t> row(static_cast<std::size_t>(width), 0x3F80);
    const auto num_blocks = (row.size() + 127) / 128;
    const auto num_bytes = (num_blocks + 3) / 4 * 4;
    for (const NamedKernels& vectors : runnable_kernels()) {
      const auto seen = cast_of(vectors.kernels, ScaleFormat::ue8m0, row, 0);
      ASSERT_EQ(seen.size(), row.size() + num_bytes);
      for (std::size_t b = 0; b < num_bytes; ++b) {
        EXPECT_EQ(seen[row.size() + b], b < num_blocks ? std::byte{119} : std::byte{0}) << width << " byte " << b;
      }
    }
  }
}

TEST(CastKernels, EqualTheScalarCodeOnEveryPatternUnderManyMaxima) {
  std::mt19937 random(11);
  for (int round = 0; round < 60; ++round) {
    // From around the floor to the top of the range; every block holds this maximum and 127 patterns that are not above
    // it.
    const auto amax = static_cast<std::uint16_t>(round < 4 ? 0x7F7FU - static_cast<unsigned>(round) * 0x10U
                                                           : 0x3800U + random() % 0x4780U);
    std::vector<std::uint16_t> row;
    for (std::uint32_t bits = 0; bits < 0x10000U; ++bits) {
      if (row.size() % 128 == 0) row.push_back(amax);
      if ((bits & 0x7FFFU) <= amax) row.push_back(static_cast<std::uint16_t>(bits));
    }
    expect_scalar_cast(row, "amax pattern " + std::to_string(amax));
  }
}

TEST(CastKernels, EqualTheScalarCodeWhenEachBlockHasNoLargerValueThanThePattern) {
  // Neighbouring patterns share a block: each block's maximum is its last finite pattern, inf and NaN included at the
  // end.
  std::vector<std::uint16_t> row;
  for (std::uint32_t bits = 0; bits < 0x8000U; ++bits) {
    row.push_back(static_cast<std::uint16_t>(bits));
    row.push_back(static_cast<std::uint16_t>(bits | 0x8000U));
  }
  expect_scalar_cast(row, "all patterns in order");
}

TEST(CastKernels, EqualTheScalarCodeOnRandomRowsOfEveryWidthAtOddAddresses) {
  std::mt19937 random(12);
  std::normal_distribution<float> normal;
  for (const int width : kWidths) {
    for (int round = 0; round < 8; ++round) {
      const float spread = std::ldexp(1.0F, static_cast<int>(random() % 200) - 120);
      std::vector<std::uint16_t> row(static_cast<std::size_t>(width));
      for (auto& x : row) x = model::bf16_from_f32(normal(random) * spread);
      expect_scalar_cast(row, "width " + std::to_string(width), round * 7);
    }
  }
}

TEST(CastKernels, EqualTheScalarCodeOnRandomBitsWithInfAndNan) {
  std::mt19937 random(13);
  for (const int width : kWidths) {
    for (int round = 0; round < 4; ++round) {
      std::vector<std::uint16_t> row(static_cast<std::size_t>(width));
      // One block in a few holds an inf or NaN, the rest stay finite.
      for (auto& x : row) x = static_cast<std::uint16_t>(random() % 300 == 0 ? random() | 0x7F80U : random() & 0xBFFFU);
      expect_scalar_cast(row, "width " + std::to_string(width));
    }
  }
}

}  // namespace
}  // namespace moebus::backend
