// Compiled for AVX-512 with VBMI: one permutation takes a byte from each of 32 elements (about 15 % faster than
// without).
#include "backend/cpu/cast_avx512_steps.hpp"

namespace moebus::backend {

namespace {

// Low bytes of even (0..) and odd (64..) elements, interleaved; the same for both halves of a register.
alignas(64) constexpr unsigned char kLowBytes[64] = {
    0,  64,  4,  68,  8,  72,  12, 76,  16, 80,  20, 84,  24, 88,  28, 92,  32, 96,  36, 100, 40, 104,
    44, 108, 48, 112, 52, 116, 56, 120, 60, 124, 0,  64,  4,  68,  8,  72,  12, 76,  16, 80,  20, 84,
    24, 88,  28, 92,  32, 96,  36, 100, 40, 104, 44, 108, 48, 112, 52, 116, 56, 120, 60, 124};

// High bytes of 64 words.
alignas(64) constexpr unsigned char kHighBytes[64] = {
    1,  3,  5,  7,  9,  11, 13,  15,  17,  19,  21,  23,  25,  27,  29,  31,  33,  35,  37,  39, 41, 43,
    45, 47, 49, 51, 53, 55, 57,  59,  61,  63,  65,  67,  69,  71,  73,  75,  77,  79,  81,  83, 85, 87,
    89, 91, 93, 95, 97, 99, 101, 103, 105, 107, 109, 111, 113, 115, 117, 119, 121, 123, 125, 127};

}  // namespace

MOEBUS_KERNEL void cast_block(const std::byte* row, int block, __m512 multiplier, std::byte* codes) noexcept {
  constexpr __mmask64 kLowHalf = 0xFFFFFFFFU;
  constexpr int kOrOfAnd = 0xF8;  // a | (b & c)
  const __m512i low_bytes = _mm512_load_si512(kLowBytes);
  const __m512i high_bytes = _mm512_load_si512(kHighBytes);
  const __m512i sign = _mm512_set1_epi8(static_cast<char>(0x80));
  for (int v = 4 * block; v < 4 * block + 4; v += 2) {
    const __m512i words0 = load(row, v);
    const __m512i words1 = load(row, v + 1);
    const HalfCodes half0 = encode_words(words0, multiplier);
    const HalfCodes half1 = encode_words(words1, multiplier);
    // Where a permutation is masked out, its indices remain: they serve the second one, and its own mask keeps the
    // first.
    __m512i both = _mm512_mask2_permutex2var_epi8(half0.even, low_bytes, kLowHalf, half0.odd);
    both = _mm512_mask2_permutex2var_epi8(half1.even, both, ~kLowHalf, half1.odd);
    const __m512i signs = _mm512_permutex2var_epi8(words0, high_bytes, words1);
    _mm512_storeu_si512(codes + 32 * v, _mm512_ternarylogic_epi32(both, signs, sign, kOrOfAnd));
  }
}

std::uint32_t cast_groups_f32_avx512_vbmi(const std::byte* row,
                                          int num_groups,
                                          std::byte* codes,
                                          std::byte* scales) noexcept {
  return cast_groups_f32(row, num_groups, codes, scales);
}

std::uint32_t cast_groups_ue8m0_avx512_vbmi(const std::byte* row,
                                            int num_groups,
                                            std::byte* codes,
                                            std::byte* scales) noexcept {
  return cast_groups_ue8m0(row, num_groups, codes, scales);
}

}  // namespace moebus::backend
