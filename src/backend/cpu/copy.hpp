// Copy: bytes from here to there, through the caches or past them.
// Room: backend/cpu · host.
// Source: [measured-cpu] streaming stores win when a call writes more than the caches keep.

#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cpu/kernels.hpp"

namespace moebus::backend {

/// A call that writes at least this much goes past the caches. Smaller ones live in the last-level cache from call to
/// call (windows and results are the same memory each time), and memcpy is up to twice as fast there; rows that come
/// from and go to memory gain 10 to 40 % by streaming. Measured on a Zen 5 server with 32 MiB of L3 and a Xeon with 2
/// MiB of L2 a core.
inline constexpr std::size_t kStreamMinBytes = std::size_t{8} << 20;

/// Shorter pieces are not worth the partly filled lines at both ends.
inline constexpr std::size_t kStreamMinPieceBytes = 512;

/// True if a call of that many bytes is better written past the caches, and `kernels` can.
[[nodiscard]] constexpr bool is_worth_streaming(const Kernels& kernels, std::size_t call_bytes) noexcept {
  return kCanStream && kernels.copy_lines != nullptr && call_bytes >= kStreamMinBytes;
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
