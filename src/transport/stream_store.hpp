// Stream store: rank 0 is the hub that the others connect to, over TCP or Unix sockets.
// Room: transport · host.
// Driven inside the calls: it has no thread of its own.

#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "transport/store.hpp"
#include "transport/stream_socket.hpp"

namespace moebus::transport {

struct JoinOptions {
  std::string token;          ///< shared secret, proved by both sides, never sent
  bool show_progress = true;  ///< log who is missing while a wait lasts
};

/// Waits as rank 0 at `listener` until all ranks are in, and returns the store. Strangers, wrong tokens, wrong sizes,
/// other versions and ranks that are in already are turned away with a reason; the wait for the right ones goes on.
///
/// Order:   collective.
/// Errors:  Error{timeout} names the ranks that did not come, here and on the ranks that did.
std::unique_ptr<Store> host_stream(StreamListener listener,
                                   int num_ranks,
                                   const JoinOptions& options,
                                   const base::Deadline& deadline);

/// Finds the hub; nothing if it cannot be found yet. Asked again before each attempt.
using LocateHub = std::function<std::optional<StreamAddress>()>;

/// Joins as another rank than 0; tries to connect until the deadline.
///
/// Order:   collective.
/// Errors:  Error{invalid_argument} rank 0 turned this rank away, with its reason; Error{timeout} names the ranks
///          that did not come; Error{peer_lost} rank 0 went away after it had let this rank in.
std::unique_ptr<Store> join_stream(const LocateHub& locate,
                                   std::string_view where,
                                   int rank,
                                   int num_ranks,
                                   const JoinOptions& options,
                                   const base::Deadline& deadline);

}  // namespace moebus::transport
