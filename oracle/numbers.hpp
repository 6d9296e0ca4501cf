// Numbers: the float formats and the FP8 cast, written from their definitions and from nothing else of this project.
// Room: oracle · host.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "moebus/types.hpp"

namespace moebus::oracle {

inline constexpr std::uint32_t kCanonicalNanF32 = 0x7FC00000U;
inline constexpr std::uint16_t kCanonicalNanBf16 = 0x7FFFU;
inline constexpr std::uint16_t kCanonicalNanF16 = 0x7FFFU;
inline constexpr std::uint8_t kNanE4m3 = 0x7FU;
inline constexpr std::uint8_t kNanUe8m0 = 0xFFU;

/// Each returns the value of a bit pattern, exactly.
[[nodiscard]] float from_bf16(std::uint16_t bits) noexcept;
[[nodiscard]] float from_f16(std::uint16_t bits) noexcept;
[[nodiscard]] float from_e4m3(std::uint8_t bits) noexcept;
[[nodiscard]] float from_ue8m0(std::uint8_t bits) noexcept;

/// Each rounds to nearest, ties to even, keeps subnormals and the sign of zero, and gives the canonical NaN for any
/// NaN. bf16 and f16 overflow to infinity; e4m3 has none and saturates at +-448.
[[nodiscard]] std::uint16_t to_bf16(float value) noexcept;
[[nodiscard]] std::uint16_t to_f16(float value) noexcept;
[[nodiscard]] std::uint8_t to_e4m3(float value) noexcept;

/// Reads `values.size()` elements of bf16, f16 or f32 from memory of any alignment.
void widen(DType dtype, const std::byte* source, std::span<float> values) noexcept;

/// Rounds floats to bf16, f16 or f32 (NaN becomes canonical in f32 too) and writes them to memory of any alignment.
void narrow(DType dtype, std::span<const float> values, std::byte* sink) noexcept;

/// One block of columns after the FP8 cast.
struct Fp8Block {
  std::vector<std::uint8_t> values;  ///< e4m3
  float scale_f32 = 0;               ///< with ScaleFormat::f32
  std::uint8_t scale_ue8m0 = 0;      ///< with ScaleFormat::ue8m0: biased exponent of a power of two, 0xFF = NaN
};

/// Casts one block (128 columns, or the shorter last one) and returns bytes and scale.
///
/// Rules: amax over all that is not NaN, at least 1e-4. f32: scale = amax / 448, q = e4m3(x * (448 / amax)), each step
/// rounded. ue8m0: scale rounded up to a power of two, q = e4m3(x / scale), at scale 2^120 no further than +-240 (256
/// would not come back). A NaN stays alone. An infinity makes every value of its block NaN (0x7F); the scale is then
/// inf or 0xFF.
[[nodiscard]] Fp8Block cast_fp8_block(std::span<const float> block, ScaleFormat format);

/// Returns the scale blocks of a row: ceil(hidden / 128).
[[nodiscard]] int num_scale_blocks(int hidden) noexcept;

/// Returns the bytes of scales that travel with a row: 4 per f32 scale; ue8m0: 4 per started group of four; 0 without
/// scales.
[[nodiscard]] std::size_t scale_row_bytes(int hidden, ScaleFormat format) noexcept;

/// Casts a row of bf16 and writes `hidden` e4m3 bytes and the row's scales (ue8m0: four to a word, bytes past the last
/// block 0).
void cast_fp8_row(const std::byte* bf16_row, int hidden, ScaleFormat format, std::byte* values, std::byte* scales);

}  // namespace moebus::oracle
