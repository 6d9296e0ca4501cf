// Transport contract: what a suite needs to run ranks over one implementation of Transport, and the implementations.
// Room: tests · host.

#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/deadline.hpp"
#include "base/math.hpp"
#include "moebus/error.hpp"
#include "tests/support/errors.hpp"
#include "tests/support/ranks.hpp"
#include "transport/loopback/connect.hpp"
#include "transport/rendezvous.hpp"
#include "transport/shm/connect.hpp"
#include "transport/transport.hpp"
#include "transport/unruly/connect.hpp"

namespace moebus::transport {

using tests::message_of;

using ConnectFunction = std::unique_ptr<Transport> (*)(Store&, const base::Deadline&, const ConnectOptions&);

/// One implementation and the way its ranks run.
struct TransportCase {
  const char* name;
  const char* uri_scheme;
  ConnectFunction connect;
  bool are_ranks_processes;
  bool are_peers_mapped;
};

/// Wraps what `connect` gives.
template <ConnectFunction connect, Fences fences = Fences::kept>
std::unique_ptr<Transport> connect_unruly(Store& store, const base::Deadline& deadline, const ConnectOptions& options) {
  constexpr std::uint64_t kSeed = 4711;
  return make_unruly(connect(store, deadline, options), store.rank(), kSeed, fences);
}

inline constexpr TransportCase kLoopback{"Loopback", "inproc", &connect_loopback, false, true};
inline constexpr TransportCase kShmThreads{"ShmThreads", "local", &connect_shm, false, true};
inline constexpr TransportCase kShm{"Shm", "local", &connect_shm, true, true};
inline constexpr TransportCase kLoopbackUnmapped{"LoopbackUnmapped", "inproc", &connect_loopback, false, false};
inline constexpr TransportCase kShmUnmapped{"ShmUnmapped", "local", &connect_shm, true, false};
inline constexpr TransportCase kUnrulyLoopback{
    "UnrulyLoopback", "inproc", &connect_unruly<&connect_loopback>, false, false};
inline constexpr TransportCase kUnrulyShm{"UnrulyShm", "local", &connect_unruly<&connect_shm>, true, false};

inline std::string case_name(const ::testing::TestParamInfo<TransportCase>& param) { return param.param.name; }

/// A rank with its store and its transport connected.
struct ConnectedRank {
  std::unique_ptr<Store> store;
  std::unique_ptr<Transport> transport;  ///< below the store, which it uses until its end
};

/// Returns an address that no other run of this program uses.
inline std::string unused_uri(const TransportCase& kind) {
  static std::atomic<int> last_id{0};
  return std::string(kind.uri_scheme) + "://" + std::to_string(::getpid()) + "-" + std::to_string(++last_id);
}

/// Runs `body` on `num_ranks` ranks that have met, as threads or as processes.
inline std::vector<tests::RankOutcome> run_met(const TransportCase& kind,
                                               int num_ranks,
                                               const std::function<void(std::unique_ptr<Store>)>& body) {
  const std::string uri = unused_uri(kind);
  const auto run = kind.are_ranks_processes ? &tests::run_as_processes : &tests::run_as_threads;
  return run(
      num_ranks,
      [&](int rank) {
        const base::Deadline deadline(std::chrono::seconds(30));
        body(join_rendezvous(uri, rank, num_ranks, {"", false}, deadline));
      },
      tests::kRanksLimit);
}

/// Runs `body` on `num_ranks` connected ranks, as threads or as processes.
inline std::vector<tests::RankOutcome> run_connected(const TransportCase& kind,
                                                     int num_ranks,
                                                     const std::function<void(ConnectedRank&)>& body) {
  return run_met(kind, num_ranks, [&](std::unique_ptr<Store> store) {
    ConnectedRank self;
    self.store = std::move(store);
    ConnectOptions options;
    if (!kind.are_peers_mapped) options.may_map.assign(base::idx(num_ranks), false);
    self.transport = kind.connect(*self.store, base::Deadline(std::chrono::seconds(30)), options);
    body(self);
  });
}

inline void barrier(Store& store) { store.all_gather("barrier", "", base::Deadline(std::chrono::seconds(20))); }

inline int count_in(const std::string& folder) {
  return static_cast<int>(
      std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator()));
}

/// Waits until `peer` is not alive any more; fails after a limit that only a hang reaches.
inline PeerStatus wait_for_end(const Transport& transport, int peer) {
  const base::Deadline deadline(std::chrono::seconds(20));
  while (!deadline.is_over()) {
    const PeerStatus status = transport.peer_status(peer);
    if (status.state != PeerState::alive) return status;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ADD_FAILURE() << "rank " << peer << " still counts as alive";
  return {};
}

/// Returns the word at an offset of this rank's memory.
inline sync::Word& word_at(const Registration& memory, std::size_t offset_bytes) {
  return *reinterpret_cast<sync::Word*>(memory.local.data + offset_bytes);  // offsets in tests are aligned
}

/// Waits, as an engine does, until the word is at least `value`; fails after a limit that only a hang reaches.
inline bool wait_for_word(Transport& transport,
                          const Registration& memory,
                          std::size_t offset_bytes,
                          sync::Word value) {
  const base::Deadline deadline(std::chrono::seconds(20));
  while (sync::load_acquire(word_at(memory, offset_bytes)) < value) {
    if (deadline.is_over()) {
      ADD_FAILURE() << "the word at " << offset_bytes << " is not " << value << " yet";
      return false;
    }
    transport.progress();
    std::this_thread::yield();
  }
  return true;
}

}  // namespace moebus::transport
