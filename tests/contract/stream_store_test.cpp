// What a store on sockets does about those who do not belong to the group, and about what earlier groups left behind.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <fstream>
#include <thread>

#include "base/math.hpp"
#include "moebus/error.hpp"
#include "tests/support/errors.hpp"
#include "tests/support/ranks.hpp"
#include "transport/rendezvous.hpp"
#include "transport/rendezvous_file.hpp"
#include "transport/stream_frame.hpp"

namespace moebus::transport {
namespace {

using base::Deadline;
using std::chrono_literals::operator""ms;
using std::chrono_literals::operator""s;
using ::testing::AllOf;
using ::testing::HasSubstr;
using tests::all_ok;
using tests::message_of;

/// A group of two at a TCP port: rank 0 waits in a thread while the test plays strangers, then rank 1 comes.
class StreamStore : public ::testing::Test {
 protected:
  StreamStore() {
    address_.host = "127.0.0.1";
    // The port is taken here, so that nobody else can have it in between.
    for (address_.port = 20000 + ::getpid() % 20000;; ++address_.port) {
      try {
        listener_ = listen_stream(address_, true);
        break;
      } catch (const Error&) {
      }
    }
  }

  std::unique_ptr<Store> host(std::chrono::milliseconds limit = 20s) {
    return host_stream(std::move(listener_), 2, {"secret", false}, Deadline(limit));
  }

  std::unique_ptr<Store> join(int rank,
                              int num_ranks,
                              const std::string& token,
                              std::chrono::milliseconds limit = 20s) {
    return join_stream([&] { return address_; }, "here", rank, num_ranks, {token, false}, Deadline(limit));
  }

  /// Runs rank 0 and, beside it, `strangers` and then rank 1; the group must come together all the same.
  void expect_group_meets_despite(const std::function<void()>& strangers) {
    EXPECT_TRUE(all_ok(tests::run_as_threads(2, [&](int rank) {
      if (rank == 1) strangers();
      const auto store = rank == 0 ? host() : join(1, 2, "secret");
      EXPECT_EQ(store->all_gather("go", std::to_string(rank), Deadline(20s))[1], "1");
    })));
  }

  base::UniqueFd connect() { return connect_stream(address_, true, Deadline(5s)).socket; }

  StreamAddress address_;
  StreamListener listener_;
};

void send_text(const base::UniqueFd& socket, std::string_view text) {
  EXPECT_EQ(::send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
}

/// Returns what comes until the other side closes, or until a limit.
std::string receive_all(const base::UniqueFd& socket) {
  std::string text;
  char buffer[256];
  pollfd poll{socket.get(), POLLIN, 0};
  while (::poll(&poll, 1, 5000) == 1) {
    const ssize_t n = ::recv(socket.get(), buffer, sizeof buffer, 0);
    if (n <= 0) break;
    text.append(buffer, static_cast<std::size_t>(n));
  }
  return text;
}

std::string header_of(FrameType type, std::size_t payload_bytes) {
  const FrameHeader header = make_frame_header(type, payload_bytes);
  return {header.data(), header.size()};
}

TEST_F(StreamStore, TellsAStrangerThatItIsOneAndGoesOnWaiting) {
  expect_group_meets_despite([&] {
    const base::UniqueFd stranger = connect();
    send_text(stranger, "GET / HTTP/1.1\r\nHost: here\r\n\r\n");
    EXPECT_THAT(receive_all(stranger), HasSubstr("not of moebus"));
  });
}

TEST_F(StreamStore, IsNotHeldUpByStrangersThatSayNothing) {
  std::vector<base::UniqueFd> silent;
  expect_group_meets_despite([&] {
    for (int i = 0; i < 200; ++i) silent.push_back(connect());
    send_text(silent[199], header_of(FrameType::hello, 100) + "half a greeting");
  });
}

TEST_F(StreamStore, RefusesAGreetingThatClaimsToBeHuge) {
  expect_group_meets_despite([&] {
    const base::UniqueFd stranger = connect();
    send_text(stranger, header_of(FrameType::hello, 0xFFFFFFFF));
    EXPECT_THAT(receive_all(stranger), AllOf(HasSubstr("4294967295 bytes"), HasSubstr("at most 1024")));
  });
}

TEST_F(StreamStore, RefusesAnotherProtocolVersion) {
  expect_group_meets_despite([&] {
    const base::UniqueFd stranger = connect();
    std::string header = header_of(FrameType::hello, 0);
    header[4] = 99;
    send_text(stranger, header);
    EXPECT_THAT(receive_all(stranger), AllOf(HasSubstr("protocol 99"), HasSubstr("one version of moebus")));
  });
}

TEST_F(StreamStore, RefusesAnotherVersionOfTheLibrary) {
  expect_group_meets_despite([&] {
    const base::UniqueFd stranger = connect();
    const std::string payload = to_payload(Hello{"9.9.9\n", 1, 2, random_nonce()});
    send_text(stranger, header_of(FrameType::hello, payload.size()) + payload);
    EXPECT_THAT(receive_all(stranger), AllOf(HasSubstr("9.9.9?"), HasSubstr(library_version())));
  });
}

TEST_F(StreamStore, RefusesAProofThatIsNotOne) {
  expect_group_meets_despite([&] {
    const base::UniqueFd stranger = connect();
    const std::string payload = to_payload(Hello{library_version(), 1, 2, random_nonce()});
    send_text(stranger, header_of(FrameType::hello, payload.size()) + payload);
    send_text(stranger, header_of(FrameType::proof, sizeof(Proof)) + std::string(sizeof(Proof), 'x'));
    EXPECT_THAT(receive_all(stranger), HasSubstr("token is not that of rank 0"));
  });
}

TEST_F(StreamStore, TurnsAWrongTokenAwayWithoutHarmToTheGroup) {
  expect_group_meets_despite([&] {
    EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { join(1, 2, "wrong"); }),
                AllOf(HasSubstr("turned rank 1 away"), HasSubstr("GroupOptions::token")));
    EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { join(1, 2, ""); }), HasSubstr("token"));
  });
}

