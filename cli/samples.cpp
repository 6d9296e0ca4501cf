#include "cli/samples.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

namespace moebus::cli {

namespace {

double nearest_rank(const std::vector<double>& sorted, double fraction) {
  const auto position = static_cast<std::size_t>(std::ceil(fraction * static_cast<double>(sorted.size())));
  return sorted[std::clamp<std::size_t>(position, 1, sorted.size()) - 1];
}

}  // namespace

Summary summarise(std::span<const double> samples) {
  if (samples.empty()) return {};
  std::vector<double> sorted(samples.begin(), samples.end());
  std::sort(sorted.begin(), sorted.end());
  return {sorted.size(), nearest_rank(sorted, 0.5), nearest_rank(sorted, 0.99), sorted.front(), sorted.back()};
}

}  // namespace moebus::cli
