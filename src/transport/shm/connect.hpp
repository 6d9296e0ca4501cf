// Shared-memory transport: ranks are processes (or threads) of one machine that share memfds.
// Room: transport · host.

#pragma once

#include <memory>

#include "transport/store.hpp"
#include "transport/transport.hpp"

namespace moebus::transport {

/// Connects the ranks of `store`, which must outlive the transport. Each rank holds up to two descriptors per peer
/// while it lives.
///
/// Order:   collective.
/// Errors:  Error{invalid_argument} on all ranks if `options.may_map` is not symmetric, naming the pair;
///          Error{unsupported} on all ranks if they are not on one machine and in one network namespace, naming one
///          that is not; Error{timeout}, Error{peer_lost} name the peer; Error{resource_exhausted} no descriptors
///          left; errors of the store.
std::unique_ptr<Transport> connect_shm(Store& store,
                                       const base::Deadline& deadline,
                                       const ConnectOptions& options = {});

}  // namespace moebus::transport
