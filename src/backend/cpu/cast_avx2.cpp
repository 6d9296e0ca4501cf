// Compiled for AVX2 and FMA: see kernels.hpp for what must not be used here. The method is explained in
// cast_avx512.cpp.
#include <immintrin.h>

#include "backend/cpu/kernels.hpp"

namespace moebus::backend {

namespace {

#define MOEBUS_KERNEL static inline __attribute__((always_inline))

// As in cast_avx512_steps.hpp: above it lie NaN, inf and the UE8M0 scale 2^120.
constexpr int kLargestTaken = 0x7EFF0000;

struct GroupScales {
  __m128 scale;  // [4 blocks]
  __m128 multiplier;
  std::uint32_t left_over;
};

MOEBUS_KERNEL __m256i load(const std::byte* row, int vector) noexcept {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + 32 * vector));
}

MOEBUS_KERNEL __m256i block_maximum(const std::byte* row, int block) noexcept {
  const __m256i magnitude = _mm256_set1_epi16(0x7FFF);
  __m256i maximum = _mm256_and_si256(load(row, 8 * block), magnitude);
  for (int v = 1; v < 8; ++v) {
    maximum = _mm256_max_epu16(maximum, _mm256_and_si256(load(row, 8 * block + v), magnitude));
  }
  return maximum;
}

MOEBUS_KERNEL __m128i group_amax(const std::byte* row) noexcept {
  const __m256i m0 = block_maximum(row, 0);
  const __m256i m1 = block_maximum(row, 1);
  const __m256i m2 = block_maximum(row, 2);
  const __m256i m3 = block_maximum(row, 3);
  const __m256i m01 = _mm256_max_epu16(_mm256_unpacklo_epi16(m0, m1), _mm256_unpackhi_epi16(m0, m1));
  const __m256i m23 = _mm256_max_epu16(_mm256_unpacklo_epi16(m2, m3), _mm256_unpackhi_epi16(m2, m3));
  const __m256i wide = _mm256_max_epu16(_mm256_unpacklo_epi32(m01, m23), _mm256_unpackhi_epi32(m01, m23));
  const __m128i half = _mm_max_epu16(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
  const __m128i words = _mm_max_epu16(half, _mm_shuffle_epi32(half, 0x4E));
  return _mm_unpacklo_epi16(_mm_setzero_si128(), words);
}

MOEBUS_KERNEL GroupScales group_scales(const std::byte* row) noexcept {
  const __m128i bits = group_amax(row);
  const int left_over = _mm_movemask_ps(_mm_castsi128_ps(_mm_cmpgt_epi32(bits, _mm_set1_epi32(kLargestTaken))));
  const __m128 amax = _mm_max_ps(_mm_castsi128_ps(bits), _mm_set1_ps(1e-4F));
  const __m128 largest = _mm_set1_ps(448.0F);
  return {_mm_div_ps(amax, largest), _mm_div_ps(largest, amax), static_cast<std::uint32_t>(left_over)};
}

/// As in cast_avx512_steps.hpp, but the low 16 bits of each element are the code: 0xFC38 = -8 - 120 * 8 (mod 2^16).
MOEBUS_KERNEL __m256i encode(__m256 value) noexcept {
  const __m256i exponent = _mm256_and_si256(_mm256_castps_si256(value), _mm256_set1_epi32(0x7F800000));
  const __m256i power = _mm256_max_epi32(exponent, _mm256_set1_epi32(121 << 23));
  const __m256 sum = _mm256_fmadd_ps(_mm256_castsi256_ps(power), _mm256_set1_ps(0x1.8p20F + 0xFC38 / 8), value);
  return _mm256_add_epi32(_mm256_srli_epi32(power, 20), _mm256_castps_si256(sum));
}

/// Returns the codes of 16 columns, without signs, as 16-bit elements.
MOEBUS_KERNEL __m256i encode_words(__m256i words, __m256 multiplier) noexcept {
  const __m256i even = _mm256_and_si256(_mm256_slli_epi32(words, 16), _mm256_set1_epi32(0x7FFFFFFF));
  const __m256i odd = _mm256_and_si256(words, _mm256_set1_epi32(0x7FFF0000));
  const __m256i even_codes = encode(_mm256_mul_ps(_mm256_castsi256_ps(even), multiplier));
  const __m256i odd_codes = encode(_mm256_mul_ps(_mm256_castsi256_ps(odd), multiplier));
  return _mm256_blend_epi16(even_codes, _mm256_slli_epi32(odd_codes, 16), 0xAA);
}

/// Casts 32 columns.
MOEBUS_KERNEL void cast_pair(const std::byte* row, int pair, __m256 multiplier, std::byte* codes) noexcept {
  const __m256i low = load(row, 2 * pair);
  const __m256i high = load(row, 2 * pair + 1);
  const __m256i magnitude = _mm256_packus_epi16(encode_words(low, multiplier), encode_words(high, multiplier));
  // Saturating to signed bytes keeps the sign of each word.
  const __m256i sign = _mm256_and_si256(_mm256_packs_epi16(low, high), _mm256_set1_epi8(static_cast<char>(0x80)));
  const __m256i ordered = _mm256_permute4x64_epi64(_mm256_or_si256(magnitude, sign), 0xD8);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes + 32 * pair), ordered);
}

MOEBUS_KERNEL void encode_blocks(const std::byte* row,
                                 int num_groups,
                                 const float* multipliers,
                                 std::byte* codes) noexcept {
  for (int block = 0; block < kGroupBlocks * num_groups; ++block) {
    const __m256 multiplier = _mm256_set1_ps(multipliers[block]);
    for (int p = 0; p < 4; ++p) cast_pair(row, 4 * block + p, multiplier, codes);
  }
}

#undef MOEBUS_KERNEL

}  // namespace

std::uint32_t cast_groups_f32_avx2(const std::byte* row, int num_groups, std::byte* codes, std::byte* scales) noexcept {
  alignas(kLineBytes) float multipliers[kMaxGroups * kGroupBlocks];
  std::uint32_t left_over = 0;
  for (int g = 0; g < num_groups; ++g) {
    const GroupScales group = group_scales(row + 2 * kGroupColumns * g);
    left_over |= group.left_over << (kGroupBlocks * g);
    _mm_storeu_ps(reinterpret_cast<float*>(scales + 16 * g), group.scale);
    _mm_store_ps(multipliers + kGroupBlocks * g, group.multiplier);
  }
  encode_blocks(row, num_groups, multipliers, codes);
  return left_over;
}

std::uint32_t cast_groups_ue8m0_avx2(const std::byte* row,
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
    const __m128i words = _mm_packus_epi32(exponent, exponent);
    _mm_storeu_si32(scales + 4 * g, _mm_packus_epi16(words, words));
    const __m128i reciprocal = _mm_slli_epi32(_mm_sub_epi32(_mm_set1_epi32(254), exponent), 23);
    _mm_store_ps(multipliers + kGroupBlocks * g, _mm_castsi128_ps(reciprocal));
  }
  encode_blocks(row, num_groups, multipliers, codes);
  return left_over;
}

}  // namespace moebus::backend
