#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <string>

#include "base/math.hpp"
#include "moebus/error.hpp"
#include "tests/support/errors.hpp"
#include "tests/support/ranks.hpp"
#include "transport/rendezvous.hpp"
#include "transport/rendezvous_file.hpp"

namespace moebus::transport {
namespace {

using std::chrono_literals::operator""ms;
using std::chrono_literals::operator""s;
using ::testing::AllOf;
using ::testing::HasSubstr;
using tests::all_ok;
using tests::message_of;

/// Returns a TCP port that was free a moment ago.
int free_port() {
  const base::UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  EXPECT_EQ(::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), size), 0);
  EXPECT_EQ(::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  return ntohs(address.sin_port);
}

/// Each test meets under names of its own.
class StoreContract : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "moebus-store-XXXXXX";
    ASSERT_NE(::mkdtemp(folder_.data()), nullptr);
  }

  void TearDown() override {
    EXPECT_TRUE(std::filesystem::is_empty(folder_)) << "something was left behind";
    std::filesystem::remove_all(folder_);
  }

  [[nodiscard]] std::string make_uri() {
    static std::atomic<int> last_id{0};
    const std::string id = std::to_string(::getpid()) + "-" + std::to_string(++last_id);
    const std::string kind = GetParam();
    if (kind == "Inproc") return "inproc://" + id;
    if (kind == "Local") return "local://" + id;
    if (kind == "File") return "file://" + folder_ + "/" + id;
    return (kind == "Tcp" ? "tcp://127.0.0.1:" : "tcp://localhost:") + std::to_string(free_port());
  }

  static std::unique_ptr<Store> join(const std::string& uri,
                                     int rank,
                                     int num_ranks,
                                     std::chrono::milliseconds limit = 20s) {
    return join_rendezvous(uri, rank, num_ranks, {"a shared secret", false}, base::Deadline(limit));
  }

  std::string folder_;
};

TEST_P(StoreContract, GivesEveryRankEveryValueInRankOrder) {
  for (const int num_ranks : {1, 2, 5}) {
    const std::string uri = make_uri();
    EXPECT_TRUE(all_ok(tests::run_as_threads(num_ranks, [&](int rank) {
      const auto store = join(uri, rank, num_ranks);
      EXPECT_EQ(store->rank(), rank);
      EXPECT_EQ(store->num_ranks(), num_ranks);
      for (int round = 0; round < 20; ++round) {
        const auto values = store->all_gather("count", std::to_string(100 * round + rank), base::Deadline(20s));
        ASSERT_EQ(values.size(), base::idx(num_ranks));
        for (int peer = 0; peer < num_ranks; ++peer)
          EXPECT_EQ(values[base::idx(peer)], std::to_string(100 * round + peer));
      }
    })));
  }
}

TEST_P(StoreContract, CarriesEmptyBinaryAndLargestValues) {
  const std::string uri = make_uri();
  EXPECT_TRUE(all_ok(tests::run_as_threads(3, [&](int rank) {
    const auto store = join(uri, rank, 3);
    const std::string binary("\0\xFF\n", 3);
    const std::string largest(Store::kMaxMessageBytes, static_cast<char>('a' + rank));
    const auto values = store->all_gather("mixed",
                                          rank == 0   ? std::string()
                                          : rank == 1 ? binary
                                                      : largest,
                                          base::Deadline(20s));
    EXPECT_EQ(values[0], "");
    EXPECT_EQ(values[1], binary);
    EXPECT_EQ(values[2], std::string(Store::kMaxMessageBytes, 'c'));
    const auto all_large = store->all_gather("large", largest, base::Deadline(20s));
    EXPECT_EQ(all_large[2], std::string(Store::kMaxMessageBytes, 'c'));
    const std::string too_large(Store::kMaxMessageBytes + 1, 'x');
    EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                           [&] { store->all_gather("too large", too_large, base::Deadline(20s)); }),
                AllOf(HasSubstr("too large"), HasSubstr("1048577"), HasSubstr("1048576")));
  })));
}

TEST_P(StoreContract, NamesEachRanksStepIfTheyDifferAndGoesOn) {
  const std::string uri = make_uri();
  EXPECT_TRUE(all_ok(tests::run_as_threads(3, [&](int rank) {
    const auto store = join(uri, rank, 3);
    EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                           [&] { store->all_gather(rank == 2 ? "second" : "first", "", base::Deadline(20s)); }),
                AllOf(HasSubstr("rank 0 \"first\""), HasSubstr("rank 2 \"second\"")));
    EXPECT_EQ(store->all_gather("third", "x", base::Deadline(20s)).size(), 3U);
  })));
}

TEST_P(StoreContract, NamesTheRanksThatDoNotComeToTheMeeting) {
  const std::string uri = make_uri();
  EXPECT_TRUE(all_ok(tests::run_as_threads(3, [&](int rank) {
    const int own = rank < 2 ? rank : 4;  // of 6
    EXPECT_THAT(message_of(ErrorCode::timeout, [&] { join(uri, own, 6, 600ms); }), HasSubstr("ranks 2, 3, 5"));
  })));
}

