// Mesh message: what travels on the sockets between ranks of one machine, one per packet.
// Room: transport · host.

#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "base/unique_fd.hpp"
#include "transport/token_proof.hpp"

namespace moebus::transport {

enum class MessageKind : std::uint32_t { hello = 1, answer, region, goodbye };

/// Both ends are the same build on the same machine, so the layout is the struct's.
struct MeshMessage {
  std::uint32_t magic = kMagic;
  MessageKind kind{};
  std::int32_t rank = -1;  ///< of the sender
  std::uint32_t reserved = 0;
  std::uint64_t exchange_id = 0;   ///< region
  std::uint64_t mapped_bytes = 0;  ///< region
  Nonce nonce{};                   ///< hello, answer: of the receiver

  static constexpr std::uint32_t kMagic = 0x4D45534D;
};

static_assert(sizeof(MeshMessage) == 64);
static_assert(std::is_trivially_copyable_v<MeshMessage>);
static_assert(std::has_unique_object_representations_v<MeshMessage>);  // no padding that would carry old memory out

enum class Sent { yes, later, peer_gone };

/// Sends one packet without waiting; with a descriptor unless it is -1.
///
/// Errors:  Error{transport_failure}.
Sent send_message(int socket, const MeshMessage& message, int descriptor);

enum class Came { message, nothing, wrong, end };

/// Takes one packet without waiting. `descriptor` receives the one that came with it, if any; more than one is
/// `wrong`.
Came receive_message(int socket, MeshMessage& message, base::UniqueFd& descriptor) noexcept;

/// Looks at the next packet without taking it.
Came peek_message(int socket, MeshMessage& message) noexcept;

}  // namespace moebus::transport
