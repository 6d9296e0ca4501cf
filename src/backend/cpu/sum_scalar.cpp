#include <cmath>

#include "backend/cpu/elements_scalar.hpp"
#include "backend/cpu/sum.hpp"
#include "base/assert.hpp"

namespace moebus::backend {

using namespace scalar;

namespace {

template <class Type>
void sum_columns(const SumRow& row, int begin) noexcept {
  for (int c = begin; c < row.columns; ++c) {
    float acc = row.bias[0] != nullptr ? Type::load(row.bias[0], c) : 0.0F;
    if (row.bias[0] != nullptr && row.bias[1] != nullptr) acc = acc + Type::load(row.bias[1], c);
    for (int t = 0; t < row.num_terms; ++t) {
      if (row.terms[t] == nullptr) continue;
      const float term = Type::load(row.terms[t], c);
      acc = row.weights != nullptr ? std::fma(row.weights[t], term, acc) : acc + term;
    }
    Type::store(row.output, c, acc);
  }
}

}  // namespace

void sum_columns_scalar(DType dtype, const SumRow& row, int begin) noexcept {
  switch (dtype) {
    case DType::bf16:
      return sum_columns<Bf16>(row, begin);
    case DType::f16:
      return sum_columns<F16>(row, begin);
    case DType::f32:
      return sum_columns<F32>(row, begin);
    default:
      MOEBUS_ASSERT(is_summable(dtype));
  }
}

}  // namespace moebus::backend
