// Compiled for AVX2: see kernels.hpp for what must not be used here.
#include <immintrin.h>

#include "backend/cpu/kernels.hpp"

namespace moebus::backend {

namespace {

inline void copy_line(std::byte* dst, const std::byte* src) noexcept {
  const auto* from = reinterpret_cast<const __m256i*>(src);
  auto* to = reinterpret_cast<__m256i*>(dst);
  const __m256i low = _mm256_loadu_si256(from);
  const __m256i high = _mm256_loadu_si256(from + 1);
  _mm256_stream_si256(to, low);
  _mm256_stream_si256(to + 1, high);
}

// Counts in integers: what is only a hint may lie outside of any array.
inline void read_ahead(const std::byte* start, std::size_t offset_bytes) noexcept {
  const std::uintptr_t address = reinterpret_cast<std::uintptr_t>(start) + offset_bytes;
  _mm_prefetch(reinterpret_cast<const char*>(address), _MM_HINT_T0);
}

}  // namespace

void copy_lines_avx2(std::byte* dst, const std::byte* src, std::size_t size_bytes, const std::byte* next) noexcept {
  const std::size_t last = size_bytes > kReadAheadBytes ? size_bytes - kReadAheadBytes : 0;
  std::size_t i = 0;
  for (; i < last; i += kLineBytes) {
    read_ahead(src, i + kReadAheadBytes);
    copy_line(dst + i, src + i);
  }
  for (; i < size_bytes; i += kLineBytes) {
    read_ahead(next, i - last);
    copy_line(dst + i, src + i);
  }
}

}  // namespace moebus::backend
