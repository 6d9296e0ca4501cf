// Groups: joining with wrong arguments, environments that differ, limits, and life after close.

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <set>
#include <string>

#include "tests/support/exchange_run.hpp"

namespace moebus::tests {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

GroupOptions short_options() {
  GroupOptions options = quiet_options();
  options.join_limit = std::chrono::milliseconds(400);
  return options;
}

TEST(Join, RefusesAWrongRankOrSize) {
  const std::string uri = unique_uri(false);
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, 2, [&] { Group::join(uri, 2, 2); }),
              AllOf(HasSubstr("rank is 2"), HasSubstr("0 to 1")));
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, -1, [&] { Group::join(uri, -1, 2); }), HasSubstr("rank is -1"));
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, 0, [&] { Group::join(uri, 0, 0); }), HasSubstr("num_ranks is 0"));
  EXPECT_THAT(error_of(ErrorCode::unsupported, 0, [&] { Group::join(uri, 0, kMaxRanks + 1); }),
              AllOf(HasSubstr("65"), HasSubstr("64")));
}

TEST(Join, RefusesAWrongAddressAndSaysWhatIsAllowed) {
  for (const char* const uri : {"",
                                "name",
                                "http://x",
                                "inproc://",
                                "local://a b",
                                "file://relative",
                                "file:///folder/",
                                "tcp://host",
                                "tcp://host:0",
                                "tcp://host:65536",
                                "tcp://:80",
                                "tcp://host:port"}) {
    SCOPED_TRACE(uri);
    try {
      Group::join(uri, 0, 1, short_options());
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument) << error.what();
      EXPECT_THAT(error.what(), AllOf(HasSubstr("inproc://"), HasSubstr("tcp://")));
    }
  }
}

TEST(Join, RefusesAnUnknownTransport) {
  GroupOptions options = short_options();
  options.transport = "carrier-pigeon";
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, -1, [&] { Group::join(unique_uri(false), 0, 1, options); }),
              AllOf(HasSubstr("carrier-pigeon"), HasSubstr("loopback"), HasSubstr("shm")));
}

TEST(Join, RefusesLimitsThatAreNotPositive) {
  for (auto limit : {&GroupOptions::arrival_limit, &GroupOptions::progress_limit}) {
    GroupOptions options = short_options();
    options.*limit = std::chrono::milliseconds(0);
    EXPECT_THAT(error_of(ErrorCode::invalid_argument, -1, [&] { Group::join(unique_uri(false), 0, 1, options); }),
                HasSubstr("limit"));
  }
}

TEST(Join, NamesTheRanksThatDidNotCome) {
  for (const bool as_processes : {false, true}) {
    const std::string uri = unique_uri(as_processes);
    const auto body = [&](int rank) {
      try {
        Group::join(uri, rank, 3, short_options());
        ADD_FAILURE() << "nothing was thrown";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::timeout) << error.what();
        EXPECT_THAT(error.what(), HasSubstr("2"));
      }
    };
    expect_ok(as_processes ? run_as_processes(2, body) : run_as_threads(2, body));
  }
}

TEST(Join, RefusesSizesThatDiffer) {
  for (const bool as_processes : {false, true}) {
    const std::string uri = unique_uri(as_processes);
    const auto body = [&](int rank) {
      GroupOptions options = quiet_options();
      options.join_limit = std::chrono::seconds(3);
      try {
        Group::join(uri, rank, rank == 0 ? 2 : 3, options);
        ADD_FAILURE() << "nothing was thrown";
      } catch (const Error& error) {
        // Among processes rank 0 turns the other away, goes on waiting for its rank 1, and says so when it gives up.
        EXPECT_THAT(error.what(),
                    AllOf(AnyOf(HasSubstr("num_ranks"), HasSubstr("number")), HasSubstr("2"), HasSubstr("3")));
        EXPECT_THAT(error.code(), AnyOf(ErrorCode::invalid_argument, ErrorCode::timeout, ErrorCode::peer_lost))
            << error.what();
      }
    };
    expect_ok(as_processes ? run_as_processes(2, body) : run_as_threads(2, body));
  }
}

/// An address on this machine that nobody listens at, for a moment at least.
std::string free_tcp_uri() {
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  // The socket interface takes every family through a pointer to sockaddr.
  EXPECT_EQ(::bind(socket, reinterpret_cast<const sockaddr*>(&address), size), 0);
  EXPECT_EQ(::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size), 0);
  ::close(socket);
  return "tcp://127.0.0.1:" + std::to_string(ntohs(address.sin_port));
}

TEST(Join, MeetsByTcpWhereTheTokensMatch) {
  const std::string uri = free_tcp_uri();
  expect_ok(run_as_processes(3, [&](int rank) {
    GroupOptions options = quiet_options();
    options.token = "a shared secret";
    Group group = Group::join(uri, rank, 3, options);
    Exchange exchange(group, small_config(Route::latency, 3));
    exchange.warm_up();
  }));
}

