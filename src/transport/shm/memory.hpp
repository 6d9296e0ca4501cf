// Shared memory: memfds that cannot change size, populated when they are made.
// Room: transport · host.

#pragma once

#include <cstddef>

#include "base/unique_fd.hpp"
#include "transport/mapping.hpp"

namespace moebus::transport {

/// Memory of this rank, and the descriptor that peers map it by.
struct SharedMemory {
  base::UniqueFd descriptor;
  Mapping mapping;
};

/// Makes at least `size_bytes` of zeroed memory, every page there: huge pages if the machine has enough of them, else
/// ordinary ones.
///
/// Errors:  Error{resource_exhausted}.
SharedMemory make_shared_memory(std::size_t size_bytes);

/// Maps what a peer sent, after a look at it: a memfd of exactly `mapped_bytes`, at least `size_bytes`, sealed
/// against shrinking (a peer that could shrink it could crash this process).
///
/// Errors:  Error{transport_failure} it is something else; Error{resource_exhausted}.
Mapping map_peer_memory(int descriptor, std::size_t mapped_bytes, std::size_t size_bytes);

}  // namespace moebus::transport
