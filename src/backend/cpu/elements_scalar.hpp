// Elements: how one bf16, f16 or f32 column becomes a float and comes back, rounded once; a NaN comes back canonical.
// Room: backend/cpu · host.

#pragma once

#include <cstdint>
#include <cstring>

#include "base/math.hpp"
#include "model/codec.hpp"

namespace moebus::backend::scalar {

template <class Bits>
[[nodiscard]] Bits load_bits(const std::byte* row, int column) noexcept {
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

}  // namespace moebus::backend::scalar
