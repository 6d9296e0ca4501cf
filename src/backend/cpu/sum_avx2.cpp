// Compiled for AVX2, FMA and F16C: see kernels.hpp for what must not be used here.
#include <immintrin.h>

#include "backend/cpu/kernels.hpp"

namespace moebus::backend {

namespace {

#define MOEBUS_KERNEL static inline __attribute__((always_inline))

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

  MOEBUS_KERNEL __m256i canonical(__m256 value) noexcept {
    return _mm256_blendv_epi8(_mm256_castps_si256(value), _mm256_set1_epi32(0x7FC00000), nan_mask(value));
  }

  MOEBUS_KERNEL void save(std::byte* output, Pair pair, bool is_streamed) noexcept {
    store(output, canonical(pair.a), is_streamed);
    store(output + 32, canonical(pair.b), is_streamed);
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
  for (int p = 0; p < kPairs; ++p) acc[p] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
  if (row.bias[0] == nullptr) return;
  for (int p = 0; p < kPairs; ++p) acc[p] = Type::load(row.bias[0] + offset + p * kPairColumns * Type::kBytes);
  if (row.bias[1] == nullptr) return;
  for (int p = 0; p < kPairs; ++p) {
    const Pair bias = Type::load(row.bias[1] + offset + p * kPairColumns * Type::kBytes);
    acc[p] = {_mm256_add_ps(acc[p].a, bias.a), _mm256_add_ps(acc[p].b, bias.b)};
  }
}

/// Sums kPairs * 16 columns with all accumulators in registers.
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
      const __m256 weight = _mm256_set1_ps(row.weights[t]);
      for (int p = 0; p < kPairs; ++p) {
        const Pair value = Type::load(term + p * kPairColumns * Type::kBytes);
        acc[p] = {_mm256_fmadd_ps(weight, value.a, acc[p].a), _mm256_fmadd_ps(weight, value.b, acc[p].b)};
      }
    } else {
      for (int p = 0; p < kPairs; ++p) {
        const Pair value = Type::load(term + p * kPairColumns * Type::kBytes);
        acc[p] = {_mm256_add_ps(acc[p].a, value.a), _mm256_add_ps(acc[p].b, value.b)};
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

int sum_bf16_avx2(const SumRow& row, int begin) noexcept { return sum_columns<Bf16>(row, begin); }

int sum_f16_avx2(const SumRow& row, int begin) noexcept { return sum_columns<F16>(row, begin); }

int sum_f32_avx2(const SumRow& row, int begin) noexcept { return sum_columns<F32>(row, begin); }

}  // namespace moebus::backend
