// Group: the ranks that exchange tokens, from meeting to parting.
// Room: public verbs · host.

#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>

#include "moebus/config.hpp"

namespace moebus {

namespace engine {
class GroupCore;
}

/// A member's hold on a group. Copies share it; the last one closes it.
///
/// Threads: one caller at a time, per rank. Setting limits is safe from any thread.
class Group {
 public:
  /// Meets `num_ranks - 1` other callers at `uri` and returns this rank's membership, or throws and leaves nothing
  /// behind.
  ///
  /// `inproc://NAME`  ranks are threads of this process.
  /// `local://NAME`   ranks are processes of this user on this machine; nothing is written to disk.
  /// `file://PATH`    the same, meeting through a private file that is removed once all are there.
  /// `tcp://HOST:PORT` rank 0 listens there; all ranks on one machine for now. `options.token` must match.
  ///
  /// Order:   collective: every rank of 0..num_ranks-1 calls it once.
  /// Errors:  Error{invalid_argument} rank, size, uri or token wrong; Error{timeout} names the ranks that did not come;
  ///          Error{unsupported} more than kMaxRanks; Error{transport_failure} no way to reach a peer.
  static Group join(std::string_view uri, int rank, int num_ranks, const GroupOptions& options = {});

  [[nodiscard]] int rank() const noexcept;
  [[nodiscard]] int num_ranks() const noexcept;

  /// Returns the transport in use, "loopback" or "shm".
  [[nodiscard]] std::string_view transport() const noexcept;

  /// Returns how many nodes the ranks say they are on (GroupOptions::host_id), and which one a rank is on: nodes are
  /// numbered by their first rank; -1 for what is no rank.
  [[nodiscard]] int num_nodes() const noexcept;
  [[nodiscard]] int node_of(int rank) const noexcept;

  /// Returns 1 or 2, see GroupOptions::levels.
  [[nodiscard]] int levels() const noexcept;

  /// True if this rank writes the peer's memory itself; otherwise bytes go through the transport.
  [[nodiscard]] bool is_mapped(int peer) const noexcept;

  /// Changes the limits from the next wait on; see GroupOptions. Error{invalid_argument} unless positive.
  void set_arrival_limit(std::chrono::milliseconds limit);
  void set_progress_limit(std::chrono::milliseconds limit);

  /// Waits until every rank is here. Collective. Errors as join; Error{peer_lost}.
  void barrier();

  /// Leaves the group: local, never collective, safe with dead peers. Peers that still need this rank get
  /// Error{peer_lost}. Calls after it throw Error{group_poisoned}. Doing it twice does nothing.
  void close();

 private:
  explicit Group(std::shared_ptr<engine::GroupCore> core) noexcept;
  friend class Exchange;
  std::shared_ptr<engine::GroupCore> core_;
};

}  // namespace moebus
