// Version: of the headers (constants) and of the library that was linked (function).
// Room: public vocabulary · host.

#pragma once

#include <string_view>

namespace moebus {

inline constexpr int kVersionMajor = 0;
inline constexpr int kVersionMinor = 1;
inline constexpr int kVersionPatch = 0;

/// Returns the linked library's version, e.g. "0.1.0". Ranks of one group must agree on it.
std::string_view version() noexcept;

}  // namespace moebus
