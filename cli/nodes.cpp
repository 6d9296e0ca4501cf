#include "cli/nodes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <numeric>
#include <set>

#include "cli/options.hpp"
#include "moebus/types.hpp"

namespace moebus::cli {

namespace {

[[noreturn]] void refuse(const std::string& text, const std::string& why) {
  throw UsageError(fmt::format(
      "--nodes {}: {}; give a number of nodes (2), their sizes (3+1) or the node of each rank (0,1,0,1)", text, why));
}

int number_of(const std::string& text, const std::string& part, int least) {
  int value = 0;
  const char* const end = part.data() + part.size();
  const auto [stop, error] = std::from_chars(part.data(), end, value);
  if (error != std::errc() || stop != end || value < least || value > kMaxRanks) {
    refuse(text, fmt::format("'{}' is no number from {} to {}", part, least, kMaxRanks));
  }
  return value;
}

std::string text_of_ranks(const std::vector<int>& ranks) {
  const bool is_block = ranks.size() > 1 && ranks.back() - ranks.front() == static_cast<int>(ranks.size()) - 1;
  return is_block ? fmt::format("{}-{}", ranks.front(), ranks.back()) : fmt::format("{}", fmt::join(ranks, ","));
}

}  // namespace

Nodes Nodes::parse(const std::string& text) {
  Nodes nodes;
  if (text.empty()) return nodes;
  nodes.text_ = text;
  const bool is_list = text.find(',') != std::string::npos;
  const bool has_sizes = text.find('+') != std::string::npos;
  if (is_list && has_sizes) refuse(text, "'+' and ',' are two different forms");
  nodes.form_ = is_list ? Form::list : has_sizes ? Form::sizes : Form::count;
  const char separator = is_list ? ',' : '+';
  for (std::size_t first = 0; first <= text.size();) {
    const std::size_t end = std::min(text.find(separator, first), text.size());
    nodes.numbers_.push_back(number_of(text, text.substr(first, end - first), is_list ? 0 : 1));
    first = end + 1;
  }
  if (const std::optional<int> ranks = nodes.num_ranks(); ranks && *ranks > kMaxRanks) {
    refuse(text, fmt::format("that is {} ranks, and at most {} are supported", *ranks, kMaxRanks));
  }
  return nodes;
}

std::optional<int> Nodes::num_ranks() const noexcept {
  if (form_ == Form::count) return std::nullopt;
  if (form_ == Form::list) return static_cast<int>(numbers_.size());
  return std::accumulate(numbers_.begin(), numbers_.end(), 0);
}

bool Nodes::fits(int num_ranks) const noexcept {
  if (!is_given()) return true;
  return form_ == Form::count ? num_ranks >= numbers_.front() : num_ranks == this->num_ranks();
}

void Nodes::check(int num_ranks) const {
  if (fits(num_ranks)) return;
  if (form_ == Form::count) refuse(text_, fmt::format("{} ranks are too few; there must be one for each", num_ranks));
  refuse(text_, fmt::format("that is {} ranks, not {}; leave --ranks out", *this->num_ranks(), num_ranks));
}

std::vector<int> Nodes::of_ranks(int num_ranks) const {
  if (!is_given()) return {};
  check(num_ranks);
  if (form_ == Form::list) return numbers_;
  std::vector<int> nodes;
  const int num_nodes = form_ == Form::count ? numbers_.front() : static_cast<int>(numbers_.size());
  for (int node = 0; node < num_nodes; ++node) {
    const int even = num_ranks / num_nodes + (node < num_ranks % num_nodes ? 1 : 0);
    const int size = form_ == Form::count ? even : numbers_[static_cast<std::size_t>(node)];
    nodes.insert(nodes.end(), static_cast<std::size_t>(size), node);
  }
  return nodes;
}

std::string ranks_by_node(const std::vector<int>& nodes) {
  std::string text;
  std::set<int> seen;
  for (const int node : nodes) {
    if (!seen.insert(node).second) continue;
    std::vector<int> ranks;
    for (std::size_t rank = 0; rank < nodes.size(); ++rank) {
      if (nodes[rank] == node) ranks.push_back(static_cast<int>(rank));
    }
    text += (text.empty() ? "" : " | ") + text_of_ranks(ranks);
  }
  return text;
}

int number_of_nodes(const std::vector<int>& nodes) {
  return static_cast<int>(std::set<int>(nodes.begin(), nodes.end()).size());
}

}  // namespace moebus::cli
