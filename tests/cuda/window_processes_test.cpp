// Windows between ranks that are processes. This process never uses CUDA, so that it can fork.

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <stdexcept>
#include <vector>

#include "base/math.hpp"
#include "tests/cuda/gpu_probe.hpp"
#include "tests/cuda/window_ranks.hpp"
#include "tests/support/ranks.hpp"
#include "transport/shm/message.hpp"

namespace moebus::tests {
namespace {

using base::idx;
using transport::Came;
using transport::MeshMessage;

/// One pair of sockets for each pair of ranks.
class Sockets {
 public:
  explicit Sockets(int num_ranks) : num_ranks_(num_ranks), ends_(idx(num_ranks * num_ranks)) {
    for (int a = 0; a < num_ranks; ++a) {
      for (int b = 0; b < a; ++b) {
        int pair[2];
        if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) throw std::runtime_error("socketpair");
        end(a, b) = base::UniqueFd(pair[0]);
        end(b, a) = base::UniqueFd(pair[1]);
      }
    }
  }

  base::UniqueFd& end(int rank, int peer) { return ends_[idx(rank * num_ranks_ + peer)]; }

 private:
  int num_ranks_;
  std::vector<base::UniqueFd> ends_;
};

base::UniqueFd take_from(int socket, int peer) {
  pollfd wait{socket, POLLIN, 0};
  if (::poll(&wait, 1, 30'000) != 1) throw std::runtime_error("peer " + std::to_string(peer) + " gives no descriptor");
  MeshMessage message;
  base::UniqueFd descriptor;
  if (transport::receive_message(socket, message, descriptor) != Came::message || message.rank != peer) {
    throw std::runtime_error("peer " + std::to_string(peer) + " gave something else");
  }
  return descriptor;
}

class WindowsOfProcesses : public ::testing::TestWithParam<int> {};

TEST_P(WindowsOfProcesses, AreWrittenAndReadByEveryRank) {
  MOEBUS_NEEDS_GPU();
  const int num_ranks = GetParam();
  MeetingPlace place(num_ranks);
  Sockets sockets(num_ranks);
  WindowMeeting meeting;
  meeting.num_ranks = num_ranks;
  meeting.meet = [&] { place.meet(); };
  meeting.give = [&](int rank, int peer, int descriptor) {
    MeshMessage message;
    message.kind = transport::MessageKind::region;
    message.rank = rank;
    if (transport::send_message(sockets.end(rank, peer).get(), message, descriptor) != transport::Sent::yes) {
      throw std::runtime_error("the descriptor was not sent");
    }
  };
  meeting.take = [&](int rank, int peer) { return take_from(sockets.end(rank, peer).get(), peer); };
  EXPECT_TRUE(all_ok(run_as_processes(num_ranks, [&](int rank) { share_windows(meeting, rank); })));
}

INSTANTIATE_TEST_SUITE_P(Ranks, WindowsOfProcesses, ::testing::Values(2, 4, 8), ::testing::PrintToStringParamName());

}  // namespace
}  // namespace moebus::tests
