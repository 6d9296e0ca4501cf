#include "base/local_memory.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "moebus/error.hpp"

namespace moebus::base {

LocalMemory::LocalMemory(std::size_t size_bytes) {
  if (size_bytes == 0) return;
  void* mapped = ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (mapped == MAP_FAILED) {
    throw Error(
        ErrorCode::resource_exhausted,
        fmt::format("cannot get {} bytes of memory: {}; lower max_tokens_per_rank, capacity_rows or max_handles",
                    size_bytes,
                    std::strerror(errno)));
  }
  data_ = static_cast<std::byte*>(mapped);
  size_bytes_ = size_bytes;
}

LocalMemory::LocalMemory(LocalMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_bytes_(std::exchange(other.size_bytes_, 0)) {}

LocalMemory& LocalMemory::operator=(LocalMemory&& other) noexcept {
  if (this != &other) {
    if (data_ != nullptr) ::munmap(data_, size_bytes_);
    data_ = std::exchange(other.data_, nullptr);
    size_bytes_ = std::exchange(other.size_bytes_, 0);
  }
  return *this;
}

LocalMemory::~LocalMemory() {
  if (data_ != nullptr) ::munmap(data_, size_bytes_);
}

}  // namespace moebus::base