TEST_P(StoreContract, NamesTheRankThatDoesNotComeToAStep) {
  const std::string uri = make_uri();
  std::atomic<int> num_done{0};
  EXPECT_TRUE(all_ok(tests::run_as_threads(3, [&](int rank) {
    const auto store = join(uri, rank, 3);
    if (rank == 1) {
      while (num_done < 2) ::usleep(1000);
      return;
    }
    EXPECT_THAT(message_of(ErrorCode::timeout, [&] { store->all_gather("late step", "", base::Deadline(500ms)); }),
                AllOf(HasSubstr("rank 1 did not come"), HasSubstr("late step")));
    // What ended the store is said again, at once.
    message_of(ErrorCode::timeout, [&] { store->all_gather("next step", "", base::Deadline(60s)); });
    ++num_done;
  })));
}

TEST_P(StoreContract, SaysThatRankZeroIsMissingIfItIs) {
  const std::string uri = make_uri();
  EXPECT_THAT(message_of(ErrorCode::timeout, [&] { join(uri, 1, 2, 200ms); }), HasSubstr("rank 0"));
}

TEST_P(StoreContract, TellsThoseWhoWaitThatARankLeft) {
  for (const int leaver : {0, 2}) {
    const std::string uri = make_uri();
    EXPECT_TRUE(all_ok(tests::run_as_threads(3, [&](int rank) {
      const auto store = join(uri, rank, 3);
      store->all_gather("once", "", base::Deadline(20s));
      if (rank == leaver) return;
      EXPECT_THAT(message_of(ErrorCode::peer_lost, [&] { store->all_gather("again", "", base::Deadline(20s)); }),
                  HasSubstr("rank " + std::to_string(leaver)));
    })));
  }
}

TEST_P(StoreContract, FreesTheAddressForTheNextGroup) {
  const std::string uri = make_uri();
  EXPECT_TRUE(all_ok(tests::run_as_threads(2, [&](int rank) {
    for (int round = 0; round < 5; ++round) {
      const auto store = join(uri, rank, 2);
      const auto values = store->all_gather("round", std::to_string(round), base::Deadline(20s));
      EXPECT_EQ(values[0], values[1]);
    }
  })));
}

TEST_P(StoreContract, RefusesARankThatIsThereAlready) {
  const std::string uri = make_uri();
  std::atomic<int> num_refused{0};
  EXPECT_TRUE(all_ok(tests::run_as_threads(4, [&](int thread) {
    // Threads 1 and 2 both say that they are rank 1; rank 2 comes when one of them was refused.
    if (thread == 3) {
      while (num_refused < 1) ::usleep(1000);
    }
    const int rank = thread == 0 ? 0 : thread == 3 ? 2 : 1;
    try {
      const auto store = join(uri, rank, 3);
      EXPECT_EQ(store->all_gather("go", "", base::Deadline(20s)).size(), 3U);
    } catch (const Error& error) {
      ++num_refused;
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument) << error.what();
      EXPECT_EQ(rank, 1);
      EXPECT_THAT(error.what(), HasSubstr("rank 1"));
    }
  })));
  EXPECT_EQ(num_refused, 1);
}

TEST_P(StoreContract, RefusesRanksAndSizesThatCannotBe) {
  const std::string uri = make_uri();
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { join(uri, 2, 2); }), HasSubstr("0 to 1"));
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { join(uri, -1, 2); }), HasSubstr("rank is -1"));
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { join(uri, 0, 0); }), HasSubstr("at least 1"));
  EXPECT_THAT(message_of(ErrorCode::unsupported, [&] { join(uri, 0, 65); }), HasSubstr("at most 64"));
}

TEST_P(StoreContract, LeavesNoDescriptorBehind) {
  const auto count_descriptors = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator());
  };
  const std::string uri = make_uri();
  const auto before = count_descriptors();
  EXPECT_TRUE(all_ok(tests::run_as_threads(3, [&](int rank) {
    const auto store = join(uri, rank, 3);
    store->all_gather("once", "", base::Deadline(20s));
  })));
  EXPECT_EQ(count_descriptors(), before);
}

/// What holds for ranks that are processes; inproc joins threads only.
class StoreOfProcessesContract : public StoreContract {};

TEST_P(StoreOfProcessesContract, CarriesValuesAndNoticesARankThatIsKilled) {
  for (const int victim : {0, 1}) {
    const std::string uri = make_uri();
    auto outcomes = tests::run_as_processes(3, [&](int rank) {
      const auto store = join(uri, rank, 3);
      const auto values = store->all_gather("once", std::string(1, static_cast<char>('a' + rank)), base::Deadline(20s));
      EXPECT_EQ(values[2], "c");
      if (rank == victim) ::raise(SIGKILL);
      EXPECT_THAT(message_of(ErrorCode::peer_lost, [&] { store->all_gather("again", "", base::Deadline(20s)); }),
                  HasSubstr("rank " + std::to_string(victim)));
    });
    EXPECT_EQ(outcomes[base::idx(victim)].signal, SIGKILL);
    outcomes[base::idx(victim)] = {};
    EXPECT_TRUE(all_ok(outcomes));
  }
}

std::string kind_name(const ::testing::TestParamInfo<const char*>& kind) { return kind.param; }

INSTANTIATE_TEST_SUITE_P(Stores,
                         StoreContract,
                         ::testing::Values("Inproc", "Local", "File", "Tcp", "TcpByName"),
                         kind_name);
INSTANTIATE_TEST_SUITE_P(Stores,
                         StoreOfProcessesContract,
                         ::testing::Values("Local", "File", "Tcp", "TcpByName"),
                         kind_name);

}  // namespace
}  // namespace moebus::transport