TEST(Join, FailsOnBothSidesWhereTheTokensDiffer) {
  const std::string uri = free_tcp_uri();
  expect_ok(run_as_processes(2, [&](int rank) {
    GroupOptions options = quiet_options();
    options.join_limit = std::chrono::seconds(2);
    options.token = rank == 0 ? "one secret" : "another secret";
    try {
      Group::join(uri, rank, 2, options);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      if (rank == 1) {
        EXPECT_THAT(error.what(), HasSubstr("token"));
      }
      EXPECT_THAT(error.what(), Not(HasSubstr("secret")));
    }
  }));
}

TEST(Join, NamesATransportThatDiffers) {
  const std::string uri = unique_uri(true);
  expect_ok(run_as_processes(2, [&](int rank) {
    GroupOptions options = quiet_options();
    options.transport = rank == 0 ? "shm" : "loopback";
    const std::string text = error_of(ErrorCode::invalid_argument, -1, [&] { Group::join(uri, rank, 2, options); });
    EXPECT_THAT(text, AllOf(HasSubstr("transport"), HasSubstr("shm on rank 0"), HasSubstr("loopback on rank 1")));
  }));
}

TEST(Join, NamesAnEnvironmentThatDiffers) {
  const std::string uri = unique_uri(true);
  expect_ok(run_as_processes(2, [&](int rank) {
    if (rank == 1) ::setenv("MOEBUS_FAULT", "delay:1", 1);
    const std::string text =
        error_of(ErrorCode::invalid_argument, -1, [&] { Group::join(uri, rank, 2, quiet_options()); });
    EXPECT_THAT(text, AllOf(HasSubstr("MOEBUS_FAULT"), HasSubstr("delay:1 on rank 1"), HasSubstr("not set on rank 0")));
  }));
}

TEST(Join, RefusesAFaultThatDoesNotExist) {
  expect_ok(run_as_processes(1, [](int) {
    ::setenv("MOEBUS_FAULT", "earthquake", 1);
    const std::string text =
        error_of(ErrorCode::invalid_argument, 0, [] { Group::join(unique_uri(false), 0, 1, quiet_options()); });
    EXPECT_THAT(text, AllOf(HasSubstr("earthquake"), HasSubstr("delay:SEED")));
  }));
}

TEST(Join, TakesTheTransportThatFitsTheAddress) {
  expect_ok(run_group(2, false, [](Group& group) { EXPECT_EQ(group.transport(), "loopback"); }));
  expect_ok(run_group(2, true, [](Group& group) { EXPECT_EQ(group.transport(), "shm"); }));
}

/// Joins 4 ranks on nodes a, b, a, c and runs `body`.
void expect_on_nodes(const GroupOptions& options, const std::function<void(Group&)>& body) {
  const std::string uri = unique_uri(false);
  expect_ok(run_as_threads(4, [&](int rank) {
    const char* const names[] = {"a", "b", "a", "c"};
    GroupOptions own = options;
    own.host_id = names[rank];
    Group group = Group::join(uri, rank, 4, own);
    body(group);
  }));
}

TEST(Join, NumbersNodesByTheirFirstRankWhateverTheRanksAre) {
  expect_on_nodes(quiet_options(), [](Group& group) {
    EXPECT_EQ(group.num_nodes(), 3);
    EXPECT_EQ(group.levels(), 2);
    const int nodes[] = {0, 1, 0, 2};
    for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(group.node_of(rank), nodes[rank]);
    EXPECT_EQ(group.node_of(4), -1);
  });
  expect_ok(run_group(2, false, [](Group& group) {
    EXPECT_EQ(group.num_nodes(), 1);
    EXPECT_EQ(group.levels(), 1);
  }));
}

TEST(Join, TakesItsNodeFromTheEnvironmentUnlessTold) {
  ::setenv("MOEBUS_HOST_ID", "everywhere", 1);
  expect_ok(run_group(2, false, [](Group& group) { EXPECT_EQ(group.num_nodes(), 1); }));
  expect_on_nodes(quiet_options(), [](Group& group) { EXPECT_EQ(group.num_nodes(), 3); });
  ::unsetenv("MOEBUS_HOST_ID");
}

TEST(Join, MapsWhomTheOptionsAllow) {
  GroupOptions options = quiet_options();
  options.map_peers = MapPeers::node;
  options.levels = 1;
  expect_on_nodes(options, [](Group& group) {
    EXPECT_EQ(group.levels(), 1);
    for (int peer = 0; peer < 4; ++peer) {
      EXPECT_EQ(group.is_mapped(peer), group.node_of(peer) == group.node_of(group.rank())) << peer;
    }
  });
  options.map_peers = MapPeers::none;
  expect_on_nodes(options, [](Group& group) {
    for (int peer = 0; peer < 4; ++peer) EXPECT_EQ(group.is_mapped(peer), peer == group.rank()) << peer;
  });
}

