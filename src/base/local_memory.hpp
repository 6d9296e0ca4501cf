// LocalMemory: a block of zeroed, touched memory that only this rank uses; taken once in set-up, never on the data
// path. Room: base · host.

#pragma once

#include <cstddef>

namespace moebus::base {

class LocalMemory {
 public:
  LocalMemory() noexcept = default;

  /// Maps and touches `size_bytes` (0 = nothing). Error{resource_exhausted} names the size.
  explicit LocalMemory(std::size_t size_bytes);
  LocalMemory(LocalMemory&& other) noexcept;
  LocalMemory& operator=(LocalMemory&& other) noexcept;
  ~LocalMemory();

  [[nodiscard]] std::byte* data() const noexcept { return data_; }

  [[nodiscard]] std::size_t size_bytes() const noexcept { return size_bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_bytes_ = 0;
};

}  // namespace moebus::base
