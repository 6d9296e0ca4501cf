// Deadline: the end of a wait. There is no infinite one.
// Room: base · host.

#pragma once

#include <chrono>

namespace moebus::base {

using Clock = std::chrono::steady_clock;

class Deadline {
 public:
  /// Ends `limit` from now; a limit beyond the clock's range ends at its last instant.
  explicit Deadline(std::chrono::nanoseconds limit) noexcept
      : start_(Clock::now()),
        end_(limit > Clock::time_point::max() - start_ ? Clock::time_point::max() : start_ + limit) {}

  [[nodiscard]] bool is_over() const noexcept { return Clock::now() >= end_; }

  /// Returns the time left, never negative.
  [[nodiscard]] std::chrono::nanoseconds left() const noexcept {
    const auto now = Clock::now();
    return now >= end_ ? std::chrono::nanoseconds{0} : end_ - now;
  }

  [[nodiscard]] std::chrono::nanoseconds waited() const noexcept { return Clock::now() - start_; }

  [[nodiscard]] Clock::time_point end() const noexcept { return end_; }

 private:
  Clock::time_point start_;
  Clock::time_point end_;
};

}  // namespace moebus::base
