// Processor: what the floor's timings need of this processor beyond C++. One body for each family; CMake chooses.
// Room: cli · host.

#pragma once

#include <cstddef>

namespace moebus::cli {

/// True if stores can go past the caches here.
[[nodiscard]] bool can_stream() noexcept;

/// Copies a row, past the caches if can_stream(); `to` starts at a multiple of 16 bytes.
///
/// Order: fence_streams() before the row is published.
void copy_row_streaming(std::byte* to, const std::byte* from, std::size_t row_bytes) noexcept;

void fence_streams() noexcept;

/// Tells the processor that this thread spins.
void pause() noexcept;

}  // namespace moebus::cli
