// Mapping: a stretch of address space with one owner.
// Room: transport · host.

#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <utility>

namespace moebus::transport {

class Mapping {
 public:
  Mapping() noexcept = default;

  Mapping(void* address, std::size_t size_bytes) noexcept
      : data_(static_cast<std::byte*>(address)), size_bytes_(size_bytes) {}

  Mapping(Mapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_bytes_(std::exchange(other.size_bytes_, 0)) {}

  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_bytes_, other.size_bytes_);
    return *this;
  }

  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  ~Mapping() {
    if (data_ != nullptr) ::munmap(data_, size_bytes_);
  }

  [[nodiscard]] std::byte* data() const noexcept { return data_; }

  [[nodiscard]] std::size_t size_bytes() const noexcept { return size_bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_bytes_ = 0;
};

/// Sizes above this are refused before they are rounded up.
inline constexpr std::size_t kMaxMappingBytes = std::size_t{1} << 46;

[[nodiscard]] inline std::size_t page_bytes() noexcept { return static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)); }

}  // namespace moebus::transport
