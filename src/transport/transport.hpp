// Transport: carries bytes between ranks and says who is still there. It knows no tokens and no experts.
// Room: transport · host.
// Source: [engines-note] section 4: what five engines have in common.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/deadline.hpp"
#include "base/region.hpp"
#include "base/unique_fd.hpp"
#include "sync/atomics.hpp"

namespace moebus::transport {

/// What is known of a peer, without asking it anything.
enum class PeerState : std::uint8_t {
  alive,   ///< no sign of the contrary
  closed,  ///< left in order
  dead,    ///< its process (or thread's group) is gone
};

struct PeerStatus {
  PeerState state = PeerState::alive;
  const char* reason = "";  ///< static text, e.g. "process exited (pidfd)"
};

/// Memory that this rank registered, and where its peers' regions of the same registration are visible here.
struct Registration {
  std::uint32_t id = 0;  ///< the same on all ranks
  base::Region local;
  std::vector<std::byte*> peers;  ///< [num_ranks]; own entry = local.data; nullptr = not mapped (remote peer)
};

/// A place in a peer's registered memory; regions of one registration are equally large everywhere.
struct RemoteAddress {
  std::uint32_t registration = 0;
  std::size_t offset_bytes = 0;
};

/// What a transport may do with peers: whose memory it may show.
struct ConnectOptions {
  std::vector<bool> may_map;  ///< [num_ranks]; empty = everybody's. Symmetric: a may map b if b may map a
};

/// Moves bytes to peers. Mapped peers are written by whoever wants to; for all others there is put, in this order:
///
/// - Puts are not ordered: neither two of them, nor the bytes of one, nor a put and a signal, to one peer or to
/// several.
///   They may travel on several tracks and overtake each other.
/// - Whoever sees the value that put_signal writes sees that put's bytes; of earlier puts it says nothing.
/// - fence(peer): everything started towards the peer before is visible there before anything started after. Signals to
/// one
///   slot need it between them too, or an older value may come last.
/// - A slot is one aligned 64-bit word with one writer; it is written whole, and read with sync::load_acquire.
/// - flush says that sources may be reused, and nothing about the peer. Only what the peer answers tells that it has
/// seen.
/// - Puts to a peer that is gone go nowhere; peer_status tells. Nothing here waits longer than its deadline.
///
/// Sources lie in memory registered here and stay as they are until flushed; signal values are taken at once.
///
/// Threads: one caller at a time, but peer_status, which any thread may call.
class Transport {
 public:
  virtual ~Transport() = default;

  [[nodiscard]] virtual std::string_view name() const noexcept = 0;

  /// Allocates `size_bytes` here (zeroed, every page touched, aligned to a page) and takes hold of every peer's, or
  /// throws. Ids count from 0 and are never given again.
  ///
  /// Order:   collective, same size on all ranks; regions live until `deregister` or the transport's end.
  /// Errors:  the same on all ranks, nothing stays allocated: Error{resource_exhausted} no memory;
  ///          Error{invalid_argument} sizes differ; Error{timeout}, Error{peer_lost} name the peer;
  ///          Error{transport_failure}.
  virtual Registration register_memory(std::size_t size_bytes, const base::Deadline& deadline) = 0;

  /// Unmaps a registration here. Local; peers that still map it keep it alive for themselves.
  virtual void deregister(const Registration& registration) noexcept = 0;

  /// Hands `descriptor` to every peer that may map this rank's memory and returns theirs, [num_ranks]. Each belongs to
  /// the caller and is closed in programs that this process executes; the own entry and those of peers that this rank
  /// may not map are not open. What a descriptor is good for is not looked at: whoever maps it checks it.
  ///
  /// `descriptor` stays the caller's, who may close it when this has returned or thrown: peers have duplicates of their
  /// own, of the same open file.
  ///
  /// Order:   collective.
  /// Errors:  the same on all ranks, nothing stays open: Error{invalid_argument} a rank's descriptor is not open;
  ///          Error{resource_exhausted} no descriptors left; Error{timeout}, Error{peer_lost} name the peer;
  ///          Error{transport_failure}; Error{unsupported} this transport cannot pass descriptors.
  virtual std::vector<base::UniqueFd> exchange_descriptors(int descriptor, const base::Deadline& deadline) = 0;

  /// Starts to copy `size_bytes` from `source` to the peer.
  virtual void put(int peer, const RemoteAddress& sink, const std::byte* source, std::size_t size_bytes) noexcept = 0;

  /// The same, then writes `value` into `slot` of the peer. `size_bytes` may be 0: a signal alone.
  virtual void put_signal(int peer,
                          const RemoteAddress& sink,
                          const std::byte* source,
                          std::size_t size_bytes,
                          const RemoteAddress& slot,
                          sync::Word value) noexcept = 0;

  virtual void fence(int peer) noexcept = 0;

  /// Returns how many puts (signals included) this rank has started; a ticket for flush.
  [[nodiscard]] virtual std::uint64_t num_started() const noexcept = 0;

  /// Waits until the sources of the first `ticket` puts may be reused; false if the deadline came first.
  [[nodiscard]] virtual bool flush(std::uint64_t ticket, const base::Deadline& deadline) noexcept = 0;

  /// Lets puts move on, here and from peers, where nobody else does that. Called again and again by whoever waits;
  /// cheap when there is nothing to do. A bounded wait on a slot is a loop of load_acquire and progress with a deadline
  /// (engine).
  virtual void progress() noexcept = 0;

  /// Tells whether a peer is still there. Never blocks; cheap enough for a waiting loop's slow side (a few system
  /// calls).
  [[nodiscard]] virtual PeerStatus peer_status(int peer) const noexcept = 0;

  /// Says to all peers that this rank leaves in order; one that goes without it is dead to them. Local, idempotent.
  /// Memory stays registered until the transport's end.
  virtual void close() noexcept = 0;
};

}  // namespace moebus::transport
