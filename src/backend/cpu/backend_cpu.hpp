// CPU backend: the reference, always built. Small and obvious where speed does not matter, vectors where it does.
// Room: backend/cpu · host.

#pragma once

#include <memory>

#include "backend/backend.hpp"
#include "backend/cpu/simd_level.hpp"

namespace moebus::backend {

/// Returns a backend for rows in host memory.
///
/// Errors: Error{unsupported} if this CPU lacks `level`; see best_simd_level() for the default.
[[nodiscard]] std::unique_ptr<Backend> make_cpu_backend(SimdLevel level = best_simd_level());

}  // namespace moebus::backend
