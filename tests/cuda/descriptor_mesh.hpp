// Descriptor mesh: a pair of sockets for each pair of ranks, over which ranks that are processes hand descriptors to
// each other. Made before they are forked.
// Room: tests/cuda · host.

#pragma once

#include <vector>

#include "base/unique_fd.hpp"

namespace moebus::tests {

class DescriptorMesh {
 public:
  /// Errors:  std::runtime_error; of the other functions too, with the ranks.
  explicit DescriptorMesh(int num_ranks);

  /// Sends a duplicate without waiting.
  void give(int rank, int peer, int descriptor);

  /// Waits for what the peer gave; half a minute at most.
  [[nodiscard]] base::UniqueFd take(int rank, int peer);

 private:
  base::UniqueFd& end(int rank, int peer);

  int num_ranks_;
  std::vector<base::UniqueFd> ends_;  // [ranks, ranks] of the row's rank
};

}  // namespace moebus::tests
