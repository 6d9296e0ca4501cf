// Elements: how bf16, f16 and f32 columns get into vectors of float and back; every source that includes this has its
// own copy. Room: backend/cpu · host, compiled for AVX2, FMA and F16C only: see kernels.hpp for what must not be used
// here.

#pragma once

#include <immintrin.h>

#include "backend/cpu/kernels.hpp"

#define MOEBUS_KERNEL static inline __attribute__((always_inline))

namespace moebus::backend::avx2 {

constexpr int kPairColumns = 16;  // two accumulators of 8 floats

struct Pair {
  __m256 a;
  __m256 b;
};

MOEBUS_KERNEL __m256i nan_mask(__m256 value) noexcept {
  return _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
}

MOEBUS_KERNEL void store(std::byte* output, __m256i value, bool is_streamed) noexcept {
  if (is_streamed) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(output), value);
  } else {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(output), value);
  }
}

// a = even columns, b = odd ones: no shuffle is needed either way.
struct Bf16 {
  static constexpr int kBytes = 2;

  MOEBUS_KERNEL Pair load(const std::byte* row) noexcept {
    const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(words, 16)),
            _mm256_castsi256_ps(_mm256_and_si256(words, _mm256_set1_epi32(static_cast<int>(0xFFFF0000U))))};
  }

  /// The same columns in their order.
  MOEBUS_KERNEL Pair load_in_order(const std::byte* row) noexcept {
    const auto* words = reinterpret_cast<const __m128i*>(row);
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(words)), 16)),
            _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(words + 1)), 16))};
  }

  MOEBUS_KERNEL __m256i round(__m256 value) noexcept {
    const __m256i bits = _mm256_castps_si256(value);
    const __m256i is_odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), is_odd);
    return _mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7FFF0000), nan_mask(value));
  }

  MOEBUS_KERNEL void save(std::byte* output, Pair pair, bool is_streamed) noexcept {
    const __m256i even = _mm256_srli_epi32(round(pair.a), 16);
    store(output, _mm256_blend_epi16(even, round(pair.b), 0xAA), is_streamed);
  }
};

struct F16 {
  static constexpr int kBytes = 2;

  MOEBUS_KERNEL Pair load(const std::byte* row) noexcept {
    const auto* half = reinterpret_cast<const __m128i*>(row);
    return {_mm256_cvtph_ps(_mm_loadu_si128(half)), _mm256_cvtph_ps(_mm_loadu_si128(half + 1))};
  }

  MOEBUS_KERNEL Pair load_in_order(const std::byte* row) noexcept { return load(row); }

  MOEBUS_KERNEL __m128i round(__m256 value) noexcept {
    const __m128i rounded = _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m256i wide = nan_mask(value);
    const __m128i mask = _mm_packs_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
    return _mm_blendv_epi8(rounded, _mm_set1_epi16(0x7FFF), mask);
  }

  MOEBUS_KERNEL void save(std::byte* output, Pair pair, bool is_streamed) noexcept {
    store(output, _mm256_inserti128_si256(_mm256_castsi128_si256(round(pair.a)), round(pair.b), 1), is_streamed);
  }
};

struct F32 {
  static constexpr int kBytes = 4;

  MOEBUS_KERNEL Pair load(const std::byte* row) noexcept {
    const auto* value = reinterpret_cast<const float*>(row);
    return {_mm256_loadu_ps(value), _mm256_loadu_ps(value + 8)};
  }

  MOEBUS_KERNEL Pair load_in_order(const std::byte* row) noexcept { return load(row); }

  MOEBUS_KERNEL __m256i canonical(__m256 value) noexcept {
    return _mm256_blendv_epi8(_mm256_castps_si256(value), _mm256_set1_epi32(0x7FC00000), nan_mask(value));
  }

  MOEBUS_KERNEL void save(std::byte* output, Pair pair, bool is_streamed) noexcept {
    store(output, canonical(pair.a), is_streamed);
    store(output + 32, canonical(pair.b), is_streamed);
  }
};

}  // namespace moebus::backend::avx2
