// Copy: bytes from here to there, through the caches or past them.
// Room: backend/cpu · host.
// Source: [measured-cpu] streaming stores win from about 1 MiB a batch; below, the reader finds the row in cache.

#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cpu/kernels.hpp"

namespace moebus::backend {

/// A batch that writes at least this much goes past the caches. The size of the second-level cache of the machines
/// measured.
inline constexpr std::size_t kStreamMinBytes = std::size_t{1} << 20;

/// Shorter pieces are not worth the partly filled lines at both ends.
inline constexpr std::size_t kStreamMinPieceBytes = 512;

[[nodiscard]] constexpr bool is_worth_streaming(std::size_t batch_bytes) noexcept {
  return kCanStream && batch_bytes >= kStreamMinBytes;
}

[[nodiscard]] inline bool is_line_aligned(const std::byte* address) noexcept {
  return reinterpret_cast<std::uintptr_t>(address) % kLineBytes == 0;
}

/// Copies through the caches.
void copy_cached(std::byte* dst, const std::byte* src, std::size_t size_bytes) noexcept;

/// Copies past the caches where whole lines are written; through them at both ends.
///
/// Order: fence_streams() before the bytes are published.
void copy_streamed(std::byte* dst, const std::byte* src, std::size_t size_bytes) noexcept;

/// As above, for zeros.
void zero_cached(std::byte* dst, std::size_t size_bytes) noexcept;
void zero_streamed(std::byte* dst, std::size_t size_bytes) noexcept;

/// Orders all streaming stores of this thread before its later stores.
void fence_streams() noexcept;

}  // namespace moebus::backend
