#include "transport/rank_text.hpp"

#include <fmt/format.h>

namespace moebus::transport {

std::string list_ranks(const std::vector<int>& ranks) {
  if (ranks.empty()) return "no rank";
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
}

std::string show_seconds(std::chrono::nanoseconds duration) {
  return fmt::format("{:.1f} s", std::chrono::duration<double>(duration).count());
}

}  // namespace moebus::transport
