// Packets on the sockets between ranks of one machine, with and without a descriptor, and the cards that lead there.

#include <sys/socket.h>

#include "moebus/error.hpp"
#include "tests/fuzz/fuzz_input.hpp"
#include "transport/shm/card.hpp"
#include "transport/shm/memory.hpp"
#include "transport/shm/message.hpp"

namespace moebus::transport {
namespace {

struct SocketPair {
  SocketPair() { MOEBUS_ASSERT(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0); }

  ~SocketPair() {
    ::close(ends[0]);
    ::close(ends[1]);
  }

  SocketPair(const SocketPair&) = delete;
  SocketPair& operator=(const SocketPair&) = delete;

  int ends[2];
};

void check_card(std::string_view payload) {
  try {
    const Card card = parse_card(payload);
    MOEBUS_ASSERT(!card.address.socket_name.empty() && card.address.socket_name.size() <= 100);
    MOEBUS_ASSERT(to_payload(card) == payload);
  } catch (const Error& error) {
    MOEBUS_ASSERT(error.code() == ErrorCode::transport_failure);
  }
}

/// A region of any claimed size: it is mapped only if it is what it says, and sealed.
void check_region(const MeshMessage& message, const base::UniqueFd& descriptor) {
  try {
    const Mapping mapping = map_peer_memory(descriptor.get(), message.mapped_bytes, 64);
    MOEBUS_ASSERT(mapping.data() == nullptr || mapping.size_bytes() == message.mapped_bytes);
  } catch (const Error& error) {
    MOEBUS_ASSERT(error.code() == ErrorCode::transport_failure);
  }
}

void check_packet(std::string_view packet, bool has_descriptor) {
  static const SocketPair pair;
  static const fuzz::InputFile file;
  const base::UniqueFd sent(::open(file.path().c_str(), O_RDONLY | O_CLOEXEC));
  iovec part{const_cast<char*>(packet.data()), packet.size()};
  alignas(cmsghdr) char space[CMSG_SPACE(sizeof(int))] = {};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (has_descriptor) {
    header.msg_control = space;
    header.msg_controllen = sizeof space;
    cmsghdr* control = CMSG_FIRSTHDR(&header);
    control->cmsg_level = SOL_SOCKET;
    control->cmsg_type = SCM_RIGHTS;
    control->cmsg_len = CMSG_LEN(sizeof(int));
    const int number = sent.get();
    std::memcpy(CMSG_DATA(control), &number, sizeof number);
  }
  MOEBUS_ASSERT(::sendmsg(pair.ends[0], &header, MSG_NOSIGNAL) == static_cast<ssize_t>(packet.size()));
  MeshMessage message;
  base::UniqueFd descriptor;
  const Came came = receive_message(pair.ends[1], message, descriptor);
  // An empty packet looks like the end.
  MOEBUS_ASSERT(came != Came::nothing && (came != Came::end || packet.empty()));
  if (came != Came::message) return;
  MOEBUS_ASSERT(packet.size() == sizeof message && std::memcmp(&message, packet.data(), packet.size()) == 0);
  MOEBUS_ASSERT(descriptor.is_open() == has_descriptor);
  if (has_descriptor) check_region(message, descriptor);
}

}  // namespace
}  // namespace moebus::transport

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t num_bytes) {
  moebus::fuzz::FuzzInput input(bytes, std::min<std::size_t>(num_bytes, 1024));
  const bool has_descriptor = input.flip();
  const std::string_view rest = input.rest();
  moebus::transport::check_card(rest);
  moebus::transport::check_packet(rest, has_descriptor);
  return 0;
}
