// Group shape: how many ranks there are, on which nodes they live, and in how many levels combine adds.
// Room: oracle · host.

#pragma once

#include <vector>

namespace moebus::oracle {

/// A group as far as results and traffic depend on it. The same for all ranks.
struct GroupShape {
  int num_ranks = 1;
  std::vector<int> nodes;  ///< [ranks] any label per node, equal = same node; empty = all on one
  int levels = 1;          ///< 1: combine adds over ranks; 2: over the ranks of a node, then over nodes

  /// Ranks of one node, one level.
  static GroupShape one_node(int num_ranks) { return {num_ranks, {}, 1}; }

  /// Returns the label of the rank's node.
  [[nodiscard]] int node_of(int rank) const noexcept;

  [[nodiscard]] bool has_several_nodes() const noexcept;

  /// Returns the ranks of a node, ascending.
  [[nodiscard]] std::vector<int> ranks_of(int node) const;

  /// Returns the rank of `node` that takes in for all its node what `src` sends there: the place of `src` among the
  /// ranks of its own node, modulo the size of `node`.
  [[nodiscard]] int gateway(int src, int node) const;
};

/// Throws Error{invalid_argument} unless sizes and levels are possible.
void check_group(const GroupShape& group);

}  // namespace moebus::oracle