TEST_F(StreamStore, TurnsAnotherSizeAndRankZeroAway) {
  expect_group_meets_despite([&] {
    EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { join(1, 3, "secret"); }),
                AllOf(HasSubstr("num_ranks 3"), HasSubstr("given 2")));
    EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { join(0, 2, "secret"); }), HasSubstr("rank 0 is here"));
  });
}

TEST_F(StreamStore, LetsARankThatWentAwayBeforeAllWereInComeBack) {
  EXPECT_TRUE(all_ok(tests::run_as_threads(2, [&](int rank) {
    if (rank == 1) {
      const base::UniqueFd first = connect();
      const Hello hello{library_version(), 1, 2, random_nonce()};
      const std::string payload = to_payload(hello);
      send_text(first, header_of(FrameType::hello, payload.size()) + payload);
      // Goes away in the middle of the greeting; the next attempt is the real one.
    }
    const auto store = rank == 0 ? host() : join(1, 2, "secret");
    EXPECT_EQ(store->all_gather("go", "", Deadline(20s)).size(), 2U);
  })));
}

TEST_F(StreamStore, SaysThatSomethingElseListensWhereRankZeroShould) {
  EXPECT_TRUE(all_ok(tests::run_as_threads(2, [&](int rank) {
    if (rank == 1) {
      EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { join(1, 2, "secret"); }), HasSubstr("not of moebus"));
      return;
    }
    pollfd poll{listener_.sockets[0].get(), POLLIN, 0};
    ASSERT_EQ(::poll(&poll, 1, 5000), 1);
    const base::UniqueFd socket = accept_stream(listener_.sockets[0].get(), false);
    send_text(socket, "220 mail.example.org ESMTP\r\n");
    receive_all(socket);
  })));
}

TEST_F(StreamStore, DoesNotTrustAHubThatDoesNotKnowTheToken) {
  EXPECT_TRUE(all_ok(tests::run_as_threads(2, [&](int rank) {
    if (rank == 1) {
      EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { join(1, 2, "secret"); }),
                  HasSubstr("does not know the group's token"));
      return;
    }
    pollfd poll{listener_.sockets[0].get(), POLLIN, 0};
    ASSERT_EQ(::poll(&poll, 1, 5000), 1);
    const base::UniqueFd socket = accept_stream(listener_.sockets[0].get(), false);
    send_text(socket, header_of(FrameType::challenge, 32) + std::string(32, 'n'));
    send_text(socket, header_of(FrameType::welcome, 32) + std::string(32, 'p'));
    receive_all(socket);
  })));
}

