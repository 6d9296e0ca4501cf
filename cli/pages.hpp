// Pages: memory straight from the kernel, zero and untouched until it is used; private, or shared with later children.
// Room: cli · host.

#pragma once

#include <cstddef>

namespace moebus::cli {

/// Owns a mapping. Untouched pages cost nothing, so a worst-case size may be asked for.
class Pages {
 public:
  Pages() noexcept = default;

  /// Maps `size_bytes`. `is_shared`: processes forked afterwards see the same memory.
  ///
  /// Errors: Error{resource_exhausted}.
  Pages(std::size_t size_bytes, bool is_shared);
  ~Pages();
  Pages(Pages&& other) noexcept;
  Pages& operator=(Pages&& other) noexcept;

  [[nodiscard]] std::byte* data() const noexcept { return data_; }

  [[nodiscard]] std::size_t size() const noexcept { return size_bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_bytes_ = 0;
};

}  // namespace moebus::cli
