// Compiled for AVX-512: see kernels.hpp for what must not be used here.
#include <immintrin.h>

#include "backend/cpu/elements_avx512.hpp"

namespace moebus::backend {

using namespace avx512;

namespace {

template <class Type>
MOEBUS_KERNEL int scale_columns(std::byte* row, float factor, int columns) noexcept {
  const __m512 factors = _mm512_set1_ps(factor);
  int column = 0;
  for (; column + kPairColumns <= columns; column += kPairColumns) {
    std::byte* const place = row + std::ptrdiff_t{column} * Type::kBytes;
    const Pair value = Type::load(place);
    Type::save(place, {_mm512_mul_ps(factors, value.a), _mm512_mul_ps(factors, value.b)}, false);
  }
  return column;
}

/// One row at a time: its fma wait for each other, but memory takes longer still.
template <class Type>
MOEBUS_KERNEL int dot_columns(const std::byte* left, const std::byte* right, int columns, float* sums) noexcept {
  __m512 acc = _mm512_setzero_ps();
  int column = 0;
  for (; column + kDotSums <= columns; column += kDotSums) {
    const std::ptrdiff_t offset = std::ptrdiff_t{column} * Type::kBytes;
    acc = _mm512_fmadd_ps(Type::load_in_order(left + offset), Type::load_in_order(right + offset), acc);
  }
  _mm512_storeu_ps(sums, acc);
  return column;
}

#undef MOEBUS_KERNEL

}  // namespace

int scale_bf16_avx512(std::byte* row, float factor, int columns) noexcept {
  return scale_columns<Bf16>(row, factor, columns);
}

int scale_f16_avx512(std::byte* row, float factor, int columns) noexcept {
  return scale_columns<F16>(row, factor, columns);
}

int scale_f32_avx512(std::byte* row, float factor, int columns) noexcept {
  return scale_columns<F32>(row, factor, columns);
}

int dot_bf16_avx512(const std::byte* left, const std::byte* right, int columns, float* sums) noexcept {
  return dot_columns<Bf16>(left, right, columns, sums);
}

int dot_f16_avx512(const std::byte* left, const std::byte* right, int columns, float* sums) noexcept {
  return dot_columns<F16>(left, right, columns, sums);
}

int dot_f32_avx512(const std::byte* left, const std::byte* right, int columns, float* sums) noexcept {
  return dot_columns<F32>(left, right, columns, sums);
}

}  // namespace moebus::backend
