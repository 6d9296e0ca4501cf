// SIMD level: which instruction set the CPU backend uses. All levels give the same bytes.
// Room: backend/cpu · host.

#pragma once

#include <cstdint>
#include <string_view>

namespace moebus::backend {

enum class SimdLevel : std::uint8_t { scalar, avx2, avx512 };

std::string_view to_string(SimdLevel level) noexcept;

/// True if this build has that level, and this CPU and its system run it. Its bodies are in processor_*.cpp.
[[nodiscard]] bool has_simd_level(SimdLevel level) noexcept;

/// Returns the level named by MOEBUS_SIMD (scalar, avx2 or avx512), else the highest that this CPU has.
///
/// Errors: Error{invalid_argument} if the variable names no level, Error{unsupported} if the CPU lacks the level that
/// it names.
[[nodiscard]] SimdLevel best_simd_level();

}  // namespace moebus::backend
