// Compiled for AVX2, FMA and F16C: see kernels.hpp for what must not be used here.
#include <immintrin.h>

#include "backend/cpu/elements_avx2.hpp"

namespace moebus::backend {

using namespace avx2;

namespace {

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
