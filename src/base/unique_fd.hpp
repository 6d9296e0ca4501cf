// UniqueFd: a file descriptor with one owner.
// Room: base · host.

#pragma once

#include <unistd.h>

#include <utility>

namespace moebus::base {

class UniqueFd {
 public:
  UniqueFd() noexcept = default;

  explicit UniqueFd(int fd) noexcept : fd_(fd) {}

  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }

  UniqueFd(const UniqueFd&) = delete;
  UniqueFd& operator=(const UniqueFd&) = delete;

  ~UniqueFd() { reset(); }

  [[nodiscard]] int get() const noexcept { return fd_; }

  [[nodiscard]] bool is_open() const noexcept { return fd_ >= 0; }

  [[nodiscard]] int release() noexcept { return std::exchange(fd_, -1); }

  void reset() noexcept {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }

 private:
  int fd_ = -1;
};

}  // namespace moebus::base
