#include "cli/pages.hpp"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "moebus/error.hpp"

namespace moebus::cli {

Pages::Pages(std::size_t size_bytes, bool is_shared) : size_bytes_(size_bytes) {
  if (size_bytes == 0) return;
  const int flags = MAP_ANONYMOUS | MAP_NORESERVE | (is_shared ? MAP_SHARED : MAP_PRIVATE);
  void* const memory = ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (memory == MAP_FAILED) {
    throw Error(ErrorCode::resource_exhausted,
                "no memory for " + std::to_string(size_bytes) + " bytes of inputs: " + std::strerror(errno) +
                    "; give fewer --tokens or --ranks");
  }
  data_ = static_cast<std::byte*>(memory);
}

Pages::~Pages() {
  if (data_ != nullptr) ::munmap(data_, size_bytes_);
}

Pages::Pages(Pages&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_bytes_(std::exchange(other.size_bytes_, 0)) {}

Pages& Pages::operator=(Pages&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

}  // namespace moebus::cli
