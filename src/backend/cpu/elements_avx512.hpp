// Elements: how bf16, f16 and f32 columns get into vectors of float and back; every source that includes this has its
// own copy. Room: backend/cpu · host, compiled for AVX-512 only: see kernels.hpp for what must not be used here.

#pragma once

#include <immintrin.h>

#include "backend/cpu/kernels.hpp"

#define MOEBUS_KERNEL static inline __attribute__((always_inline))

namespace moebus::backend::avx512 {

constexpr int kPairColumns = 32;  // two accumulators of 16 floats

struct Pair {
  __m512 a;
  __m512 b;
};

MOEBUS_KERNEL __mmask16 nan_mask(__m512 value) noexcept { return _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q); }

MOEBUS_KERNEL void store(std::byte* output, __m512i value, bool is_streamed) noexcept {
  if (is_streamed) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(output), value);
  } else {
    _mm512_storeu_si512(output, value);
  }
}

// a = even columns, b = odd ones: no shuffle is needed either way.
struct Bf16 {
  static constexpr int kBytes = 2;

  MOEBUS_KERNEL Pair load(const std::byte* row) noexcept {
    const __m512i words = _mm512_loadu_si512(row);
    return {_mm512_castsi512_ps(_mm512_slli_epi32(words, 16)),
            _mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32(static_cast<int>(0xFFFF0000U))))};
  }

  /// 16 columns in their order.
  MOEBUS_KERNEL __m512 load_in_order(const std::byte* row) noexcept {
    const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16));
  }

  /// Adds half of the last kept bit's unit, less one if that bit is even: the upper half then is rounded to nearest
  /// even.
  MOEBUS_KERNEL __m512i round(__m512 value) noexcept {
    const __m512i bits = _mm512_castps_si512(value);
    const __m512i is_odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), is_odd);
    return _mm512_mask_mov_epi32(rounded, nan_mask(value), _mm512_set1_epi32(0x7FFF0000));
  }

  MOEBUS_KERNEL void save(std::byte* output, Pair pair, bool is_streamed) noexcept {
    const __m512i even = _mm512_srli_epi32(round(pair.a), 16);
    store(output, _mm512_mask_blend_epi16(0xAAAAAAAAU, even, round(pair.b)), is_streamed);
  }
};

struct F16 {
  static constexpr int kBytes = 2;

  MOEBUS_KERNEL Pair load(const std::byte* row) noexcept {
    const auto* half = reinterpret_cast<const __m256i*>(row);
    return {_mm512_cvtph_ps(_mm256_loadu_si256(half)), _mm512_cvtph_ps(_mm256_loadu_si256(half + 1))};
  }

  MOEBUS_KERNEL __m512 load_in_order(const std::byte* row) noexcept {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(row)));
  }

  MOEBUS_KERNEL __m256i round(__m512 value) noexcept {
    const __m256i rounded = _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    return _mm256_mask_mov_epi16(rounded, nan_mask(value), _mm256_set1_epi16(0x7FFF));
  }

  MOEBUS_KERNEL void save(std::byte* output, Pair pair, bool is_streamed) noexcept {
    store(output, _mm512_inserti64x4(_mm512_castsi256_si512(round(pair.a)), round(pair.b), 1), is_streamed);
  }
};

struct F32 {
  static constexpr int kBytes = 4;

  MOEBUS_KERNEL Pair load(const std::byte* row) noexcept {
    const auto* value = reinterpret_cast<const float*>(row);
    return {_mm512_loadu_ps(value), _mm512_loadu_ps(value + 16)};
  }

  MOEBUS_KERNEL __m512 load_in_order(const std::byte* row) noexcept {
    return _mm512_loadu_ps(reinterpret_cast<const float*>(row));
  }

  MOEBUS_KERNEL __m512i canonical(__m512 value) noexcept {
    return _mm512_mask_mov_epi32(_mm512_castps_si512(value), nan_mask(value), _mm512_set1_epi32(0x7FC00000));
  }

  MOEBUS_KERNEL void save(std::byte* output, Pair pair, bool is_streamed) noexcept {
    store(output, canonical(pair.a), is_streamed);
    store(output + 64, canonical(pair.b), is_streamed);
  }
};

}  // namespace moebus::backend::avx512
