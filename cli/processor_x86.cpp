#include <emmintrin.h>

#include <cstring>

#include "cli/processor.hpp"

namespace moebus::cli {

bool can_stream() noexcept { return true; }

void copy_row_streaming(std::byte* to, const std::byte* from, std::size_t row_bytes) noexcept {
  std::size_t i = 0;
  for (; i + 16 <= row_bytes; i += 16) {
    const __m128i word = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));  // the intrinsic's parameter type
    _mm_stream_si128(reinterpret_cast<__m128i*>(to + i), word);
  }
  if (i < row_bytes) std::memcpy(to + i, from + i, row_bytes - i);
}

void fence_streams() noexcept { _mm_sfence(); }

void pause() noexcept { _mm_pause(); }

}  // namespace moebus::cli
