#include "transport/shm/mesh.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <memory>

#include "base/math.hpp"
#include "moebus/error.hpp"
#include "tests/support/ranks.hpp"
#include "transport/shm/message.hpp"

namespace moebus::transport {
namespace {

using base::Deadline;
using std::chrono_literals::operator""ms;
using std::chrono_literals::operator""s;
using ::testing::HasSubstr;

/// The two ends of one connection.
struct SocketPair {
  base::UniqueFd left;
  base::UniqueFd right;

  SocketPair() {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    left = base::UniqueFd(ends[0]);
    right = base::UniqueFd(ends[1]);
  }
};

base::UniqueFd connect_to(const std::string& name) {
  base::UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_un un{};
  un.sun_family = AF_UNIX;
  std::memcpy(un.sun_path + 1, name.data(), name.size());
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  EXPECT_EQ(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&un), size), 0);
  return socket;
}

TEST(MeshMessage, CarriesADescriptorThatIsNotInherited) {
  const SocketPair pair;
  MeshMessage sent;
  sent.kind = MessageKind::region;
  sent.mapped_bytes = 123;
  ASSERT_EQ(send_message(pair.left.get(), sent, pair.left.get()), Sent::yes);
  MeshMessage received;
  base::UniqueFd descriptor;
  ASSERT_EQ(receive_message(pair.right.get(), received, descriptor), Came::message);
  EXPECT_EQ(received.mapped_bytes, 123U);
  ASSERT_TRUE(descriptor.is_open());
  EXPECT_NE(::fcntl(descriptor.get(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST(MeshMessage, IsWrongInAnotherLengthOrWithoutItsMagic) {
  const SocketPair pair;
  MeshMessage received;
  base::UniqueFd descriptor;
  EXPECT_EQ(receive_message(pair.right.get(), received, descriptor), Came::nothing);
  ASSERT_EQ(::send(pair.left.get(), "short", 5, 0), 5);
  EXPECT_EQ(receive_message(pair.right.get(), received, descriptor), Came::wrong);
  const std::string zeros(sizeof(MeshMessage), '\0');
  ASSERT_EQ(::send(pair.left.get(), zeros.data(), zeros.size(), 0), 64);
  EXPECT_EQ(receive_message(pair.right.get(), received, descriptor), Came::wrong);
  const std::string longer(sizeof(MeshMessage) + 1, 'M');
  ASSERT_EQ(::send(pair.left.get(), longer.data(), longer.size(), 0), 65);
  EXPECT_EQ(receive_message(pair.right.get(), received, descriptor), Came::wrong);
}

TEST(MeshMessage, IsWrongWithSeveralDescriptorsAndKeepsNone) {
  const SocketPair pair;
  MeshMessage sent;
  iovec part{&sent, sizeof sent};
  alignas(cmsghdr) char space[CMSG_SPACE(2 * sizeof(int))] = {};
  msghdr packet{};
  packet.msg_iov = &part;
  packet.msg_iovlen = 1;
  packet.msg_control = space;
  packet.msg_controllen = sizeof space;
  cmsghdr* header = CMSG_FIRSTHDR(&packet);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(2 * sizeof(int));
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const base::UniqueFd read_end(ends[0]);
  const int both[2] = {ends[1], ends[1]};
  std::memcpy(CMSG_DATA(header), both, sizeof both);
  ASSERT_EQ(::sendmsg(pair.left.get(), &packet, 0), 64);
  ::close(ends[1]);
  MeshMessage received;
  base::UniqueFd descriptor;
  EXPECT_EQ(receive_message(pair.right.get(), received, descriptor), Came::wrong);
  EXPECT_FALSE(descriptor.is_open());
  // Nobody holds the pipe's other end any more: it ends.
  char byte;
  ::fcntl(read_end.get(), F_SETFL, O_NONBLOCK);
  EXPECT_EQ(::read(read_end.get(), &byte, 1), 0);
}

TEST(MeshMessage, ShowsTheLastWordsOfAPeerThatLeftOursUnread) {
  SocketPair pair;
  MeshMessage goodbye;
  goodbye.kind = MessageKind::goodbye;
  ASSERT_EQ(send_message(pair.left.get(), goodbye, -1), Sent::yes);
  ASSERT_EQ(send_message(pair.right.get(), goodbye, -1), Sent::yes);
  pair.right.reset();  // with our goodbye unread: the system reports a reset first
  MeshMessage seen;
  EXPECT_EQ(peek_message(pair.left.get(), seen), Came::message);
  EXPECT_EQ(seen.kind, MessageKind::goodbye);
  EXPECT_EQ(send_message(pair.left.get(), goodbye, -1), Sent::peer_gone);
}

TEST(Mesh, ConnectsThoughStrangersKnockAndStaySilent) {
  Mesh low(0, 2);
  Mesh high(1, 2);
  const std::vector<MeshAddress> addresses{low.address(), high.address()};
  std::vector<base::UniqueFd> strangers;
  for (int i = 0; i < 20; ++i) strangers.push_back(connect_to(low.address().socket_name));
  MeshMessage guess;
  guess.kind = MessageKind::hello;
  guess.rank = 1;
  ASSERT_EQ(send_message(strangers[0].get(), guess, -1), Sent::yes);  // the right words without the nonce
  ASSERT_EQ(::send(strangers[1].get(), "hello", 5, 0), 5);
  EXPECT_TRUE(tests::all_ok(tests::run_as_threads(2, [&](int rank) {
    Mesh& own = rank == 0 ? low : high;
    own.connect(addresses, Deadline(20s));
    const auto received = own.exchange(strangers[2].get(), 77, 1, Deadline(20s));
    EXPECT_EQ(received[base::idx(1 - rank)].mapped_bytes, 77U);
  })));
  EXPECT_EQ(low.status(1).state, PeerState::alive);
}

TEST(Mesh, NamesThePeersThatDoNotConnectInTime) {
  Mesh low(0, 3);
  try {
    low.connect({low.address(), {}, {}}, Deadline(50ms));
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::timeout);
    EXPECT_THAT(error.what(), HasSubstr("ranks 1, 2"));
  }
}

TEST(Mesh, NamesAPeerThatNoLongerListens) {
  const MeshAddress gone = Mesh(0, 2).address();
  Mesh high(1, 2);
  try {
    high.connect({gone, high.address()}, Deadline(20s));
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::peer_lost);
    EXPECT_THAT(error.what(), HasSubstr("lost rank 0"));
  }
}

TEST(Mesh, RefusesAListenerThatDoesNotKnowTheGroup) {
  Mesh impostor(0, 2);
  Mesh high(1, 2);
  // The impostor is given another nonce for rank 1 than rank 1 has: it answers, but cannot show that it read the store.
  MeshAddress misread = high.address();
  misread.nonce = random_nonce();
  const auto outcomes = tests::run_as_threads(2, [&](int rank) {
    if (rank == 0) impostor.connect({impostor.address(), misread}, Deadline(20s));
    if (rank == 1) high.connect({impostor.address(), high.address()}, Deadline(20s));
  });
  EXPECT_TRUE(outcomes[0].is_ok()) << outcomes[0].message;
  EXPECT_THAT(outcomes[1].message, HasSubstr("does not belong to the group"));
}

}  // namespace
}  // namespace moebus::transport
