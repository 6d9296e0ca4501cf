// Steps of the AVX-512 cast that do not depend on how bytes are gathered; every source that includes this has its own
// copy. Room: backend/cpu · host, compiled for AVX-512 only: see kernels.hpp for what must not be used here. Source:
// [ours] rounding by one addition in even and odd halves, in place; amax on 16-bit words.

#pragma once

#include <immintrin.h>

#include "backend/cpu/kernels.hpp"

#define MOEBUS_KERNEL static inline __attribute__((always_inline))

namespace moebus::backend {

// The largest |bf16| that this code takes, as float bits: above it lie NaN, inf and the UE8M0 scale 2^120, which
// saturates.
constexpr int kLargestTaken = 0x7EFF0000;

struct GroupScales {
  __m128 scale;  // [4 blocks]
  __m128 multiplier;
  std::uint32_t left_over;  // bit b: block b is left to the scalar code
};

MOEBUS_KERNEL __m512i load(const std::byte* row, int vector) noexcept { return _mm512_loadu_si512(row + 64 * vector); }

MOEBUS_KERNEL __m512i block_maximum(const std::byte* row, int block) noexcept {
  const __m512i magnitude = _mm512_set1_epi16(0x7FFF);
  __m512i maximum = _mm512_and_si512(load(row, 4 * block), magnitude);
  for (int v = 1; v < 4; ++v) {
    maximum = _mm512_max_epu16(maximum, _mm512_and_si512(load(row, 4 * block + v), magnitude));
  }
  return maximum;
}

/// Returns the amax of four blocks as float bits; on |bf16| words the order of integers is the order of values.
MOEBUS_KERNEL __m128i group_amax(const std::byte* row) noexcept {
  const __m512i m0 = block_maximum(row, 0);
  const __m512i m1 = block_maximum(row, 1);
  const __m512i m2 = block_maximum(row, 2);
  const __m512i m3 = block_maximum(row, 3);
  const __m512i m01 = _mm512_max_epu16(_mm512_unpacklo_epi16(m0, m1), _mm512_unpackhi_epi16(m0, m1));
  const __m512i m23 = _mm512_max_epu16(_mm512_unpacklo_epi16(m2, m3), _mm512_unpackhi_epi16(m2, m3));
  const __m512i wide = _mm512_max_epu16(_mm512_unpacklo_epi32(m01, m23), _mm512_unpackhi_epi32(m01, m23));
  const __m256i half = _mm256_max_epu16(_mm512_castsi512_si256(wide), _mm512_extracti64x4_epi64(wide, 1));
  const __m128i quarter = _mm_max_epu16(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
  const __m128i words = _mm_max_epu16(quarter, _mm_shuffle_epi32(quarter, 0x4E));
  return _mm_unpacklo_epi16(_mm_setzero_si128(), words);
}

MOEBUS_KERNEL GroupScales group_scales(const std::byte* row) noexcept {
  const __m128i bits = group_amax(row);
  const int left_over = _mm_movemask_ps(_mm_castsi128_ps(_mm_cmpgt_epi32(bits, _mm_set1_epi32(kLargestTaken))));
  const __m128 amax = _mm_max_ps(_mm_castsi128_ps(bits), _mm_set1_ps(1e-4F));
  const __m128 largest = _mm_set1_ps(448.0F);
  return {_mm_div_ps(amax, largest), _mm_div_ps(largest, amax), static_cast<std::uint32_t>(left_over)};
}

/// Rounds 16 values >= 0 to e4m3 without branches; the code is the low byte of each element.
/// With C = the power of two below the value (at least 2^-6, where subnormals begin), adding 1.5 * 2^20 * C leaves the
/// value in units of C / 8 in the low bits of the sum, rounded to nearest even: 8..16 (0..8 below 2^-6).
/// 7 * C more puts 56 = -8 - 120 * 8 (mod 256) into the same byte, and C's own exponent times 8 is added last.
MOEBUS_KERNEL __m512i encode(__m512 value) noexcept {
  const __m512i exponent = _mm512_and_si512(_mm512_castps_si512(value), _mm512_set1_epi32(0x7F800000));
  const __m512i power = _mm512_max_epi32(exponent, _mm512_set1_epi32(121 << 23));
  const __m512 sum = _mm512_fmadd_ps(_mm512_castsi512_ps(power), _mm512_set1_ps(0x1.8p20F + 7.0F), value);
  return _mm512_add_epi32(_mm512_srli_epi32(power, 20), _mm512_castps_si512(sum));
}

/// Codes of 32 columns, without signs, in the low bytes of 32-bit elements.
struct HalfCodes {
  __m512i even;
  __m512i odd;
};

MOEBUS_KERNEL HalfCodes encode_words(__m512i words, __m512 multiplier) noexcept {
  const __m512i even = _mm512_and_si512(_mm512_slli_epi32(words, 16), _mm512_set1_epi32(0x7FFFFFFF));
  const __m512i odd = _mm512_and_si512(words, _mm512_set1_epi32(0x7FFF0000));
  return {encode(_mm512_mul_ps(_mm512_castsi512_ps(even), multiplier)),
          encode(_mm512_mul_ps(_mm512_castsi512_ps(odd), multiplier))};
}

/// Casts the 128 columns of one block; defined by each source.
MOEBUS_KERNEL void cast_block(const std::byte* row, int block, __m512 multiplier, std::byte* codes) noexcept;

/// Casts the columns of `num_groups` groups by the multipliers of their blocks.
/// Scales of all groups are made before: one after the other, their long chains of latencies would not overlap.
MOEBUS_KERNEL void cast_blocks(const std::byte* row,
                               int num_groups,
                               const float* multipliers,
                               std::byte* codes) noexcept {
  for (int block = 0; block < kGroupBlocks * num_groups; ++block) {
    cast_block(row, block, _mm512_set1_ps(multipliers[block]), codes);
  }
}

MOEBUS_KERNEL std::uint32_t cast_groups_f32(const std::byte* row,
                                            int num_groups,
                                            std::byte* codes,
                                            std::byte* scales) noexcept {
  alignas(kLineBytes) float multipliers[kMaxGroups * kGroupBlocks];
  std::uint32_t left_over = 0;
  for (int g = 0; g < num_groups; ++g) {
    const GroupScales group = group_scales(row + 2 * kGroupColumns * g);
    left_over |= group.left_over << (kGroupBlocks * g);
    _mm_storeu_ps(reinterpret_cast<float*>(scales + 16 * g), group.scale);
    _mm_store_ps(multipliers + kGroupBlocks * g, group.multiplier);
  }
  cast_blocks(row, num_groups, multipliers, codes);
  return left_over;
}

MOEBUS_KERNEL std::uint32_t cast_groups_ue8m0(const std::byte* row,
                                              int num_groups,
                                              std::byte* codes,
                                              std::byte* scales) noexcept {
  alignas(kLineBytes) float multipliers[kMaxGroups * kGroupBlocks];
  std::uint32_t left_over = 0;
  for (int g = 0; g < num_groups; ++g) {
    const GroupScales group = group_scales(row + 2 * kGroupColumns * g);
    left_over |= group.left_over << (kGroupBlocks * g);
    const __m128i up = _mm_add_epi32(_mm_castps_si128(group.scale), _mm_set1_epi32(0x7FFFFF));
    const __m128i exponent = _mm_srli_epi32(up, 23);
    _mm_storeu_si32(scales + 4 * g, _mm_cvtepi32_epi8(exponent));
    const __m128i reciprocal = _mm_slli_epi32(_mm_sub_epi32(_mm_set1_epi32(254), exponent), 23);
    _mm_store_ps(multipliers + kGroupBlocks * g, _mm_castsi128_ps(reciprocal));
  }
  cast_blocks(row, num_groups, multipliers, codes);
  return left_over;
}

}  // namespace moebus::backend
