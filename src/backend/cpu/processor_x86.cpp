// x86-64: AVX2 and AVX-512, if the CPU has them. Compiled for a plain x86-64.
#include "backend/cpu/processor.hpp"

namespace moebus::backend {

namespace {

constexpr Kernels kAvx2{cast_groups_f32_avx2,
                        cast_groups_ue8m0_avx2,
                        sum_bf16_avx2,
                        sum_f16_avx2,
                        sum_f32_avx2,
                        scale_bf16_avx2,
                        scale_f16_avx2,
                        scale_f32_avx2,
                        dot_bf16_avx2,
                        dot_f16_avx2,
                        dot_f32_avx2,
                        copy_lines_avx2};
constexpr Kernels kAvx512{cast_groups_f32_avx512,
                          cast_groups_ue8m0_avx512,
                          sum_bf16_avx512,
                          sum_f16_avx512,
                          sum_f32_avx512,
                          scale_bf16_avx512,
                          scale_f16_avx512,
                          scale_f32_avx512,
                          dot_bf16_avx512,
                          dot_f16_avx512,
                          dot_f32_avx512,
                          copy_lines_avx512};
constexpr Kernels kAvx512Vbmi = [] {
  Kernels kernels = kAvx512;
  kernels.cast_f32 = cast_groups_f32_avx512_vbmi;
  kernels.cast_ue8m0 = cast_groups_ue8m0_avx512_vbmi;
  return kernels;
}();

bool has_vbmi() noexcept { return has_simd_level(SimdLevel::avx512) && __builtin_cpu_supports("avx512vbmi"); }

}  // namespace

bool has_simd_level(SimdLevel level) noexcept {
  const bool has_avx2 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  switch (level) {
    case SimdLevel::scalar:
      return true;
    case SimdLevel::avx2:
      return has_avx2;
    case SimdLevel::avx512:
      return has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  }
  return false;
}

Kernels kernels_of(SimdLevel level) noexcept {
  switch (level) {
    case SimdLevel::scalar:
      return {};  // no kernel: everything is left over for the scalar code
    case SimdLevel::avx2:
      return kAvx2;
    case SimdLevel::avx512:
      return has_vbmi() ? kAvx512Vbmi : kAvx512;
  }
  return {};
}

std::vector<NamedKernels> runnable_kernels() {
  std::vector<NamedKernels> all;
  if (has_simd_level(SimdLevel::avx2)) all.push_back({"avx2", kAvx2});
  if (has_simd_level(SimdLevel::avx512)) all.push_back({"avx512", kAvx512});
  if (has_vbmi()) all.push_back({"avx512 with VBMI", kAvx512Vbmi});
  return all;
}

}  // namespace moebus::backend
