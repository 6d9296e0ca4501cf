// Every level gives the bytes of the scalar one: casts and sums over all patterns, random rows, special values, odd
// widths.
#include <gtest/gtest.h>
#include <xmmintrin.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "backend/cpu/backend_cpu.hpp"
#include "model/codec.hpp"

namespace moebus::backend {
namespace {

constexpr std::array kWidths{1, 7, 31, 32, 33, 64, 127, 128, 129, 511, 512, 513, 2880, 4096, 4100, 7168, 9999};

std::vector<SimdLevel> vector_levels() {
  std::vector<SimdLevel> levels;
  for (const SimdLevel level : {SimdLevel::avx2, SimdLevel::avx512}) {
    if (has_simd_level(level)) levels.push_back(level);
  }
  return levels;
}

model::DispatchRowFormat cast_format(int hidden, ScaleFormat scales) {
  ExchangeConfig config;
  config.hidden = hidden;
  config.cast = Cast::fp8;
  config.scale_format = scales;
  return model::dispatch_row_format(config);
}

/// Casts one row that starts `shift` bytes into its memory; returns codes and scales.
std::vector<std::byte> cast_row_of(SimdLevel level,
                                   ScaleFormat scales,
                                   const std::vector<std::uint16_t>& row,
                                   int shift) {
  const auto format = cast_format(static_cast<int>(row.size()), scales);
  std::vector<std::byte> memory(row.size() * 2 + 64);
  std::memcpy(memory.data() + shift, row.data(), row.size() * 2);
  std::vector<std::byte> result(format.payload_bytes + format.scales_bytes, std::byte{0xEE});
  ConstRowArrays source;
  source.tokens = memory.data() + shift;
  RowArrays sink;
  sink.tokens = result.data();
  sink.scales = result.data() + format.payload_bytes;
  sink.scale_item_stride_bytes = 4;
  const RowMove move{0, 0};
  make_cpu_backend(level)->place(format, source, sink, {&move, 1});
  return result;
}

void expect_scalar_cast(const std::vector<std::uint16_t>& row, const std::string& what, int shift = 0) {
  for (const ScaleFormat scales : {ScaleFormat::f32, ScaleFormat::ue8m0}) {
    const auto expected = cast_row_of(SimdLevel::scalar, scales, row, shift);
    for (const SimdLevel level : vector_levels()) {
      const auto seen = cast_row_of(level, scales, row, shift);
      const auto differs = std::mismatch(seen.begin(), seen.end(), expected.begin()).first - seen.begin();
      ASSERT_EQ(seen == expected, true) << what << ", " << to_string(level) << ", " << to_string(scales)
                                        << ": first difference at byte " << differs << " of " << expected.size();
    }
  }
}

TEST(CastLevels, AgreeOnEveryPatternUnderManyMaxima) {
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

TEST(CastLevels, AgreeWhenEachBlockHasNoLargerValueThanThePattern) {
  // Neighbouring patterns share a block: each block's maximum is its last finite pattern, inf and NaN included at the
  // end.
  std::vector<std::uint16_t> row;
  for (std::uint32_t bits = 0; bits < 0x8000U; ++bits) {
    row.push_back(static_cast<std::uint16_t>(bits));
    row.push_back(static_cast<std::uint16_t>(bits | 0x8000U));
  }
  expect_scalar_cast(row, "all patterns in order");
}

TEST(CastLevels, AgreeOnRandomRowsOfEveryWidthAtOddAddresses) {
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

TEST(CastLevels, AgreeOnRandomBitsWithInfAndNan) {
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

/// Terms, weights and bias for sums of one row.
struct SumInput {
  DType dtype;
  int hidden;
  std::vector<std::vector<std::byte>> rows;  // terms, then two biases
  std::vector<float> weights;
};

constexpr std::array<std::uint32_t, 12> kSpecial{0x00000000,
                                                 0x80000000,
                                                 0x7F800000,
                                                 0xFF800000,
                                                 0x7FC00000,
                                                 0xFFC12345,
                                                 0x00000001,
                                                 0x80000001,
                                                 0x7F7FFFFF,
                                                 0xFF7FFFFF,
                                                 0x3F808000,
                                                 0x477FF000};

SumInput random_input(std::mt19937& random, DType dtype, int hidden, int num_terms, bool is_special) {
  SumInput input{dtype, hidden, {}, {}};
  std::normal_distribution<float> normal;
  const auto fill = [&](std::vector<std::byte>& row) {
    for (int c = 0; c < hidden; ++c) {
      const std::uint32_t bits = static_cast<std::uint32_t>(random());
      const bool is_wild = is_special && random() % 4 == 0;
      const float value =
          is_wild ? model::float_of(random() % 2 == 0 ? bits : kSpecial[bits % kSpecial.size()]) : normal(random);
      const std::uint16_t narrow = dtype == DType::f16 ? model::f16_from_f32(value) : model::bf16_from_f32(value);
      std::byte* const to = row.data() + static_cast<std::size_t>(c) * size_of(dtype);
      std::memcpy(to, dtype == DType::f32 ? static_cast<const void*>(&value) : &narrow, size_of(dtype));
    }
  };
  for (int t = 0; t < num_terms + 2; ++t) {
    input.rows.emplace_back(static_cast<std::size_t>(hidden) * size_of(dtype));
    fill(input.rows.back());
    input.weights.push_back(is_special && random() % 8 == 0 ? model::float_of(kSpecial[random() % kSpecial.size()])
                                                            : normal(random));
  }
  return input;
}

std::vector<std::byte> sum_of(SimdLevel level, const SumInput& input, bool is_weighted, int num_biases) {
  const auto num_terms = static_cast<std::int32_t>(input.rows.size()) - 2;
  std::vector<const std::byte*> terms;
  for (std::int32_t t = 0; t < num_terms; ++t) {
    terms.push_back(t % 5 == 3 ? nullptr : input.rows[static_cast<std::size_t>(t)].data());
  }
  const std::array<std::int32_t, 2> first{0, num_terms};
  std::vector<std::byte> output(static_cast<std::size_t>(input.hidden) * size_of(input.dtype), std::byte{0xEE});
  SumJob job;
  job.dtype = input.dtype;
  job.hidden = input.hidden;
  job.num_outputs = 1;
  job.first = first.data();
  job.term = terms.data();
  job.weight = is_weighted ? input.weights.data() : nullptr;
  for (int b = 0; b < num_biases; ++b) {
    job.bias[static_cast<std::size_t>(b)] = input.rows[static_cast<std::size_t>(num_terms + b)].data();
  }
  job.output = output.data();
  make_cpu_backend(level)->sum(job);
  return output;
}

void expect_scalar_sums(std::mt19937& random, DType dtype, int hidden, bool is_special) {
  const int num_terms = static_cast<int>(random() % 9);
  const SumInput input = random_input(random, dtype, hidden, num_terms, is_special);
  for (const bool is_weighted : {true, false}) {
    for (int num_biases = 0; num_biases <= 2; ++num_biases) {
      const auto expected = sum_of(SimdLevel::scalar, input, is_weighted, num_biases);
      for (const SimdLevel level : vector_levels()) {
        ASSERT_EQ(sum_of(level, input, is_weighted, num_biases) == expected, true)
            << to_string(dtype) << " hidden " << hidden << " terms " << num_terms << " weighted " << is_weighted
            << " biases " << num_biases << " " << to_string(level);
      }
    }
  }
}

TEST(SumLevels, AgreeOnRandomRowsOfEveryWidthAndType) {
  std::mt19937 random(21);
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
    for (const int width : kWidths) expect_scalar_sums(random, dtype, width, false);
  }
}

TEST(SumLevels, AgreeOnSubnormalsInfNanAndOverflow) {
  std::mt19937 random(22);
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
    for (const int width : {1, 33, 512, 2880}) {
      for (int round = 0; round < 10; ++round) expect_scalar_sums(random, dtype, width, true);
    }
  }
}

TEST(SumLevels, RoundEveryHalfPatternToItself) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    SumInput input{dtype, 0x10000, std::vector<std::vector<std::byte>>(3), {1.0F, 1.0F, 1.0F}};
    for (auto& row : input.rows) row.resize(0x20000);
    for (std::uint32_t bits = 0; bits < 0x10000U; ++bits) {
      const auto pattern = static_cast<std::uint16_t>(bits);
      for (auto& row : input.rows) std::memcpy(row.data() + bits * 2U, &pattern, 2);
    }
    const auto expected = sum_of(SimdLevel::scalar, input, true, 0);
    for (const SimdLevel level : vector_levels()) EXPECT_EQ(sum_of(level, input, true, 0) == expected, true);
  }
}

TEST(EveryLevel, KeepsSubnormalsWhenTheCallersThreadFlushesThem) {
  std::mt19937 random(23);
  SumInput input = random_input(random, DType::f32, 64, 2, false);
  const float smallest = 0x1p-149F;
  for (auto& row : input.rows) {
    for (std::size_t c = 0; c < 64; ++c) std::memcpy(row.data() + c * 4, &smallest, 4);
  }
  std::vector<SimdLevel> levels = vector_levels();
  levels.push_back(SimdLevel::scalar);
  for (const SimdLevel level : levels) {
    const unsigned before = _mm_getcsr();
    _mm_setcsr(before | 0x8040U);  // flush to zero, subnormals are zero
    const auto output = sum_of(level, input, false, 0);
    _mm_setcsr(before);
    float first = 0;
    std::memcpy(&first, output.data(), 4);
    EXPECT_EQ(first, 0x1p-148F) << to_string(level);
  }
}

}  // namespace
}  // namespace moebus::backend
