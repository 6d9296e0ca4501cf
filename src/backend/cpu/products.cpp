#include "backend/cpu/products.hpp"

#include <array>
#include <cmath>

#include "backend/cpu/elements_scalar.hpp"
#include "base/assert.hpp"

namespace moebus::backend {

using base::idx;

namespace {

template <class Type>
void scale(ScaleColumns kernel, const ScaleJob& job) noexcept {
  for (std::size_t i = 0; i < job.row.size(); ++i) {
    std::byte* const row = job.rows + job.row[i] * job.stride_bytes;
    const int begin = kernel != nullptr ? kernel(row, job.factor[i], job.hidden) : 0;
    for (int c = begin; c < job.hidden; ++c) Type::store(row, c, job.factor[i] * Type::load(row, c));
  }
}

template <class Type>
float dot(DotColumns kernel, const std::byte* left, const std::byte* right, int columns) noexcept {
  std::array<float, kDotSums> sums{};
  const int begin = kernel != nullptr ? kernel(left, right, columns, sums.data()) : 0;
  for (int c = begin; c < columns; ++c) {
    float& sum = sums[idx(c % kDotSums)];
    sum = std::fma(Type::load(left, c), Type::load(right, c), sum);
  }
  for (std::size_t half = sums.size() / 2; half > 0; half /= 2) {
    for (std::size_t j = 0; j < half; ++j) sums[j] += sums[j + half];
  }
  return model::canonical_f32(sums[0]);
}

template <class Type>
void dot(DotColumns kernel, const DotJob& job) noexcept {
  for (std::size_t i = 0; i < job.row.size(); ++i) {
    job.dot[i] = dot<Type>(kernel,
                           job.left + job.row[i] * job.left_stride_bytes,
                           job.right + job.row[i] * job.right_stride_bytes,
                           job.hidden);
  }
}

}  // namespace

void scale_rows(const Kernels& kernels, const ScaleJob& job) noexcept {
  switch (job.dtype) {
    case DType::bf16:
      return scale<scalar::Bf16>(kernels.scale_bf16, job);
    case DType::f16:
      return scale<scalar::F16>(kernels.scale_f16, job);
    case DType::f32:
      return scale<scalar::F32>(kernels.scale_f32, job);
    default:
      MOEBUS_ASSERT(is_summable(job.dtype));
  }
}

void dot_rows(const Kernels& kernels, const DotJob& job) noexcept {
  switch (job.dtype) {
    case DType::bf16:
      return dot<scalar::Bf16>(kernels.dot_bf16, job);
    case DType::f16:
      return dot<scalar::F16>(kernels.dot_f16, job);
    case DType::f32:
      return dot<scalar::F32>(kernels.dot_f32, job);
    default:
      MOEBUS_ASSERT(is_summable(job.dtype));
  }
}

}  // namespace moebus::backend
