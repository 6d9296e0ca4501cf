// Descriptor: what a caller hands over to peers, looked at and duplicated.
// Room: transport · host.

#pragma once

#include "base/unique_fd.hpp"

namespace moebus::transport {

/// Returns another descriptor of the same open file, closed in programs that this process executes.
///
/// Errors:  Error{invalid_argument} `descriptor` is not open; Error{resource_exhausted} there is no room for another.
base::UniqueFd duplicate_descriptor(int descriptor);

}  // namespace moebus::transport
