// Unruly transport: wraps another one and does to its puts whatever the ordering contract allows. For tests only.
// Room: transport · host.
// Source: [engines-note] sections 4.2 and 9: what tracks of a network may do to each other.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>

#include "transport/transport.hpp"

namespace moebus::transport {

/// Ignored fences break the contract on purpose: whoever depends on one is then seen to fail.
enum class Fences : std::uint8_t { kept, ignored };

/// What the name of an unruly transport says.
struct UnrulyChoice {
  std::uint64_t seed = 0;
  Fences fences = Fences::kept;
};

/// Returns what "unruly:SEED" or "unruly-nofence:SEED" ask for, nothing if `name` begins with neither.
///
/// Errors:  Error{invalid_argument} SEED is not a number.
std::optional<UnrulyChoice> parse_unruly(std::string_view name);

/// Wraps `inner`, whose puts must be copies done at once. Puts are split, held for a random time in tracks that
/// overtake each other, and read from their source when they leave, or at flush. Each is let go after a bounded number
/// of calls or 2 ms, whichever comes first, even if this rank makes no call: a thread looks after what is due. All are
/// let go before memory is registered or given back, before descriptors are exchanged, before the peers are told that
/// this rank leaves, and at the end.
///
/// Order:   same `seed` and calls, same order, but for what time decides.
std::unique_ptr<Transport> make_unruly(std::unique_ptr<Transport> inner,
                                       int rank,
                                       std::uint64_t seed,
                                       Fences fences = Fences::kept);

}  // namespace moebus::transport
