// Memory left: what the machine can still give, asked before it is taken.
// Room: transport · host.
// Populating more than there is would not fail: the system would begin to end processes, and not only ours.

#pragma once

#include <cstddef>

namespace moebus::transport {

/// Returns how many bytes this process could fill now: free and reclaimable memory and swap, at most its cgroup's
/// limit. What the system does not tell counts as no limit.
std::size_t memory_left_bytes();

/// Throws Error{resource_exhausted} if `num_ranks` times `size_bytes` is more than is left.
void check_memory_left(std::size_t size_bytes, int num_ranks);

}  // namespace moebus::transport