TEST(JoinRendezvous, RefusesAnAddressBeyondLoopbackWithoutAToken) {
  const auto join = [](int rank) { join_rendezvous("tcp://0.0.0.0:29999", rank, 2, {"", false}, Deadline(1s)); };
  for (const int rank : {0, 1}) {
    EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { join(rank); }),
                AllOf(HasSubstr("no token"), HasSubstr("GroupOptions::token"), HasSubstr("127.0.0.1")));
  }
}

TEST(JoinRendezvous, MeetsOverIpv6) {
  base::UniqueFd probe(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in6 loopback{};
  loopback.sin6_family = AF_INET6;
  loopback.sin6_addr = in6addr_loopback;
  socklen_t size = sizeof loopback;
  if (!probe.is_open() || ::bind(probe.get(), reinterpret_cast<const sockaddr*>(&loopback), size) != 0) {
    GTEST_SKIP() << "this machine has no IPv6 loopback";
  }
  ASSERT_EQ(::getsockname(probe.get(), reinterpret_cast<sockaddr*>(&loopback), &size), 0);
  const std::string uri = "tcp://[::1]:" + std::to_string(ntohs(loopback.sin6_port));
  probe.reset();
  EXPECT_TRUE(
      all_ok(tests::run_as_threads(2, [&](int rank) { join_rendezvous(uri, rank, 2, {"", false}, Deadline(20s)); })));
}

/// A private folder for file:// addresses.
class FileRendezvous : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "moebus-file-XXXXXX";
    ASSERT_NE(::mkdtemp(folder_.data()), nullptr);
    path_ = folder_ + "/meeting";
  }

  void TearDown() override { EXPECT_EQ(::rmdir(folder_.c_str()), 0) << "something was left behind"; }

  void meet(int num_ranks) {
    EXPECT_TRUE(all_ok(tests::run_as_threads(num_ranks, [&](int rank) {
      join_rendezvous("file://" + path_, rank, num_ranks, {"", false}, Deadline(20s));
    })));
  }

  std::string folder_;
  std::string path_;
};

TEST_F(FileRendezvous, ReplacesAFileThatAKilledGroupLeftBehind) {
  const auto outcomes = tests::run_as_processes(1, [&](int) {
    const RendezvousFile file(path_, "moebus-nobody-listens");
    ::raise(SIGKILL);
  });
  EXPECT_EQ(outcomes[0].signal, SIGKILL);
  EXPECT_EQ(read_rendezvous_file(path_), "moebus-nobody-listens");
  meet(3);
}

TEST_F(FileRendezvous, RefusesAPathWhereAnotherGroupMeets) {
  EXPECT_TRUE(all_ok(tests::run_as_threads(2, [&](int thread) {
    if (thread == 0) {
      message_of(ErrorCode::timeout, [&] { join_rendezvous("file://" + path_, 0, 2, {"", false}, Deadline(1s)); });
      return;
    }
    const Deadline deadline(20s);
    while (!read_rendezvous_file(path_) && !deadline.is_over()) std::this_thread::sleep_for(1ms);
    EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                           [&] { join_rendezvous("file://" + path_, 0, 2, {"", false}, Deadline(20s)); }),
                HasSubstr("another group is meeting there"));
  })));
}

TEST_F(FileRendezvous, RefusesAFileThatIsNotOurs) {
  std::ofstream(path_) << "precious\n";
  ::chmod(path_.c_str(), 0600);
  for (const int rank : {0, 1}) {
    EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                           [&] { join_rendezvous("file://" + path_, rank, 2, {"", false}, Deadline(5s)); }),
                AllOf(HasSubstr(path_), HasSubstr("not made by moebus")));
  }
  std::string text;
  std::ifstream(path_) >> text;
  EXPECT_EQ(text, "precious");
  ::unlink(path_.c_str());
}

}  // namespace
}  // namespace moebus::transport
