#include "backend/cpu/copy.hpp"

#include <cstring>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace moebus::backend {

void read_soon(const std::byte* address, std::size_t size_bytes) noexcept {
  // Counts in integers: what is only a hint may lie outside of any array.
  const std::uintptr_t first = reinterpret_cast<std::uintptr_t>(address);
  for (std::uintptr_t line = first; line < first + size_bytes; line += kLineBytes) {
    __builtin_prefetch(reinterpret_cast<const char*>(line));
  }
}

void copy_cached(std::byte* dst, const std::byte* src, std::size_t size_bytes) noexcept {
  if (size_bytes > 0) std::memcpy(dst, src, size_bytes);
}

void copy_streamed(const Kernels& kernels,
                   std::byte* dst,
                   const std::byte* src,
                   std::size_t size_bytes,
                   const std::byte* next) noexcept {
  if (size_bytes < kStreamMinPieceBytes) return copy_cached(dst, src, size_bytes);
  const std::size_t head = (kLineBytes - reinterpret_cast<std::uintptr_t>(dst) % kLineBytes) % kLineBytes;
  const std::size_t lines = (size_bytes - head) / kLineBytes * kLineBytes;
  copy_cached(dst, src, head);
  kernels.copy_lines(dst + head, src + head, lines, next);
  copy_cached(dst + head + lines, src + head + lines, size_bytes - head - lines);
}

void zero_bytes(std::byte* dst, std::size_t size_bytes) noexcept {
  if (size_bytes > 0) std::memset(dst, 0, size_bytes);
}

void fence_streams() noexcept {
#if defined(__x86_64__)
  _mm_sfence();
#endif  // elsewhere no kernel writes past the caches
}

}  // namespace moebus::backend
