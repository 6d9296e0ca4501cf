#include <cstring>

#include "cli/processor.hpp"

namespace moebus::cli {

bool can_stream() noexcept { return false; }

void copy_row_streaming(std::byte* to, const std::byte* from, std::size_t row_bytes) noexcept {
  std::memcpy(to, from, row_bytes);
}

void fence_streams() noexcept {}

void pause() noexcept {}

}  // namespace moebus::cli
