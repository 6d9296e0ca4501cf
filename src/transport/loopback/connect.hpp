// Loopback transport: ranks are threads of one process, so a peer's memory is simply its address.
// Room: transport · host.

#pragma once

#include <memory>

#include "transport/store.hpp"
#include "transport/transport.hpp"

namespace moebus::transport {

/// Connects the ranks of `store`, which must outlive the transport.
///
/// Order:   collective.
/// Errors:  Error{invalid_argument} on all ranks if `options.may_map` is not symmetric, naming the pair;
///          Error{unsupported} on all ranks if they are not in one process, naming one that is not; errors of the
///          store.
std::unique_ptr<Transport> connect_loopback(Store& store,
                                            const base::Deadline& deadline,
                                            const ConnectOptions& options = {});

}  // namespace moebus::transport
