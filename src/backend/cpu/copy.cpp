#include "backend/cpu/copy.hpp"

#include <emmintrin.h>

#include <cstring>

namespace moebus::backend {

namespace {

/// Bytes from `address` to the next line.
std::size_t bytes_to_line(const std::byte* address) noexcept {
  return (kLineBytes - reinterpret_cast<std::uintptr_t>(address) % kLineBytes) % kLineBytes;
}

}  // namespace

void copy_cached(std::byte* dst, const std::byte* src, std::size_t size_bytes) noexcept {
  if (size_bytes > 0) std::memcpy(dst, src, size_bytes);
}

void copy_streamed(std::byte* dst, const std::byte* src, std::size_t size_bytes) noexcept {
  if (!kCanStream || size_bytes < kStreamMinPieceBytes) return copy_cached(dst, src, size_bytes);
  const std::size_t head = bytes_to_line(dst);
  copy_cached(dst, src, head);
  const std::size_t end = head + (size_bytes - head) / kLineBytes * kLineBytes;
  for (std::size_t i = head; i < end; i += kLineBytes) {
    const auto* from = reinterpret_cast<const __m128i*>(src + i);
    auto* to = reinterpret_cast<__m128i*>(dst + i);
    const __m128i a = _mm_loadu_si128(from);
    const __m128i b = _mm_loadu_si128(from + 1);
    const __m128i c = _mm_loadu_si128(from + 2);
    const __m128i d = _mm_loadu_si128(from + 3);
    _mm_stream_si128(to, a);
    _mm_stream_si128(to + 1, b);
    _mm_stream_si128(to + 2, c);
    _mm_stream_si128(to + 3, d);
  }
  copy_cached(dst + end, src + end, size_bytes - end);
}

void zero_cached(std::byte* dst, std::size_t size_bytes) noexcept {
  if (size_bytes > 0) std::memset(dst, 0, size_bytes);
}

void zero_streamed(std::byte* dst, std::size_t size_bytes) noexcept {
  if (!kCanStream || size_bytes < kStreamMinPieceBytes) return zero_cached(dst, size_bytes);
  const std::size_t head = bytes_to_line(dst);
  zero_cached(dst, head);
  const std::size_t end = head + (size_bytes - head) / kLineBytes * kLineBytes;
  for (std::size_t i = head; i < end; i += sizeof(__m128i)) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(dst + i), _mm_setzero_si128());
  }
  zero_cached(dst + end, size_bytes - end);
}

void fence_streams() noexcept { _mm_sfence(); }

}  // namespace moebus::backend
