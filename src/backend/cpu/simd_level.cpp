#include "backend/cpu/simd_level.hpp"

#include <array>
#include <string>

#include "base/env.hpp"
#include "moebus/error.hpp"

namespace moebus::backend {

namespace {

constexpr std::array kLevels{SimdLevel::scalar, SimdLevel::avx2, SimdLevel::avx512};

SimdLevel highest_level() noexcept {
  if (has_simd_level(SimdLevel::avx512)) return SimdLevel::avx512;
  return has_simd_level(SimdLevel::avx2) ? SimdLevel::avx2 : SimdLevel::scalar;
}

}  // namespace

std::string_view to_string(SimdLevel level) noexcept {
  switch (level) {
    case SimdLevel::scalar:
      return "scalar";
    case SimdLevel::avx2:
      return "avx2";
    case SimdLevel::avx512:
      return "avx512";
  }
  return "unknown";
}

SimdLevel best_simd_level() {
  const auto wanted = base::env("MOEBUS_SIMD");
  if (!wanted) return highest_level();
  for (const SimdLevel level : kLevels) {
    if (*wanted != to_string(level)) continue;
    if (has_simd_level(level)) return level;
    throw Error(ErrorCode::unsupported,
                "MOEBUS_SIMD=" + *wanted + ": this CPU lacks it; the highest it has is " +
                    std::string(to_string(highest_level())) + ". Unset the variable, or name that one.");
  }
  throw Error(ErrorCode::invalid_argument,
              "MOEBUS_SIMD=" + *wanted + " names no level; allowed are scalar, avx2 and avx512. Correct or unset it.");
}

}  // namespace moebus::backend
