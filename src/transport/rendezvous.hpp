// Rendezvous: turns the URI that a user gives into a store with all ranks in it.
// Room: transport · host.

#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "transport/store.hpp"
#include "transport/stream_store.hpp"

namespace moebus::transport {

enum class RendezvousKind : std::uint8_t { inproc, local, file, tcp };

/// A URI taken apart.
struct RendezvousAddress {
  RendezvousKind kind = RendezvousKind::inproc;
  std::string name;  ///< of inproc and local; path of file; host of tcp
  int port = 0;      ///< of tcp
};

/// Takes `uri` apart: inproc://NAME, local://NAME, file://PATH, tcp://HOST:PORT (HOST may be [IPv6]).
///
/// Errors:  Error{invalid_argument} with what is wrong and the allowed forms.
RendezvousAddress parse_rendezvous(std::string_view uri);

/// Meets the other ranks at `uri` and returns this rank's store.
///
/// Order:   collective.
/// Errors:  as join_inproc, host_stream, join_stream, parse_rendezvous.
std::unique_ptr<Store> join_rendezvous(
    std::string_view uri, int rank, int num_ranks, const JoinOptions& options, const base::Deadline& deadline);

}  // namespace moebus::transport
