// Codec: bf16, f16 and e4m3 to and from float32, and the FP8 block quantisation, bit by bit. The scalar truth that
// every vector kernel must equal. Room: model · host+device arithmetic. Source: [ocp-fp8] e4m3 "fn" format; [ocp-mx]
// E8M0 scales; [ours] scale at the top of the range, design of inf and NaN.

#pragma once

#include <bit>
#include <cstdint>

#include "moebus/types.hpp"

namespace moebus::model {

/// What any NaN becomes when a result is rounded: one pattern per type, positive and quiet.
inline constexpr std::uint16_t kNanBf16 = 0x7FFF;
inline constexpr std::uint16_t kNanF16 = 0x7FFF;
inline constexpr std::uint32_t kNanF32 = 0x7FC00000;
inline constexpr std::uint8_t kNanE4m3 = 0x7F;
inline constexpr std::uint8_t kNanUe8m0 = 0xFF;

inline constexpr float kMaxE4m3 = 448.0F;
inline constexpr std::uint8_t kMaxCodeE4m3 = 0x7E;

/// Lower bound of a block's amax: keeps 448 / amax finite and a block of zeros at zero.
inline constexpr float kAmaxFloor = 1e-4F;

[[nodiscard]] constexpr std::uint32_t bits_of(float value) noexcept { return std::bit_cast<std::uint32_t>(value); }

[[nodiscard]] constexpr float float_of(std::uint32_t bits) noexcept { return std::bit_cast<float>(bits); }

[[nodiscard]] constexpr bool is_nan(float value) noexcept { return (bits_of(value) & 0x7FFFFFFFU) > 0x7F800000U; }

/// Divides `value` by 2^shift, rounding to nearest, ties to even. `value` < 2^31, `shift` >= 1.
[[nodiscard]] constexpr std::uint32_t shift_right_rounded(std::uint32_t value, int shift) noexcept {
  if (shift > 31) return 0;
  const std::uint32_t odd = (value >> shift) & 1U;
  return (value + ((1U << (shift - 1)) - 1U) + odd) >> shift;
}

/// Returns the same value; every NaN becomes kNanF32.
[[nodiscard]] constexpr float canonical_f32(float value) noexcept { return is_nan(value) ? float_of(kNanF32) : value; }

/// Widens exactly. NaN stays NaN.
[[nodiscard]] constexpr float f32_from_bf16(std::uint16_t bits) noexcept {
  return float_of(static_cast<std::uint32_t>(bits) << 16);
}

/// Rounds to nearest even; subnormals are kept, too large becomes inf, NaN becomes kNanBf16.
[[nodiscard]] constexpr std::uint16_t bf16_from_f32(float value) noexcept {
  if (is_nan(value)) return kNanBf16;
  const std::uint32_t bits = bits_of(value);
  return static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

/// Widens exactly. NaN becomes kNanF32.
[[nodiscard]] constexpr float f32_from_f16(std::uint16_t bits) noexcept {
  const std::uint32_t sign = (bits & 0x8000U) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1FU;
  const std::uint32_t mantissa = bits & 0x3FFU;
  if (exponent == 0x1F) return float_of(mantissa != 0 ? kNanF32 : sign | 0x7F800000U);
  if (exponent != 0) return float_of(sign | ((exponent + 112U) << 23) | (mantissa << 13));
  return float_of(sign | bits_of(static_cast<float>(mantissa) * 0x1p-24F));
}

/// Rounds to nearest even; subnormals are kept, too large becomes inf, NaN becomes kNanF16.
[[nodiscard]] constexpr std::uint16_t f16_from_f32(float value) noexcept {
  if (is_nan(value)) return kNanF16;
  const std::uint32_t sign = (bits_of(value) >> 16) & 0x8000U;
  const std::uint32_t magnitude = bits_of(value) & 0x7FFFFFFFU;
  const std::uint32_t exponent = magnitude >> 23;
  std::uint32_t code = 0;
  if (exponent >= 113) {  // normal in f16, or inf
    const std::uint32_t rounded = shift_right_rounded(magnitude, 13) - (112U << 10);
    code = rounded < 0x7C00U ? rounded : 0x7C00U;
  } else if (exponent > 0) {  // a float32 subnormal is far below half of f16's smallest
    code = shift_right_rounded((magnitude & 0x7FFFFFU) | 0x800000U, 126 - static_cast<int>(exponent));
  }
  return static_cast<std::uint16_t>(sign | code);
}

/// Widens exactly. Both NaN codes become kNanF32.
[[nodiscard]] constexpr float f32_from_e4m3(std::uint8_t code) noexcept {
  const std::uint32_t sign = (code & 0x80U) << 24;
  const std::uint32_t magnitude = code & 0x7FU;
  if (magnitude == kNanE4m3) return float_of(kNanF32);
  if (magnitude >= 8) return float_of(sign | ((magnitude + 960U) << 20));
  return float_of(sign | bits_of(static_cast<float>(magnitude) * 0x1p-9F));
}

/// Rounds to nearest even; finite values beyond the range become +-max_code, NaN and inf become kNanE4m3; -0 stays -0.
[[nodiscard]] constexpr std::uint8_t e4m3_from_f32(float value, std::uint8_t max_code = kMaxCodeE4m3) noexcept {
  const std::uint32_t sign = (bits_of(value) >> 24) & 0x80U;
  const std::uint32_t magnitude = bits_of(value) & 0x7FFFFFFFU;
  if (magnitude >= 0x7F800000U) return kNanE4m3;
  const std::uint32_t exponent = magnitude >> 23;
  std::uint32_t code = 0;
  if (exponent >= 121) {  // normal in e4m3
    code = shift_right_rounded(magnitude, 20) - 960U;
  } else if (exponent > 0) {  // a float32 subnormal is far below half of e4m3's smallest
    code = shift_right_rounded((magnitude & 0x7FFFFFU) | 0x800000U, 141 - static_cast<int>(exponent));
  }
  return static_cast<std::uint8_t>(sign | (code < max_code ? code : max_code));
}

/// Returns 2^(exponent - 127); 0xFF is NaN.
[[nodiscard]] constexpr float f32_from_ue8m0(std::uint8_t exponent) noexcept {
  if (exponent == kNanUe8m0) return float_of(kNanF32);
  return exponent == 0 ? 0x1p-127F : float_of(static_cast<std::uint32_t>(exponent) << 23);
}

/// Takes one bf16 value into a block's amax: |value|, NaN ignored. Start from kAmaxFloor.
[[nodiscard]] constexpr float amax_of(float amax, std::uint16_t bf16) noexcept {
  const float magnitude = f32_from_bf16(bf16 & 0x7FFFU);
  return magnitude > amax ? magnitude : amax;  // false for NaN
}

/// How one block is quantised: q = e4m3(fl(x * multiplier)), at most max_code.
struct Fp8Block {
  float scale = 0;            ///< what a consumer multiplies by; inf if the block holds an inf
  float multiplier = 0;       ///< applied to x
  std::uint8_t exponent = 0;  ///< UE8M0 byte of `scale`, where that format is used
  std::uint8_t max_code = kMaxCodeE4m3;
  bool is_nan = false;  ///< the block holds an inf: every q is kNanE4m3
};

/// Returns the block of `amax` (>= kAmaxFloor, or inf) with a float32 scale: fl(amax / 448), multiplier fl(448 / amax).
[[nodiscard]] constexpr Fp8Block fp8_block_f32(float amax) noexcept {
  if (bits_of(amax) >= 0x7F800000U) return {.scale = amax, .is_nan = true};
  return {.scale = amax / kMaxE4m3, .multiplier = kMaxE4m3 / amax};
}

/// Returns the block of `amax` with the scale rounded up to a power of two; the multiplier is its exact reciprocal.
/// At scale 2^120 the largest code is 240: 256 * 2^120 would be inf.
[[nodiscard]] constexpr Fp8Block fp8_block_ue8m0(float amax) noexcept {
  if (bits_of(amax) >= 0x7F800000U) return {.scale = amax, .exponent = kNanUe8m0, .is_nan = true};
  const std::uint32_t exponent = (bits_of(amax / kMaxE4m3) + 0x7FFFFFU) >> 23;
  constexpr std::uint32_t kTopExponent = 127 + 120;
  constexpr std::uint8_t kCode240 = 0x77;
  return {.scale = float_of(exponent << 23),
          .multiplier = float_of((254U - exponent) << 23),
          .exponent = static_cast<std::uint8_t>(exponent),
          .max_code = exponent == kTopExponent ? kCode240 : kMaxCodeE4m3};
}

[[nodiscard]] constexpr std::uint8_t fp8_quantise(const Fp8Block& block, std::uint16_t bf16) noexcept {
  return block.is_nan ? kNanE4m3 : e4m3_from_f32(f32_from_bf16(bf16) * block.multiplier, block.max_code);
}

}  // namespace moebus::model
