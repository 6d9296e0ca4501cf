#include "cli/progress.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace moebus::cli {

namespace {

constexpr auto kRedrawEvery = std::chrono::milliseconds(100);
constexpr int kBarWidth = 30;

}  // namespace

Progress::Progress(bool is_wanted) : is_on_(is_wanted && isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() { clear(); }

void Progress::show(const std::string& label, std::int64_t done, std::int64_t total) {
  if (!is_on_ || total <= 0) return;
  const auto now = std::chrono::steady_clock::now();
  if (label == label_ && now - last_ < kRedrawEvery) return;
  label_ = label;
  last_ = now;
  const std::int64_t percent = std::clamp<std::int64_t>(done * 100 / total, 0, 100);
  const auto filled = static_cast<std::size_t>(percent * kBarWidth / 100);
  const std::string bar = std::string(filled, '=') + std::string(kBarWidth - filled, ' ');
  std::fprintf(stderr, "\r\033[K%s [%s] %d %%", label.c_str(), bar.c_str(), static_cast<int>(percent));
  std::fflush(stderr);
  is_drawn_ = true;
}

void Progress::clear() noexcept {
  if (!is_drawn_) return;
  std::fputs("\r\033[K", stderr);
  std::fflush(stderr);
  is_drawn_ = false;
}

}  // namespace moebus::cli
