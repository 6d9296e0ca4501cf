// Copy: bytes from here to there, through the caches or past them.
// Room: backend/cpu · host.
// Source: [measured-cpu] streaming stores win from about 1 MiB a batch; below, the reader finds the row in cache.

#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cpu/kernels.hpp"

namespace moebus::backend {

/// A batch that writes at least this much goes past the caches. Measured with rows that come from memory, on two server
/// cores of 1 and 2 MiB second-level cache: 1 MiB +10 %, 4 MiB +20 % over memcpy. (Rows that are in cache lose up to 20
/// %.)
inline constexpr std::size_t kStreamMinBytes = std::size_t{1} << 20;

/// Shorter pieces are not worth the partly filled lines at both ends.
inline constexpr std::size_t kStreamMinPieceBytes = 512;

/// True if a batch of that many bytes is better written past the caches, and `kernels` can.
[[nodiscard]] constexpr bool is_worth_streaming(const Kernels& kernels, std::size_t batch_bytes) noexcept {
  return kCanStream && kernels.copy_lines != nullptr && batch_bytes >= kStreamMinBytes;
}

[[nodiscard]] inline bool is_line_aligned(const std::byte* address) noexcept {
  return reinterpret_cast<std::uintptr_t>(address) % kLineBytes == 0;
}

/// Hints that the lines of [address, address + size_bytes) are read soon; any address will do.
void read_soon(const std::byte* address, std::size_t size_bytes) noexcept;

/// Copies through the caches; addresses may be null for 0 bytes.
void copy_cached(std::byte* dst, const std::byte* src, std::size_t size_bytes) noexcept;

/// Copies past the caches where whole lines are written, through them at both ends. `kernels.copy_lines` is there;
/// `next` is what will be read after `src`, as a hint.
///
/// Order: fence_streams() before the bytes are published.
void copy_streamed(const Kernels& kernels,
                   std::byte* dst,
                   const std::byte* src,
                   std::size_t size_bytes,
                   const std::byte* next) noexcept;

void zero_bytes(std::byte* dst, std::size_t size_bytes) noexcept;

/// Orders all streaming stores of this thread before its later stores.
void fence_streams() noexcept;

}  // namespace moebus::backend
