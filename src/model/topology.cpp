#include "model/topology.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

#include "base/math.hpp"
#include "moebus/types.hpp"

namespace moebus::model {

using base::idx;

namespace {

std::uint64_t bits_of(int num_ranks) noexcept {
  return num_ranks >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << num_ranks) - 1;
}

}  // namespace

Topology Topology::one_node(int num_ranks) { return of_nodes(std::vector<int>(idx(num_ranks), 0)); }

Topology Topology::of_nodes(std::span<const int> node_of) {
  Topology topology;
  std::map<int, int> number;  // label -> node
  for (const int label : node_of) {
    const int node = number.try_emplace(label, static_cast<int>(number.size())).first->second;
    if (node == topology.num_nodes()) topology.ranks_of_.emplace_back();
    std::vector<int>& ranks = topology.ranks_of_[idx(node)];
    topology.local_index_.push_back(static_cast<int>(ranks.size()));
    ranks.push_back(topology.num_ranks());
    topology.node_of_.push_back(node);
  }
  topology.mapped_.assign(node_of.size(), bits_of(topology.num_ranks()));
  return topology;
}

void Topology::set_unmapped(int a, int b) noexcept {
  mapped_[idx(a)] &= ~(std::uint64_t{1} << b);
  mapped_[idx(b)] &= ~(std::uint64_t{1} << a);
}

bool Topology::has_unmapped() const noexcept {
  return std::any_of(
      mapped_.begin(), mapped_.end(), [&](std::uint64_t mapped) { return mapped != bits_of(num_ranks()); });
}

int Topology::gateway(int src, int node) const noexcept {
  const std::span<const int> ranks = ranks_of(node);
  return ranks[idx(local_index(src)) % ranks.size()];
}

std::vector<int> Topology::served_by(int rank) const {
  std::vector<int> served;
  for (int src = 0; src < num_ranks(); ++src) {
    if (!are_neighbours(src, rank) && gateway(src, node_of(rank)) == rank) served.push_back(src);
  }
  return served;
}

int Topology::max_served() const {
  std::array<int, kMaxRanks> num_served{};
  for (int src = 0; src < num_ranks(); ++src) {
    for (int node = 0; node < num_nodes(); ++node) {
      if (node != node_of(src)) ++num_served[idx(gateway(src, node))];
    }
  }
  return *std::max_element(num_served.begin(), num_served.end());
}

int Topology::max_node_size() const noexcept {
  std::size_t most = 0;
  for (const std::vector<int>& ranks : ranks_of_) most = std::max(most, ranks.size());
  return static_cast<int>(most);
}

std::string Topology::describe() const {
  std::string text = fmt::format("node of rank={}\n", fmt::join(node_of_, ","));
  for (int rank = 0; rank < num_ranks(); ++rank) {
    fmt::format_to(std::back_inserter(text), "ranks mapped by rank {}={:#x}\n", rank, mapped_[idx(rank)]);
  }
  return text;
}

}  // namespace moebus::model
