// Math: the integer arithmetic that every room needs.
// Room: base · host+device.

#pragma once

#include <cstddef>
#include <cstdint>

namespace moebus::base {

/// Rounds `value` up to a multiple of `multiple` (> 0).
template <class T>
[[nodiscard]] constexpr T align_up(T value, T multiple) noexcept {
  return (value + multiple - 1) / multiple * multiple;
}

/// Divides and rounds up; `divisor` > 0.
template <class T>
[[nodiscard]] constexpr T ceil_div(T value, T divisor) noexcept {
  return (value + divisor - 1) / divisor;
}

/// Narrows or widens between integer types where the caller knows that the value fits.
template <class To, class From>
[[nodiscard]] constexpr To to(From value) noexcept {
  return static_cast<To>(value);
}

/// Turns a signed count into an index type for containers.
[[nodiscard]] constexpr std::size_t idx(std::int64_t i) noexcept { return static_cast<std::size_t>(i); }

}  // namespace moebus::base
