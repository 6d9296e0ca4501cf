#include "workload/moe.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "moebus/error.hpp"

namespace moebus::workload {

namespace {

std::size_t idx(std::int64_t i) noexcept { return static_cast<std::size_t>(i); }

std::size_t combine_columns(const ExchangeConfig& config) noexcept {
  return idx(config.combine_hidden > 0 ? config.combine_hidden : config.hidden);
}

// A float of few bits: sign, exponent, mantissa, as IEEE has it.
float small_float(std::uint32_t bits, int exponent_bits, int mantissa_bits, bool has_infinity) noexcept {
  const std::uint32_t mantissa = bits & ((1U << mantissa_bits) - 1U);
  const std::uint32_t all_ones = (1U << exponent_bits) - 1U;
  const std::uint32_t exponent = bits >> mantissa_bits & all_ones;
  const int bias = static_cast<int>(all_ones / 2);
  const float sign = (bits >> (exponent_bits + mantissa_bits) & 1U) != 0 ? -1.0F : 1.0F;
  if (exponent == all_ones && has_infinity) {
    return mantissa == 0 ? sign * std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
  }
  if (exponent == all_ones && mantissa + 1U == 1U << mantissa_bits) return std::numeric_limits<float>::quiet_NaN();
  const std::uint32_t leading = exponent == 0 ? 0 : 1U << mantissa_bits;
  const int power = std::max(static_cast<int>(exponent), 1) - bias - mantissa_bits;
  return sign * std::ldexp(static_cast<float>(leading + mantissa), power);
}

const std::vector<float>& f16_values() {
  static const auto kValues = [] {
    std::vector<float> values(1U << 16U);
    for (std::uint32_t bits = 0; bits < values.size(); ++bits) values[bits] = small_float(bits, 5, 10, true);
    return values;
  }();
  return kValues;
}

const std::array<float, 256>& e4m3_values() noexcept {
  static const auto kValues = [] {
    std::array<float, 256> values{};
    for (std::uint32_t bits = 0; bits < values.size(); ++bits) values[bits] = small_float(bits, 4, 3, false);
    return values;
  }();
  return kValues;
}

template <class Element, class Convert>
void read_each(const std::byte* source, std::span<float> values, Convert convert) noexcept {
  for (std::size_t i = 0; i < values.size(); ++i) {
    Element element;
    std::memcpy(&element, source + i * sizeof(Element), sizeof(Element));
    values[i] = convert(element);
  }
}

void read_elements(DType dtype, const std::byte* source, std::span<float> values) {
  const auto as_number = [](auto x) { return static_cast<float>(x); };
  const auto& f16 = f16_values();
  const auto& e4m3 = e4m3_values();
  switch (dtype) {
    case DType::bf16:
      return read_each<std::uint16_t>(source, values, [](std::uint32_t x) { return std::bit_cast<float>(x << 16U); });
    case DType::f16:
      return read_each<std::uint16_t>(source, values, [&](std::uint16_t x) { return f16[x]; });
    case DType::e5m2:  // the upper half of an f16
      return read_each<std::uint8_t>(source, values, [&](std::uint8_t x) { return f16[idx(x) << 8U]; });
    case DType::e4m3:
      return read_each<std::uint8_t>(source, values, [&](std::uint8_t x) { return e4m3[x]; });
    case DType::f32:
      return read_each<float>(source, values, as_number);
    case DType::f64:
      return read_each<double>(source, values, as_number);
    case DType::u8:
      return read_each<std::uint8_t>(source, values, as_number);
    case DType::i8:
      return read_each<std::int8_t>(source, values, as_number);
    case DType::i16:
      return read_each<std::int16_t>(source, values, as_number);
    case DType::i32:
      return read_each<std::int32_t>(source, values, as_number);
    case DType::i64:
      return read_each<std::int64_t>(source, values, as_number);
  }
}

void multiply_scales(ScaleFormat format, std::span<const std::byte> scales, std::span<float> values) {
  for (std::size_t c = 0; c < values.size(); ++c) {
    const std::size_t block = c / kScaleBlock;
    float scale = 0;
    if (format == ScaleFormat::f32) {
      std::memcpy(&scale, scales.data() + block * sizeof(float), sizeof(float));
    } else {
      const int biased = std::to_integer<int>(scales[block]);
      scale = biased == 0xFF ? std::numeric_limits<float>::quiet_NaN() : std::ldexp(1.0F, biased - 127);
    }
    values[c] *= scale;
  }
}

std::uint16_t to_bf16(float value) noexcept {
  if (std::isnan(value)) return 0x7FFF;
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7FFFU + (bits >> 16U & 1U)) >> 16U);
}

std::uint16_t to_f16(float value) noexcept {
  if (std::isnan(value)) return 0x7FFF;
  const auto sign = static_cast<std::uint16_t>(std::signbit(value) ? 0x8000U : 0U);
  const float magnitude = std::fabs(value);
  if (magnitude == 0) return sign;
  if (magnitude >= 65520.0F) return sign | 0x7C00U;
  int exponent = 0;
  std::frexp(magnitude, &exponent);
  const int step = std::max(exponent - 11, -24);  // exponent of the last bit of an f16 near `magnitude`
  const auto steps = static_cast<int>(std::nearbyint(std::ldexp(magnitude, -step)));
  return static_cast<std::uint16_t>(sign | ((step + 24) * 1024 + steps));
}

void write_elements(DType dtype, std::span<const float> values, std::byte* sink) noexcept {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::f32) {
      const std::uint32_t bits = std::isnan(values[i]) ? 0x7FC00000U : std::bit_cast<std::uint32_t>(values[i]);
      std::memcpy(sink + i * sizeof(bits), &bits, sizeof(bits));
    } else {
      const std::uint16_t bits = dtype == DType::bf16 ? to_bf16(values[i]) : to_f16(values[i]);
      std::memcpy(sink + i * sizeof(bits), &bits, sizeof(bits));
    }
  }
}

