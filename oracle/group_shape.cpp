#include "oracle/group_shape.hpp"

#include <algorithm>
#include <string>

#include "moebus/error.hpp"
#include "moebus/types.hpp"

namespace moebus::oracle {

int GroupShape::node_of(int rank) const noexcept { return nodes.empty() ? 0 : nodes[static_cast<std::size_t>(rank)]; }

bool GroupShape::has_several_nodes() const noexcept {
  return std::any_of(nodes.begin(), nodes.end(), [&](int node) { return node != nodes.front(); });
}

std::vector<int> GroupShape::ranks_of(int node) const {
  std::vector<int> ranks;
  for (int rank = 0; rank < num_ranks; ++rank) {
    if (node_of(rank) == node) ranks.push_back(rank);
  }
  return ranks;
}

int GroupShape::gateway(int src, int node) const {
  const std::vector<int> neighbours = ranks_of(node_of(src));
  const std::vector<int> there = ranks_of(node);
  const auto place =
      static_cast<std::size_t>(std::find(neighbours.begin(), neighbours.end(), src) - neighbours.begin());
  return there[place % there.size()];
}

void check_group(const GroupShape& group) {
  const bool has_ranks = group.num_ranks >= 1 && group.num_ranks <= kMaxRanks;
  const bool has_nodes = group.nodes.empty() || group.nodes.size() == static_cast<std::size_t>(group.num_ranks);
  if (has_ranks && has_nodes && (group.levels == 1 || group.levels == 2)) return;
  throw Error(ErrorCode::invalid_argument,
              "oracle: a group of " + std::to_string(group.num_ranks) + " ranks with nodes of " +
                  std::to_string(group.nodes.size()) + " ranks and " + std::to_string(group.levels) +
                  " levels; give 1 to " + std::to_string(kMaxRanks) + " ranks, a node for each or none, 1 or 2 levels");
}

}  // namespace moebus::oracle
