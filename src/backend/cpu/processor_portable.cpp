// Any other processor: the scalar code alone, which the compiler may vectorise as far as the contract's rounding lets
// it.
#include "backend/cpu/processor.hpp"

namespace moebus::backend {

bool has_simd_level(SimdLevel level) noexcept { return level == SimdLevel::scalar; }

Kernels kernels_of(SimdLevel) noexcept { return {}; }

std::vector<NamedKernels> runnable_kernels() { return {}; }

}  // namespace moebus::backend
