#include <cstring>

#include "backend/cpu/cast.hpp"
#include "backend/cpu/kernels.hpp"
#include "model/codec.hpp"

namespace moebus::backend {

namespace {

std::uint16_t load_bf16(const std::byte* row, int column) noexcept {
  std::uint16_t bits = 0;
  std::memcpy(&bits, row + std::ptrdiff_t{column} * 2, 2);
  return bits;
}

float amax_of(const std::byte* row, int columns) noexcept {
  float amax = model::kAmaxFloor;
  for (int c = 0; c < columns; ++c) amax = model::amax_of(amax, load_bf16(row, c));
  return amax;
}

void quantise(const model::Fp8Block& block, const std::byte* row, int columns, std::byte* codes) noexcept {
  for (int c = 0; c < columns; ++c) codes[c] = std::byte{model::fp8_quantise(block, load_bf16(row, c))};
}

}  // namespace

void cast_block_f32(const std::byte* row, int columns, std::byte* codes, std::byte* scale) noexcept {
  const model::Fp8Block block = model::fp8_block_f32(amax_of(row, columns));
  quantise(block, row, columns, codes);
  std::memcpy(scale, &block.scale, sizeof block.scale);
}

void cast_block_ue8m0(const std::byte* row, int columns, std::byte* codes, std::byte* exponent) noexcept {
  const model::Fp8Block block = model::fp8_block_ue8m0(amax_of(row, columns));
  quantise(block, row, columns, codes);
  *exponent = std::byte{block.exponent};
}

}  // namespace moebus::backend
