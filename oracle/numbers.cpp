#include "oracle/numbers.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace moebus::oracle {

namespace {

constexpr int kNumE4m3Magnitudes = 127;  // codes 0x00..0x7E; 0x7F is NaN
constexpr float kMaxE4m3 = 448.0F;
constexpr float kMinAmax = 1e-4F;
constexpr int kUe8m0Bias = 127;
constexpr int kLastSafeUe8m0 = kUe8m0Bias + 119;  // 448 * 2^119 is finite; one step further 256 * 2^120 = 2^128 is not
constexpr float kMaxE4m3AtLastScale = 240.0F;     // the next e4m3 value is 256

float ldexp_of(float mantissa, int exponent) noexcept { return std::ldexp(mantissa, exponent); }

// e4m3: sign, 4 bits of exponent with bias 7, 3 of mantissa; exponent 0 is subnormal; no infinity.
float e4m3_magnitude(int code) noexcept {
  const int exponent = code >> 3;
  const auto mantissa = static_cast<float>(code & 7);
  return exponent == 0 ? ldexp_of(mantissa, -9) : ldexp_of(8.0F + mantissa, exponent - 10);
}

const std::array<float, kNumE4m3Magnitudes>& e4m3_magnitudes() noexcept {
  static const auto kTable = [] {
    std::array<float, kNumE4m3Magnitudes> table{};
    for (int code = 0; code < kNumE4m3Magnitudes; ++code) table[static_cast<std::size_t>(code)] = e4m3_magnitude(code);
    return table;
  }();
  return kTable;
}

// f16: sign, 5 bits of exponent with bias 15, 10 of mantissa.
float f16_value(std::uint32_t bits) noexcept {
  const int exponent = static_cast<int>((bits >> 10) & 31U);
  const auto mantissa = static_cast<float>(bits & 1023U);
  const float sign = (bits & 0x8000U) != 0 ? -1.0F : 1.0F;
  if (exponent == 31) {
    return mantissa == 0 ? sign * std::numeric_limits<float>::infinity() : std::bit_cast<float>(kCanonicalNanF32);
  }
  return sign * (exponent == 0 ? ldexp_of(mantissa, -24) : ldexp_of(1024.0F + mantissa, exponent - 25));
}

const std::vector<float>& f16_values() {
  static const auto kTable = [] {
    std::vector<float> table(1U << 16U);
    for (std::uint32_t bits = 0; bits < table.size(); ++bits) table[bits] = f16_value(bits);
    return table;
  }();
  return kTable;
}

// Drops the low bits of a magnitude and rounds to nearest, ties to even. A carry runs into the exponent, as it should.
std::uint32_t drop_low_bits(std::uint32_t magnitude, int num_bits) noexcept {
  const std::uint32_t kept = magnitude >> num_bits;
  const std::uint32_t rest = magnitude & ((1U << num_bits) - 1U);
  const std::uint32_t half = 1U << (num_bits - 1);
  const bool up = rest > half || (rest == half && (kept & 1U) == 1U);
  return kept + (up ? 1U : 0U);
}

template <class Word, class Convert>
void widen_each(const std::byte* source, std::span<float> values, Convert convert) noexcept {
  for (std::size_t i = 0; i < values.size(); ++i) {
    Word word;
    std::memcpy(&word, source + i * sizeof(Word), sizeof(Word));
    values[i] = convert(word);
  }
}

template <class Word, class Convert>
void narrow_each(std::span<const float> values, std::byte* sink, Convert convert) noexcept {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const Word word = convert(values[i]);
    std::memcpy(sink + i * sizeof(Word), &word, sizeof(Word));
  }
}

float amax_of(std::span<const float> block) noexcept {
  float amax = kMinAmax;
  for (const float x : block) {
    if (std::fabs(x) > amax) amax = std::fabs(x);  // false for NaN
  }
  return amax;
}

// The biased exponent of the smallest power of two that is not below `value`; value > 0, finite, normal.
int round_up_to_power_of_two(float value) noexcept {
  int exponent = 0;
  const float fraction = std::frexp(value, &exponent);  // value = fraction * 2^exponent, fraction in [0.5, 1)
  return (fraction == 0.5F ? exponent - 1 : exponent) + kUe8m0Bias;
}

void cast_f32_scaled(std::span<const float> block, float amax, Fp8Block& result) noexcept {
  result.scale_f32 = amax / kMaxE4m3;
  const float inverse = kMaxE4m3 / amax;
  std::transform(block.begin(), block.end(), result.values.begin(), [&](float x) { return to_e4m3(x * inverse); });
}

void cast_ue8m0_scaled(std::span<const float> block, float amax, Fp8Block& result) noexcept {
  const int biased = round_up_to_power_of_two(amax / kMaxE4m3);
  const float scale = ldexp_of(1.0F, biased - kUe8m0Bias);
  const float limit = biased > kLastSafeUe8m0 ? kMaxE4m3AtLastScale : kMaxE4m3;
  result.scale_ue8m0 = static_cast<std::uint8_t>(biased);
  std::transform(block.begin(), block.end(), result.values.begin(), [&](float x) {
    const float q = x / scale;
    return to_e4m3(std::isnan(q) ? q : std::clamp(q, -limit, limit));
  });
}

}  // namespace

float from_bf16(std::uint16_t bits) noexcept { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16U); }

float from_f16(std::uint16_t bits) noexcept { return f16_value(bits); }

