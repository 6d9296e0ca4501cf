#include "transport/shm/message.hpp"

#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstring>

#include "transport/system_call.hpp"

namespace moebus::transport {
namespace {

/// Room for one descriptor, aligned as the interface wants it.
struct DescriptorSpace {
  alignas(cmsghdr) char bytes[CMSG_SPACE(sizeof(int))];
};

Came judge(ssize_t length, const MeshMessage& message) noexcept {
  if (length == 0) return Came::end;
  if (length < 0) return errno == EAGAIN ? Came::nothing : Came::end;
  const bool is_good = length == sizeof message && message.magic == MeshMessage::kMagic;
  return is_good ? Came::message : Came::wrong;
}

/// A peer that closes with our packets unread resets the connection; that is reported once, before what it sent last.
template <class Receive>
ssize_t receive_past_reset(Receive&& receive) noexcept {
  ssize_t length = receive();
  for (int attempt = 0; attempt < 3 && length < 0 && (errno == EINTR || errno == ECONNRESET); ++attempt)
    length = receive();
  return length;
}

}  // namespace

Sent send_message(int socket, const MeshMessage& message, int descriptor) {
  MeshMessage copy = message;  // the interface takes a pointer to non-const
  iovec part{&copy, sizeof copy};
  msghdr packet{};
  packet.msg_iov = &part;
  packet.msg_iovlen = 1;
  DescriptorSpace space{};
  if (descriptor >= 0) {
    packet.msg_control = space.bytes;
    packet.msg_controllen = sizeof space.bytes;
    cmsghdr* header = CMSG_FIRSTHDR(&packet);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof descriptor);
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  }
  for (;;) {
    if (::sendmsg(socket, &packet, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) return Sent::yes;
    switch (errno) {
      case EINTR:
        continue;
      case EAGAIN:
      case ENOBUFS:
      case ETOOMANYREFS:  // too many descriptors of this user on their way: peers will take some
        return Sent::later;
      case EPIPE:
      case ECONNRESET:
      case ENOTCONN:
        return Sent::peer_gone;
      default:
        throw_system_error("sendmsg", errno);
    }
  }
}

Came receive_message(int socket, MeshMessage& message, base::UniqueFd& descriptor) noexcept {
  iovec part{&message, sizeof message};
  DescriptorSpace space{};
  msghdr packet{};
  const ssize_t length = receive_past_reset([&] {
    packet = {};
    packet.msg_iov = &part;
    packet.msg_iovlen = 1;
    packet.msg_control = space.bytes;
    packet.msg_controllen = sizeof space.bytes;
    return ::recvmsg(socket, &packet, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  });
  const Came came = judge(length, message);
  if (came == Came::nothing || came == Came::end) return came;
  bool has_several = false;
  for (cmsghdr* header = CMSG_FIRSTHDR(&packet); header != nullptr; header = CMSG_NXTHDR(&packet, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    // The room for one is rounded up, so that two fit: each that came is this process's now, and must be closed.
    const std::size_t num = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < num; ++i) {
      int received = -1;
      std::memcpy(&received, CMSG_DATA(header) + i * sizeof received, sizeof received);
      descriptor = base::UniqueFd(received);
    }
    has_several = has_several || num > 1;
  }
  if (has_several) descriptor.reset();
  return has_several || (packet.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0 ? Came::wrong : came;
}

Came peek_message(int socket, MeshMessage& message) noexcept {
  const ssize_t length =
      receive_past_reset([&] { return ::recv(socket, &message, sizeof message, MSG_PEEK | MSG_DONTWAIT); });
  return judge(length, message);
}

}  // namespace moebus::transport
