// CombineTail: the bytes behind a combined row (lane, kept-choices mask), read and written here only.
// Room: model · host.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "base/math.hpp"
#include "model/wire.hpp"

namespace moebus::model {

/// Returns where row i of a numbering goes: at[i], or i where no places are given.
[[nodiscard]] inline std::int64_t place_of(std::span<const std::int32_t> at, std::size_t i) noexcept {
  return at.empty() ? static_cast<std::int64_t>(i) : at[i];
}

/// Returns row `index` of rows of the format that begin at `data`.
[[nodiscard]] inline std::byte* row_at(const CombineRowFormat& format, std::byte* data, std::int64_t index) noexcept {
  return data + index * static_cast<std::int64_t>(format.stride_bytes);
}

/// Writes the lane (null: none comes with this call) and the mask, where the format has them.
inline void write_tail(const CombineRowFormat& format, std::byte* row, const float* lane, std::uint64_t mask) noexcept {
  if (lane != nullptr) std::memcpy(row + format.lane_offset_bytes, lane, format.lane_bytes);
  if (format.mask_bytes > 0) std::memcpy(row + format.mask_offset_bytes, &mask, sizeof(mask));
}

/// Returns the choices that a row brings, as bits; all of them where the format has no mask. 0: there is no row.
[[nodiscard]] inline std::uint64_t read_mask(const CombineRowFormat& format, const std::byte* row) noexcept {
  std::uint64_t mask = ~std::uint64_t{0};
  if (format.mask_bytes > 0) std::memcpy(&mask, row + format.mask_offset_bytes, sizeof(mask));
  return mask;
}

[[nodiscard]] inline float read_lane(const CombineRowFormat& format,
                                     const std::byte* row,
                                     std::size_t choice) noexcept {
  float value;
  std::memcpy(&value, row + format.lane_offset_bytes + choice * sizeof(float), sizeof(value));
  return value;
}

}  // namespace moebus::model
