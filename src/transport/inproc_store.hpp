// In-process store: ranks are threads of one process that meet under a name.
// Room: transport · host.

#pragma once

#include <memory>
#include <string_view>

#include "transport/store.hpp"

namespace moebus::transport {

/// Meets the other ranks under `name` and returns this rank's store once all are there.
///
/// A name is free again for a rank as soon as that rank's store is destroyed. Whoever waits for a rank that left gets
/// Error{peer_lost}.
///
/// Order:   collective.
/// Errors:  Error{invalid_argument} the rank is held already (only the second caller gets it), or sizes differ (all
///          that wait get it); Error{timeout} on every rank that waits, naming those that did not come.
std::unique_ptr<Store> join_inproc(std::string_view name, int rank, int num_ranks, const base::Deadline& deadline);

}  // namespace moebus::transport
