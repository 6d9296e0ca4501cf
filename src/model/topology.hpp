// Topology: which ranks share a node, who can write whose memory, and who forwards for whom. A value: made once when a
// group joins, the same on every rank. Room: model · host+device arithmetic.
// Source: [ours] design 4.7: from host identity and measured reachability, never from rank numbers.

#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace moebus::model {

class Topology {
 public:
  Topology() = default;

  /// One node, every rank's memory mapped by every other.
  static Topology one_node(int num_ranks);

  /// `node_of` [ranks]: any labels; equal label = same node. Nodes are numbered by their first rank. Every pair of
  /// ranks is mapped until set_unmapped.
  static Topology of_nodes(std::span<const int> node_of);

  /// Says that ranks a and b cannot write each other's memory; bytes between them go through the transport.
  void set_unmapped(int a, int b) noexcept;

  [[nodiscard]] int num_ranks() const noexcept { return static_cast<int>(node_of_.size()); }

  [[nodiscard]] int num_nodes() const noexcept { return static_cast<int>(ranks_of_.size()); }

  [[nodiscard]] int node_of(int rank) const noexcept { return node_of_[static_cast<std::size_t>(rank)]; }

  /// Returns the place of `rank` among its node's ranks.
  [[nodiscard]] int local_index(int rank) const noexcept { return local_index_[static_cast<std::size_t>(rank)]; }

  /// Returns the ranks of a node, ascending.
  [[nodiscard]] std::span<const int> ranks_of(int node) const noexcept {
    return ranks_of_[static_cast<std::size_t>(node)];
  }

  [[nodiscard]] bool are_neighbours(int a, int b) const noexcept { return node_of(a) == node_of(b); }

  [[nodiscard]] bool is_mapped(int a, int b) const noexcept {
    return ((mapped_[static_cast<std::size_t>(a)] >> b) & 1) != 0;
  }

  [[nodiscard]] bool has_unmapped() const noexcept;

  /// Returns the rank of `node` that receives what `src` sends there and forwards it, and that adds up what returns:
  /// local index of `src`, modulo the node's size. `node` is not the node of `src`.
  [[nodiscard]] int gateway(int src, int node) const noexcept;

  /// Returns the ranks for which `rank` is the gateway of its node, ascending.
  [[nodiscard]] std::vector<int> served_by(int rank) const;

  /// Returns the most ranks that any rank serves, and the size of the largest node.
  [[nodiscard]] int max_served() const;
  [[nodiscard]] int max_node_size() const noexcept;

  /// Returns "node of rank=0,0,1,1" style lines for comparison over ranks and for digests.
  [[nodiscard]] std::string describe() const;

 private:
  std::vector<int> node_of_;                // [ranks]
  std::vector<int> local_index_;            // [ranks]
  std::vector<std::vector<int>> ranks_of_;  // [nodes][ranks of the node]
  std::vector<std::uint64_t> mapped_;       // [ranks] bit p: mapped by rank p and the other way round
};

}  // namespace moebus::model
