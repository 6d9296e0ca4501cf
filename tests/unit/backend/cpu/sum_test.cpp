#include "backend/cpu/sum.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "backend/cpu/backend_cpu.hpp"
#include "backend/cpu/float_mode.hpp"
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
        ASSERT_TRUE(sum_of(level, input, is_weighted, num_biases) == expected)
            << to_string(dtype) << " hidden " << hidden << " terms " << num_terms << " weighted " << is_weighted
            << " biases " << num_biases << " " << to_string(level);
      }
    }
  }
}

TEST(SumLevels, EqualTheScalarOneOnRandomRowsOfEveryWidthAndType) {
  std::mt19937 random(21);
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
    for (const int width : kWidths) expect_scalar_sums(random, dtype, width, false);
  }
}

TEST(SumLevels, EqualTheScalarOneOnSubnormalsInfNanAndOverflow) {
  std::mt19937 random(22);
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
    for (const int width : {1, 33, 512, 2880}) {
      for (int round = 0; round < 10; ++round) expect_scalar_sums(random, dtype, width, true);
    }
  }
}

TEST(SumLevels, EqualTheScalarOneOnEveryHalfPattern) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    SumInput input{dtype, 0x10000, std::vector<std::vector<std::byte>>(3), {1.0F, 1.0F, 1.0F}};
    for (auto& row : input.rows) row.resize(0x20000);
    for (std::uint32_t bits = 0; bits < 0x10000U; ++bits) {
      const auto pattern = static_cast<std::uint16_t>(bits);
      for (auto& row : input.rows) std::memcpy(row.data() + bits * 2U, &pattern, 2);
    }
    const auto expected = sum_of(SimdLevel::scalar, input, true, 0);
    for (const SimdLevel level : vector_levels()) EXPECT_TRUE(sum_of(level, input, true, 0) == expected);
  }
}

TEST(SumLevels, KeepSubnormalsWhenTheCallersThreadFlushesThem) {
  std::mt19937 random(23);
  SumInput input = random_input(random, DType::f32, 64, 2, false);
  const float smallest = 0x1p-149F;
  for (auto& row : input.rows) {
    for (std::size_t c = 0; c < 64; ++c) std::memcpy(row.data() + c * 4, &smallest, 4);
  }
  std::vector<SimdLevel> levels = vector_levels();
  levels.push_back(SimdLevel::scalar);
  for (const SimdLevel level : levels) {
    const std::uint64_t before = FloatControl::get();
    FloatControl::set(before | FloatControl::kFlushes);
    const auto output = sum_of(level, input, false, 0);
    FloatControl::set(before);
    float first = 0;
    std::memcpy(&first, output.data(), 4);
    EXPECT_EQ(first, 0x1p-148F) << to_string(level);
  }
}

}  // namespace
}  // namespace moebus::backend