// The row as numbers, repeated or cut to the combine columns.
std::vector<float> read_row(const ExchangeConfig& config,
                            std::span<const std::byte> token,
                            std::span<const std::byte> scales) {
  const DType dtype = config.cast == Cast::fp8 ? DType::e4m3 : config.dtype;
  if (token.size() != idx(config.hidden) * size_of(dtype)) {
    throw Error(ErrorCode::invalid_argument,
                "experts: a row has " + std::to_string(token.size()) + " bytes, the configuration says " +
                    std::to_string(idx(config.hidden) * size_of(dtype)));
  }
  std::vector<float> values(idx(config.hidden));
  read_elements(dtype, token.data(), values);
  if (dtype == DType::e4m3 && !scales.empty()) multiply_scales(config.scale_format, scales, values);
  const std::size_t columns = combine_columns(config);
  values.reserve(columns);
  while (values.size() < columns) values.push_back(values[values.size() - idx(config.hidden)]);
  values.resize(columns);
  return values;
}

// A view as rows: all dimensions but the last count rows.
const std::byte* row_of(const ConstTensorView& view, std::int64_t row) noexcept {
  const std::int64_t element = view.num_dims == 3
                                   ? row / view.shape[1] * view.stride[0] + row % view.shape[1] * view.stride[1]
                                   : row * view.stride[0];
  return view.data + element * static_cast<std::int64_t>(size_of(view.dtype));
}

std::span<const std::byte> token_row(const ConstTensorView& view, std::int64_t row) noexcept {
  return {row_of(view, row), idx(view.shape[idx(view.num_dims - 1)]) * size_of(view.dtype)};
}

// Scales in column order, whatever their memory order.
void gather_scales(const ConstTensorView& view, std::int64_t row, std::vector<std::byte>& scales) {
  if (!view.is_given()) return;
  const auto last = idx(view.num_dims - 1);
  const std::size_t element_bytes = size_of(view.dtype);
  scales.resize(idx(view.shape[last]) * element_bytes);
  for (std::int64_t c = 0; c < view.shape[last]; ++c) {
    const std::byte* element = row_of(view, row) + c * view.stride[last] * static_cast<std::int64_t>(element_bytes);
    std::memcpy(scales.data() + idx(c) * element_bytes, element, element_bytes);
  }
}

template <class T>
std::span<const T> row_as(const ConstTensorView& view, std::int64_t row) noexcept {
  if (!view.is_given()) return {};
  return {reinterpret_cast<const T*>(row_of(view, row)), idx(view.shape[1])};  // tables are aligned for their dtype
}

}  // namespace

void apply_expert(const ExchangeConfig& config,
                  int expert,
                  std::span<const std::byte> token,
                  std::span<const std::byte> scales,
                  std::span<std::byte> output) {
  std::vector<float> values = read_row(config, token, scales);
  const auto factor = static_cast<float>(expert + 1);
  for (float& value : values) value *= factor;
  write_elements(config.combine_dtype, values, output.data());
}

void apply_local_experts(const ExchangeConfig& config,
                         int first_expert,
                         std::span<const std::int32_t> local_idx,
                         std::span<const float> weights,
                         std::span<const std::byte> token,
                         std::span<const std::byte> scales,
                         std::span<std::byte> output) {
  std::vector<float> acc(combine_columns(config), 0.0F);
  std::vector<float> y(acc.size());
  for (std::size_t k = 0; k < local_idx.size(); ++k) {
    if (local_idx[k] < 0) continue;
    apply_expert(config, first_expert + local_idx[k], token, scales, output);
    read_elements(config.combine_dtype, output.data(), y);
    for (std::size_t c = 0; c < acc.size(); ++c) {
      acc[c] = weights.empty() ? acc[c] + y[c] : std::fma(weights[k], y[c], acc[c]);
    }
  }
  write_elements(config.combine_dtype, acc, output.data());
}

void run_experts(const ExchangeConfig& config,
                 int first_expert,
                 const ReceivedView& received,
                 std::span<std::byte> output) {
  const std::size_t row_bytes = combine_columns(config) * size_of(config.combine_dtype);
  std::vector<std::byte> scales;
  if (config.layout == Layout::rank_major) {
    const std::int64_t num_rows = received.tokens.num_dims > 0 ? received.tokens.shape[0] : 0;
    for (std::int64_t row = 0; row < num_rows; ++row) {
      gather_scales(received.scales, row, scales);
      apply_local_experts(config,
                          first_expert,
                          row_as<std::int32_t>(received.topk_idx, row),
                          row_as<float>(received.topk_weights, row),
                          token_row(received.tokens, row),
                          scales,
                          output.subspan(idx(row) * row_bytes, row_bytes));
    }
    return;
  }
  const auto* counts = reinterpret_cast<const std::int32_t*>(received.counts.data);
  const auto* offsets = reinterpret_cast<const std::int64_t*>(received.offsets.data);
  const bool is_padded = config.layout == Layout::expert_padded;
  for (std::int64_t expert = 0; received.counts.is_given() && expert < received.counts.shape[0]; ++expert) {
    const std::int64_t first = is_padded ? expert * received.tokens.shape[1] : offsets[expert];
    for (std::int64_t row = first; row < first + counts[expert]; ++row) {
      gather_scales(received.scales, row, scales);
      apply_expert(config,
                   first_expert + static_cast<int>(expert),
                   token_row(received.tokens, row),
                   scales,
                   output.subspan(idx(row) * row_bytes, row_bytes));
    }
  }
}

}  // namespace moebus::workload