TEST(Join, RefusesLevelsThatDoNotExistAndNamesThoseThatDiffer) {
  GroupOptions options = quiet_options();
  options.levels = 3;
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, -1, [&] { Group::join(unique_uri(false), 0, 1, options); }),
              AllOf(HasSubstr("options.levels is 3"), HasSubstr("1, 2")));
  const std::string uri = unique_uri(false);
  expect_ok(run_as_threads(2, [&](int rank) {
    GroupOptions own = quiet_options();
    own.levels = 1 + rank;
    const std::string text = error_of(ErrorCode::invalid_argument, -1, [&] { Group::join(uri, rank, 2, own); });
    EXPECT_THAT(text, AllOf(HasSubstr("levels"), HasSubstr("1 on rank 0"), HasSubstr("2 on rank 1")));
  }));
}

TEST(Join, RefusesANodeNameThatIsTooLong) {
  GroupOptions options = quiet_options();
  options.host_id.assign(257, 'x');
  options.join_limit = std::chrono::seconds(5);
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, -1, [&] { Group::join(unique_uri(false), 0, 1, options); }),
              AllOf(HasSubstr("host_id"), HasSubstr("257"), HasSubstr("256")));
}

TEST(Join, RefusesATestTransportThatDoesNotExist) {
  ::setenv("MOEBUS_TEST_TRANSPORT", "rude:1", 1);
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, -1, [] { Group::join(unique_uri(false), 0, 1, quiet_options()); }),
              AllOf(HasSubstr("rude:1"), HasSubstr("unruly:SEED")));
  ::unsetenv("MOEBUS_TEST_TRANSPORT");
}

TEST(Join, KnowsItsRankAndSize) {
  expect_ok(run_group(5, false, [](Group& group) {
    EXPECT_EQ(group.num_ranks(), 5);
    EXPECT_GE(group.rank(), 0);
    EXPECT_LT(group.rank(), 5);
    group.barrier();
  }));
}

TEST(Limits, CanBeChangedAndMustBePositive) {
  Group group = Group::join(unique_uri(false), 0, 1, quiet_options());
  group.set_arrival_limit(std::chrono::milliseconds(5));
  group.set_progress_limit(std::chrono::milliseconds(5));
  EXPECT_THAT(error_of(ErrorCode::invalid_argument, -1, [&] { group.set_arrival_limit(std::chrono::milliseconds(0)); }),
              AllOf(HasSubstr("arrival"), HasSubstr("0")));
  EXPECT_THAT(
      error_of(ErrorCode::invalid_argument, -1, [&] { group.set_progress_limit(std::chrono::milliseconds(-1)); }),
      AllOf(HasSubstr("progress"), HasSubstr("-1")));
}

TEST(Close, MayBeDoneTwiceAndEndsEveryCall) {
  Group group = Group::join(unique_uri(false), 0, 1, quiet_options());
  Exchange exchange(group, small_config());
  exchange.prepare();
  group.close();
  group.close();
  EXPECT_THAT(error_of(ErrorCode::group_poisoned, 0, [&] { exchange.dispatch({}); }), HasSubstr("closed"));
  EXPECT_THAT(error_of(ErrorCode::group_poisoned, 0, [&] { exchange.combine({}); }), HasSubstr("closed"));
  EXPECT_THAT(error_of(ErrorCode::group_poisoned, 0, [&] { exchange.prepare(); }), HasSubstr("closed"));
  EXPECT_THAT(error_of(ErrorCode::group_poisoned, 0, [&] { exchange.warm_up(); }), HasSubstr("closed"));
  EXPECT_THAT(error_of(ErrorCode::group_poisoned, 0, [&] { group.barrier(); }), HasSubstr("closed"));
  EXPECT_THAT(error_of(ErrorCode::group_poisoned, 0, [&] { Exchange(group, small_config()); }), HasSubstr("closed"));
  EXPECT_EQ(group.rank(), 0);
  EXPECT_EQ(group.num_ranks(), 1);
}

TEST(Close, LeavesCopiesOfTheGroupClosedToo) {
  Group group = Group::join(unique_uri(false), 0, 1, quiet_options());
  Group copy = group;
  group.close();
  EXPECT_THAT(error_of(ErrorCode::group_poisoned, 0, [&] { copy.barrier(); }), HasSubstr("closed"));
}

TEST(ANameOfAGroup, CanBeUsedAgainAfterTheGroupEnded) {
  for (const bool as_processes : {false, true}) {
    const std::string uri = unique_uri(as_processes);
    const auto body = [&](int rank) {
      for (int turn = 0; turn < 3; ++turn) {
        Group group = Group::join(uri, rank, 3, quiet_options());
        group.barrier();
      }
    };
    expect_ok(as_processes ? run_as_processes(3, body) : run_as_threads(3, body));
  }
}

}  // namespace
}  // namespace moebus::tests
