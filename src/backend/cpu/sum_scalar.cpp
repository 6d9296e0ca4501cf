#include <cmath>
#include <cstring>

#include "backend/cpu/sum.hpp"
#include "base/assert.hpp"
#include "model/codec.hpp"

namespace moebus::backend {

namespace {

template <class Bits>
Bits load_bits(const std::byte* row, int column) noexcept {
  Bits bits{};
  std::memcpy(&bits, row + base::idx(column) * sizeof(Bits), sizeof(Bits));
  return bits;
}

template <class Bits>
void store_bits(std::byte* row, int column, Bits bits) noexcept {
  std::memcpy(row + base::idx(column) * sizeof(Bits), &bits, sizeof(Bits));
}

struct Bf16 {
  static float load(const std::byte* row, int c) noexcept {
    return model::f32_from_bf16(load_bits<std::uint16_t>(row, c));
  }

  static void store(std::byte* row, int c, float value) noexcept { store_bits(row, c, model::bf16_from_f32(value)); }
};

struct F16 {
  static float load(const std::byte* row, int c) noexcept {
    return model::f32_from_f16(load_bits<std::uint16_t>(row, c));
  }

  static void store(std::byte* row, int c, float value) noexcept { store_bits(row, c, model::f16_from_f32(value)); }
};

struct F32 {
  static float load(const std::byte* row, int c) noexcept { return load_bits<float>(row, c); }

  static void store(std::byte* row, int c, float value) noexcept { store_bits(row, c, model::canonical_f32(value)); }
};

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
