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
  base::Region local;
  std::vector<std::byte*> peers;  ///< [num_ranks]; own entry = local.data; nullptr = not mapped (remote peer)
};

/// Threads: one caller at a time, but peer_status, which any thread may call.
class Transport {
 public:
  virtual ~Transport() = default;

  [[nodiscard]] virtual std::string_view name() const noexcept = 0;

  /// Allocates `size_bytes` here (zeroed, every page touched, aligned to a page) and maps every peer's, or throws.
  ///
  /// Order:   collective, same size on all ranks; regions live until `deregister` or the transport's end.
  /// Errors:  the same on all ranks, nothing stays allocated: Error{resource_exhausted} no memory;
  ///          Error{invalid_argument} sizes differ; Error{timeout}, Error{peer_lost} name the peer;
  ///          Error{transport_failure}.
  virtual Registration register_memory(std::size_t size_bytes, const base::Deadline& deadline) = 0;

  /// Unmaps a registration here. Local; peers that still map it keep it alive for themselves.
  virtual void deregister(const Registration& registration) noexcept = 0;

  /// Tells whether a peer is still there. Never blocks; cheap enough for a waiting loop's slow side (a few system
  /// calls).
  [[nodiscard]] virtual PeerStatus peer_status(int peer) const noexcept = 0;

  /// Says to all peers that this rank leaves in order; one that goes without it is dead to them. Local, idempotent.
  /// Memory stays registered until the transport's end.
  virtual void close() noexcept = 0;
};

}  // namespace moebus::transport
