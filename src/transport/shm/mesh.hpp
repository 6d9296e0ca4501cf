// Mesh: one Unix socket between every two ranks; passes descriptors and notices who left.
// Room: transport · host. Sockets have no files; both ends prove that they know the group and are the same user.

#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "base/deadline.hpp"
#include "base/unique_fd.hpp"
#include "moebus/types.hpp"
#include "transport/token_proof.hpp"
#include "transport/transport.hpp"

namespace moebus::transport {

/// How one rank is reached; exchanged through the store.
struct MeshAddress {
  std::string socket_name;
  Nonce nonce{};  ///< whoever connects shows it, and whoever answers shows the other's
};

/// A descriptor that a peer sent, and the size that it claims; 0 where it claims none.
struct PeerDescriptor {
  base::UniqueFd descriptor;
  std::size_t mapped_bytes = 0;
};

/// Threads: one caller at a time, but status, which any thread may call.
class Mesh {
 public:
  /// Listens under a random name, so that its address can be told to the others.
  Mesh(int rank, int num_ranks);
  ~Mesh();
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  [[nodiscard]] const MeshAddress& address() const noexcept { return address_; }

  /// Connects to all lower ranks and is connected to by all higher ones, in any order in time.
  ///
  /// Order:   after all ranks' addresses are known. Collective.
  /// Errors:  Error{timeout} names the ranks that are not connected; Error{peer_lost}; Error{resource_exhausted}.
  void connect(const std::vector<MeshAddress>& addresses, const base::Deadline& deadline);

  /// Sends `descriptor` to every peer of `peers` ([num_ranks], empty = all) and returns theirs, [num_ranks], all other
  /// entries empty.
  ///
  /// Order:   collective; `exchange_id` is the same on all ranks and grows. a is a peer of b if b is one of a.
  /// Errors:  Error{timeout}, Error{peer_lost} name the peer; Error{transport_failure} a peer sent something else.
  std::vector<PeerDescriptor> exchange(int descriptor,
                                       std::size_t mapped_bytes,
                                       std::uint64_t exchange_id,
                                       const base::Deadline& deadline,
                                       const std::vector<bool>& peers = {});

  /// See Transport::peer_status.
  [[nodiscard]] PeerStatus status(int peer) const noexcept;

  /// Tells all peers that this rank leaves in order.
  void say_goodbye() noexcept;

 private:
  struct Peer {
    base::UniqueFd socket;
    base::UniqueFd process;  ///< pidfd; closed where the system gives none or the peer is a thread of this process
  };

  struct Connecting;

  void connect_to_lower(Connecting& connecting);
  void accept_higher(Connecting& connecting);
  void read_answers(Connecting& connecting);
  void adopt(int peer, base::UniqueFd socket);
  void wait_for_news(const Connecting& connecting, const base::Deadline& deadline) const;
  bool send_descriptor(int peer, int descriptor, std::size_t mapped_bytes, std::uint64_t exchange_id);
  bool receive_descriptor(int peer, std::uint64_t exchange_id, PeerDescriptor& received);
  [[noreturn]] void throw_lost(int peer) const;
  void remember(int peer, PeerState state) const noexcept;

  const int rank_;
  const int num_ranks_;
  MeshAddress address_;
  base::UniqueFd listener_;
  std::vector<Peer> peers_;                                            ///< [num_ranks], own entry empty
  mutable std::array<std::atomic<PeerState>, kMaxRanks> last_seen_{};  ///< what is not alive stays so
};

}  // namespace moebus::transport