float from_e4m3(std::uint8_t bits) noexcept {
  const int code = bits & 0x7F;
  if (code == kNanE4m3) return std::bit_cast<float>(kCanonicalNanF32);
  return (bits & 0x80) != 0 ? -e4m3_magnitude(code) : e4m3_magnitude(code);
}

float from_ue8m0(std::uint8_t bits) noexcept {
  return bits == kNanUe8m0 ? std::bit_cast<float>(kCanonicalNanF32) : ldexp_of(1.0F, bits - kUe8m0Bias);
}

std::uint16_t to_bf16(float value) noexcept {
  if (std::isnan(value)) return kCanonicalNanBf16;
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>(((bits >> 16U) & 0x8000U) | drop_low_bits(bits & 0x7FFFFFFFU, 16));
}

std::uint16_t to_f16(float value) noexcept {
  if (std::isnan(value)) return kCanonicalNanF16;
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16U) & 0x8000U;
  const float magnitude = std::fabs(value);
  if (magnitude >= 65520.0F) return static_cast<std::uint16_t>(sign | 0x7C00U);  // half a step above 65504, the largest
  std::uint32_t rounded = 0;
  if (magnitude < 0x1p-14F) {
    rounded = static_cast<std::uint32_t>(std::nearbyint(magnitude * 0x1p24F));  // subnormal: steps of 2^-24
  } else {
    rounded = drop_low_bits(bits & 0x7FFFFFFFU, 13) - (112U << 10U);  // biases differ by 127 - 15
  }
  return static_cast<std::uint16_t>(sign | rounded);
}

std::uint8_t to_e4m3(float value) noexcept {
  if (std::isnan(value)) return kNanE4m3;
  const auto& table = e4m3_magnitudes();
  const float magnitude = std::min(std::fabs(value), kMaxE4m3);
  const auto above = std::lower_bound(table.begin(), table.end(), magnitude);
  auto code = static_cast<std::size_t>(above - table.begin());
  if (code > 0) {
    const float to_upper = table[code] - magnitude;  // exact near the midpoint, and rounding keeps the order elsewhere
    const float to_lower = magnitude - table[code - 1];
    if (to_lower < to_upper || (to_lower == to_upper && code % 2 == 1)) --code;
  }
  return static_cast<std::uint8_t>(code | (std::signbit(value) ? 0x80U : 0U));
}

void widen(DType dtype, const std::byte* source, std::span<float> values) noexcept {
  if (dtype == DType::bf16) {
    widen_each<std::uint16_t>(source, values, from_bf16);
  } else if (dtype == DType::f16) {
    const auto& table = f16_values();
    widen_each<std::uint16_t>(source, values, [&](std::uint16_t bits) { return table[bits]; });
  } else {
    widen_each<float>(source, values, [](float x) { return x; });
  }
}

void narrow(DType dtype, std::span<const float> values, std::byte* sink) noexcept {
  if (dtype == DType::bf16) {
    narrow_each<std::uint16_t>(values, sink, to_bf16);
  } else if (dtype == DType::f16) {
    narrow_each<std::uint16_t>(values, sink, to_f16);
  } else {
    narrow_each<std::uint32_t>(
        values, sink, [](float x) { return std::isnan(x) ? kCanonicalNanF32 : std::bit_cast<std::uint32_t>(x); });
  }
}

Fp8Block cast_fp8_block(std::span<const float> block, ScaleFormat format) {
  Fp8Block result;
  result.values.resize(block.size());
  const float amax = amax_of(block);
  if (std::isinf(amax)) {
    std::fill(result.values.begin(), result.values.end(), kNanE4m3);
    result.scale_f32 = amax;
    result.scale_ue8m0 = kNanUe8m0;
  } else if (format == ScaleFormat::ue8m0) {
    cast_ue8m0_scaled(block, amax, result);
  } else {
    cast_f32_scaled(block, amax, result);
  }
  return result;
}

int num_scale_blocks(int hidden) noexcept { return (hidden + kScaleBlock - 1) / kScaleBlock; }

std::size_t scale_row_bytes(int hidden, ScaleFormat format) noexcept {
  const auto blocks = static_cast<std::size_t>(num_scale_blocks(hidden));
  if (format == ScaleFormat::f32) return blocks * sizeof(float);
  if (format == ScaleFormat::ue8m0) return (blocks + 3) / 4 * 4;
  return 0;
}

void cast_fp8_row(const std::byte* bf16_row, int hidden, ScaleFormat format, std::byte* values, std::byte* scales) {
  std::memset(scales, 0, scale_row_bytes(hidden, format));
  std::array<float, kScaleBlock> columns{};
  for (int block = 0; block < num_scale_blocks(hidden); ++block) {
    const auto first = static_cast<std::size_t>(block) * kScaleBlock;
    const auto width = std::min<std::size_t>(kScaleBlock, static_cast<std::size_t>(hidden) - first);
    const std::span<float> in(columns.data(), width);
    widen(DType::bf16, bf16_row + 2 * first, in);
    const Fp8Block cast = cast_fp8_block(in, format);
    std::memcpy(values + first, cast.values.data(), width);
    if (format == ScaleFormat::ue8m0) {
      scales[block] = static_cast<std::byte>(cast.scale_ue8m0);
    } else {
      std::memcpy(scales + static_cast<std::size_t>(block) * sizeof(float), &cast.scale_f32, sizeof(float));
    }
  }
}

}  // namespace moebus::oracle
