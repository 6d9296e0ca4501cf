// Compiled for AVX-512 without VBMI: bytes are gathered by merging halves and narrowing.
#include "backend/cpu/cast_avx512_steps.hpp"

namespace moebus::backend {

MOEBUS_KERNEL void cast_block(const std::byte* row, int block, __m512 multiplier, std::byte* codes) noexcept {
  const __m256i sign = _mm256_set1_epi8(static_cast<char>(0x80));
  for (int v = 4 * block; v < 4 * block + 4; ++v) {
    const __m512i words = load(row, v);
    const HalfCodes half = encode_words(words, multiplier);
    const __m512i both = _mm512_mask_blend_epi16(0xAAAAAAAAU, half.even, _mm512_slli_epi32(half.odd, 16));
    const __m256i magnitude = _mm512_cvtepi16_epi8(both);
    const __m256i signed_codes = _mm256_mask_add_epi8(magnitude, _mm512_movepi16_mask(words), magnitude, sign);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes + 32 * v), signed_codes);
  }
}

std::uint32_t cast_groups_f32_avx512(const std::byte* row,
                                     int num_groups,
                                     std::byte* codes,
                                     std::byte* scales) noexcept {
  return cast_groups_f32(row, num_groups, codes, scales);
}

std::uint32_t cast_groups_ue8m0_avx512(const std::byte* row,
                                       int num_groups,
                                       std::byte* codes,
                                       std::byte* scales) noexcept {
  return cast_groups_ue8m0(row, num_groups, codes, scales);
}

}  // namespace moebus::backend
