// Carver: cuts one block of memory into arrays. Run without memory it only counts, so sizes and places cannot differ.
// Room: base · host.

#pragma once

#include <cstddef>
#include <span>

#include "base/math.hpp"

namespace moebus::base {

class Carver {
 public:
  static constexpr std::size_t kAlign = 64;

  /// Counts only.
  Carver() noexcept = default;

  /// Cuts `memory`, which is aligned to kAlign and large enough (a counting run told how large).
  explicit Carver(std::byte* memory) noexcept : memory_(memory) {}

  /// Returns room for `count` objects of a trivial type; an empty span while counting.
  template <class T>
  std::span<T> take(std::size_t count) noexcept {
    static_assert(alignof(T) <= kAlign);
    const std::size_t offset = used_bytes_;
    used_bytes_ = align_up(offset + count * sizeof(T), kAlign);
    if (memory_ == nullptr) return {};
    // The block was allocated as bytes and T is trivial: the array's life begins here.
    return {reinterpret_cast<T*>(memory_ + offset), count};
  }

  [[nodiscard]] std::size_t used_bytes() const noexcept { return used_bytes_; }

 private:
  std::byte* memory_ = nullptr;
  std::size_t used_bytes_ = 0;
};

}  // namespace moebus::base
