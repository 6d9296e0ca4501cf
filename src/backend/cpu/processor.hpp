// Processor: which kernels this build has and this CPU runs. One body for each family of processors; CMake chooses.
// Room: backend/cpu · host.

#pragma once

#include <string_view>
#include <vector>

#include "backend/cpu/kernels.hpp"
#include "backend/cpu/simd_level.hpp"

namespace moebus::backend {

struct NamedKernels {
  std::string_view name;
  Kernels kernels;
};

/// Returns what a backend of that level uses; has_simd_level(level) holds.
[[nodiscard]] Kernels kernels_of(SimdLevel level) noexcept;

/// Returns every set of vector kernels that this CPU runs, also those that a better one of the same level replaces:
/// all of them must equal the scalar code.
[[nodiscard]] std::vector<NamedKernels> runnable_kernels();

}  // namespace moebus::backend
