// Transport contract: what a suite needs to run ranks over one implementation of Transport.
// Room: tests · host.

#pragma once

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "base/deadline.hpp"
#include "tests/support/ranks.hpp"
#include "transport/rendezvous.hpp"
#include "transport/transport.hpp"

namespace moebus::transport {

/// One implementation and the way its ranks run.
struct TransportCase {
  const char* name;
  const char* uri_scheme;
  std::unique_ptr<Transport> (*connect)(Store& store, const base::Deadline& deadline);
  bool are_ranks_processes;
};

/// A rank with its store and its transport connected.
struct ConnectedRank {
  std::unique_ptr<Store> store;
  std::unique_ptr<Transport> transport;  ///< below the store, which it uses until its end
};

/// Meets the other ranks at `uri` and connects.
inline ConnectedRank connect_rank(const TransportCase& kind, const std::string& uri, int rank, int num_ranks) {
  const base::Deadline deadline(std::chrono::seconds(30));
  ConnectedRank connected;
  connected.store = join_rendezvous(uri, rank, num_ranks, {"", false}, deadline);
  connected.transport = kind.connect(*connected.store, deadline);
  return connected;
}

/// Runs `body` on `num_ranks` connected ranks, as threads or as processes.
inline std::vector<tests::RankOutcome> run_connected(const TransportCase& kind,
                                                     int num_ranks,
                                                     const std::function<void(ConnectedRank&)>& body) {
  static std::atomic<int> last_id{0};
  const std::string uri =
      std::string(kind.uri_scheme) + "://" + std::to_string(::getpid()) + "-" + std::to_string(++last_id);
  const auto run = kind.are_ranks_processes ? &tests::run_as_processes : &tests::run_as_threads;
  return run(
      num_ranks,
      [&](int rank) {
        ConnectedRank connected = connect_rank(kind, uri, rank, num_ranks);
        body(connected);
      },
      tests::kRanksLimit);
}

}  // namespace moebus::transport
