// Progress: a bar on a terminal, and nothing in a pipe or a file.
// Room: cli · host.

#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace moebus::cli {

/// Draws "label [=====     ] 50 %" on standard error while it is a terminal, and takes it away at the end.
///
/// Threads: one caller at a time.
class Progress {
 public:
  /// `is_wanted` false: draws nothing, ever.
  explicit Progress(bool is_wanted);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Shows that `done` of `total` steps of `label` are over; draws at most ten times a second.
  void show(const std::string& label, std::int64_t done, std::int64_t total);

  /// Takes the bar away, so that other text can follow.
  void clear() noexcept;

 private:
  bool is_on_;
  bool is_drawn_ = false;
  std::string label_;
  std::chrono::steady_clock::time_point last_{};
};

}  // namespace moebus::cli
