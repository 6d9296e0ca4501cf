// Compiled for AVX-512: see kernels.hpp for what must not be used here.
#include <immintrin.h>

#include "backend/cpu/kernels.hpp"

namespace moebus::backend {

namespace {

#define MOEBUS_KERNEL static inline __attribute__((always_inline))

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

  MOEBUS_KERNEL __m512i canonical(__m512 value) noexcept {
    return _mm512_mask_mov_epi32(_mm512_castps_si512(value), nan_mask(value), _mm512_set1_epi32(0x7FC00000));
  }

  MOEBUS_KERNEL void save(std::byte* output, Pair pair, bool is_streamed) noexcept {
    store(output, canonical(pair.a), is_streamed);
    store(output + 64, canonical(pair.b), is_streamed);
  }
};

/// Hints at what the same term gives in later steps. Counts in integers: the end of a row may be passed.
MOEBUS_KERNEL void read_ahead(const std::byte* term, std::size_t step_bytes) noexcept {
  const std::uintptr_t first = reinterpret_cast<std::uintptr_t>(term) + kReadAheadBytes;
  for (std::size_t i = 0; i < step_bytes; i += kLineBytes) {
    _mm_prefetch(reinterpret_cast<const char*>(first + i), _MM_HINT_T0);
  }
}

/// Starts accumulators at the bias, or +0.
template <class Type, int kPairs>
MOEBUS_KERNEL void start(const SumRow& row, int column, Pair* acc) noexcept {
  const std::ptrdiff_t offset = std::ptrdiff_t{column} * Type::kBytes;
  for (int p = 0; p < kPairs; ++p) acc[p] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
  if (row.bias[0] == nullptr) return;
  for (int p = 0; p < kPairs; ++p) acc[p] = Type::load(row.bias[0] + offset + p * kPairColumns * Type::kBytes);
  if (row.bias[1] == nullptr) return;
  for (int p = 0; p < kPairs; ++p) {
    const Pair bias = Type::load(row.bias[1] + offset + p * kPairColumns * Type::kBytes);
    acc[p] = {_mm512_add_ps(acc[p].a, bias.a), _mm512_add_ps(acc[p].b, bias.b)};
  }
}

/// Sums kPairs * 32 columns with all accumulators in registers.
template <class Type, int kPairs>
MOEBUS_KERNEL void sum_step(const SumRow& row, int column) noexcept {
  const std::ptrdiff_t offset = std::ptrdiff_t{column} * Type::kBytes;
  Pair acc[kPairs];
  start<Type, kPairs>(row, column, acc);
  for (int t = 0; t < row.num_terms; ++t) {
    if (row.terms[t] == nullptr) continue;
    const std::byte* const term = row.terms[t] + offset;
    read_ahead(term, kPairs * kPairColumns * Type::kBytes);
    if (row.weights != nullptr) {
      const __m512 weight = _mm512_set1_ps(row.weights[t]);
      for (int p = 0; p < kPairs; ++p) {
        const Pair value = Type::load(term + p * kPairColumns * Type::kBytes);
        acc[p] = {_mm512_fmadd_ps(weight, value.a, acc[p].a), _mm512_fmadd_ps(weight, value.b, acc[p].b)};
      }
    } else {
      for (int p = 0; p < kPairs; ++p) {
        const Pair value = Type::load(term + p * kPairColumns * Type::kBytes);
        acc[p] = {_mm512_add_ps(acc[p].a, value.a), _mm512_add_ps(acc[p].b, value.b)};
      }
    }
  }
  for (int p = 0; p < kPairs; ++p) {
    Type::save(row.output + offset + p * kPairColumns * Type::kBytes, acc[p], row.is_streamed);
  }
}

template <class Type>
MOEBUS_KERNEL int sum_columns(const SumRow& row, int begin) noexcept {
  constexpr int kPairs = 4;  // eight accumulators hide the latency of the additions
  int column = begin;
  for (; column + kPairs * kPairColumns <= row.columns; column += kPairs * kPairColumns) {
    sum_step<Type, kPairs>(row, column);
  }
  for (; column + kPairColumns <= row.columns; column += kPairColumns) sum_step<Type, 1>(row, column);
  return column;
}

#undef MOEBUS_KERNEL

}  // namespace

int sum_bf16_avx512(const SumRow& row, int begin) noexcept { return sum_columns<Bf16>(row, begin); }

int sum_f16_avx512(const SumRow& row, int begin) noexcept { return sum_columns<F16>(row, begin); }

int sum_f32_avx512(const SumRow& row, int begin) noexcept { return sum_columns<F32>(row, begin); }

}  // namespace moebus::backend
