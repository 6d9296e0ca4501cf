#include "tests/cuda/descriptor_mesh.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <stdexcept>
#include <string>

#include "base/math.hpp"
#include "transport/shm/message.hpp"

namespace moebus::tests {
namespace {

using base::idx;
using transport::MeshMessage;

[[noreturn]] void fail(int rank, int peer, const char* what) {
  throw std::runtime_error("rank " + std::to_string(rank) + ", peer " + std::to_string(peer) + ": " + what);
}

}  // namespace

DescriptorMesh::DescriptorMesh(int num_ranks) : num_ranks_(num_ranks), ends_(idx(num_ranks * num_ranks)) {
  for (int a = 0; a < num_ranks; ++a) {
    for (int b = 0; b < a; ++b) {
      int pair[2];
      if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) fail(a, b, "no pair of sockets");
      end(a, b) = base::UniqueFd(pair[0]);
      end(b, a) = base::UniqueFd(pair[1]);
    }
  }
}

base::UniqueFd& DescriptorMesh::end(int rank, int peer) { return ends_[idx(rank * num_ranks_ + peer)]; }

void DescriptorMesh::give(int rank, int peer, int descriptor) {
  MeshMessage message;
  message.kind = transport::MessageKind::region;
  message.rank = rank;
  if (transport::send_message(end(rank, peer).get(), message, descriptor) != transport::Sent::yes) {
    fail(rank, peer, "the window's descriptor was not sent");
  }
}

base::UniqueFd DescriptorMesh::take(int rank, int peer) {
  const int socket = end(rank, peer).get();
  pollfd wait{socket, POLLIN, 0};
  if (::poll(&wait, 1, 30'000) != 1) fail(rank, peer, "no descriptor came within 30 s");
  MeshMessage message;
  base::UniqueFd descriptor;
  if (transport::receive_message(socket, message, descriptor) != transport::Came::message || message.rank != peer) {
    fail(rank, peer, "something else than a descriptor came");
  }
  return descriptor;
}

}  // namespace moebus::tests
