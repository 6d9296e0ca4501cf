#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <climits>
#include <csignal>
#include <set>

#include "tests/contract/transport_contract.hpp"

namespace moebus::transport {
namespace {

using base::Deadline;
using base::idx;
using base::UniqueFd;
using std::chrono_literals::operator""ms;
using std::chrono_literals::operator""s;
using ::testing::AllOf;
using ::testing::HasSubstr;
using tests::all_ok;

/// The contract of exchange_descriptors.
class TransportDescriptorContract : public ::testing::TestWithParam<TransportCase> {
 protected:
  static std::vector<tests::RankOutcome> run(int num_ranks, const std::function<void(ConnectedRank&)>& body) {
    return run_connected(GetParam(), num_ranks, body);
  }
};

/// What holds only where a rank has limits of its own, or can be killed.
class DescriptorsOfProcessesContract : public TransportDescriptorContract {};

/// Returns a memfd that holds `text`.
UniqueFd memory_with(const std::string& text) {
  UniqueFd file(::memfd_create("descriptor-test", MFD_CLOEXEC));
  EXPECT_EQ(::write(file.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  return file;
}

/// Returns what the file holds, wherever others have read or written it to.
std::string text_of(const UniqueFd& file) {
  char text[64];
  const ssize_t length = ::pread(file.get(), text, sizeof text, 0);
  return length < 0 ? "cannot be read" : std::string(text, static_cast<std::size_t>(length));
}

/// A pipe that tells by its end when nobody anywhere holds its sink any more.
struct Pipe {
  UniqueFd source;
  UniqueFd sink;

  Pipe() {
    int ends[2] = {-1, -1};
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    source = UniqueFd(ends[0]);
    sink = UniqueFd(ends[1]);
  }

  /// Returns what comes until the end; fails after a limit that only a hang reaches.
  [[nodiscard]] std::multiset<char> read_to_end() const {
    std::multiset<char> bytes;
    for (;;) {
      pollfd poll{source.get(), POLLIN, 0};
      char byte = 0;
      if (::poll(&poll, 1, 20'000) != 1) {
        ADD_FAILURE() << "somebody still holds the other end of the pipe";
        return bytes;
      }
      if (::read(source.get(), &byte, 1) != 1) return bytes;
      bytes.insert(byte);
    }
  }
};

/// Expects that descriptors come from the ranks of `givers` and from no others, and that each holds `text` + its rank.
void expect_from(const std::vector<UniqueFd>& given,
                 const std::set<int>& givers,
                 int num_ranks,
                 const std::string& text) {
  ASSERT_EQ(given.size(), idx(num_ranks));
  for (int peer = 0; peer < num_ranks; ++peer) {
    const UniqueFd& from = given[idx(peer)];
    ASSERT_EQ(from.is_open(), givers.contains(peer)) << "from rank " << peer;
    if (!from.is_open()) continue;
    EXPECT_EQ(text_of(from), text + std::to_string(peer));
    EXPECT_NE(::fcntl(from.get(), F_GETFD) & FD_CLOEXEC, 0) << "from rank " << peer;
  }
}

/// Returns the ranks whose descriptors come to this rank in a group of the case under test.
std::set<int> givers_to(const ConnectedRank& self, const TransportCase& kind) {
  std::set<int> givers;
  for (int peer = 0; peer < self.store->num_ranks(); ++peer) {
    if (kind.are_peers_mapped && peer != self.store->rank()) givers.insert(peer);
  }
  return givers;
}

/// Expects that an exchange with good descriptors works.
void expect_exchange(ConnectedRank& self, const TransportCase& kind, const std::string& text) {
  UniqueFd own = memory_with(text + std::to_string(self.store->rank()));
  const std::vector<UniqueFd> given = self.transport->exchange_descriptors(own.get(), Deadline(20s));
  // What came is the receiver's: the giver may close its own at once.
  own.reset();
  barrier(*self.store);
  expect_from(given, givers_to(self, kind), self.store->num_ranks(), text);
}

TEST_P(TransportDescriptorContract, GivesThoseOfAllMappedPeersInRankOrder) {
  EXPECT_TRUE(all_ok(run(4, [](ConnectedRank& self) { expect_exchange(self, GetParam(), "of rank "); })));
}

TEST_P(TransportDescriptorContract, KeepsSeveralExchangesAndRegistrationsApart) {
  EXPECT_TRUE(all_ok(run(3, [](ConnectedRank& self) {
    for (int round = 0; round < 4; ++round) {
      expect_exchange(self, GetParam(), "round " + std::to_string(round) + " of rank ");
      const Registration memory = self.transport->register_memory(4096, Deadline(20s));
      EXPECT_EQ(memory.id, static_cast<std::uint32_t>(round));
    }
  })));
}

TEST_P(TransportDescriptorContract, GivesNothingToPeersThatMayNotBeMapped) {
  EXPECT_TRUE(all_ok(run_met(GetParam(), 4, [](std::unique_ptr<Store> store) {
    // Ranks 0 and 1 map each other, 1 and 2 too, rank 3 nobody; what a rank says of itself is of no account.
    const std::vector<std::set<int>> mapped{{1}, {0, 2}, {1}, {}};
    const int rank = store->rank();
    ConnectOptions options{std::vector<bool>(4, false)};
    for (const int peer : mapped[idx(rank)]) options.may_map[idx(peer)] = true;
    const auto transport = GetParam().connect(*store, Deadline(20s), options);
    const UniqueFd own = memory_with("of rank " + std::to_string(rank));
    const auto given = transport->exchange_descriptors(own.get(), Deadline(20s));
    expect_from(given, mapped[idx(rank)], 4, "of rank ");
    barrier(*store);
  })));
}

TEST_P(TransportDescriptorContract, LeavesTheDescriptorToItsOwnerAndHoldsNoOther) {
  EXPECT_TRUE(all_ok(run(3, [](ConnectedRank& self) {
    const char own_mark = static_cast<char>('a' + self.store->rank());
    Pipe pipe;
    std::vector<UniqueFd> given = self.transport->exchange_descriptors(pipe.sink.get(), Deadline(20s));
    std::multiset<char> expected{own_mark};
    for (const int peer : givers_to(self, GetParam())) {
      EXPECT_EQ(::write(given[idx(peer)].get(), &own_mark, 1), 1);
      expected.insert(static_cast<char>('a' + peer));
    }
    ASSERT_EQ(::write(pipe.sink.get(), &own_mark, 1), 1);
    given.clear();
    pipe.sink.reset();
    EXPECT_EQ(pipe.read_to_end(), expected);
    barrier(*self.store);
  })));
}

TEST_P(TransportDescriptorContract, OpensNoMoreThanItGives) {
  EXPECT_TRUE(all_ok(run(3, [](ConnectedRank& self) {
    // Threads share one table, so one of them counts while all stand still.
    const bool is_counting = GetParam().are_ranks_processes || self.store->rank() == 0;
    const int num_sharers = GetParam().are_ranks_processes ? 1 : 3;
    const auto count = [&] {
      barrier(*self.store);
      const int num_open = is_counting ? count_in("/proc/self/fd") : 0;
      barrier(*self.store);
      return num_open;
    };
    const UniqueFd own = memory_with("");
    const int before = count();
    for (int i = 0; i < 10; ++i) {
      const auto given = self.transport->exchange_descriptors(own.get(), Deadline(20s));
      const int num_given = static_cast<int>(givers_to(self, GetParam()).size()) * num_sharers;
      EXPECT_EQ(count(), is_counting ? before + num_given : 0);
    }
    EXPECT_EQ(count(), before);
  })));
}

TEST_P(TransportDescriptorContract, TellsAllRanksThatOneIsNotOpenAndGoesOn) {
  EXPECT_TRUE(all_ok(run(3, [](ConnectedRank& self) {
    for (const int closed : {-1, INT_MAX}) {
      Pipe pipe;
      const int own = self.store->rank() == 1 ? closed : pipe.sink.get();
      EXPECT_THAT(
          message_of(
              ErrorCode::invalid_argument, [&] { self.transport->exchange_descriptors(own, Deadline(20s)); }, 1),
          AllOf(HasSubstr("on rank 1"), HasSubstr("descriptor " + std::to_string(closed) + " is not open")));
      pipe.sink.reset();
      EXPECT_TRUE(pipe.read_to_end().empty());
    }
    expect_exchange(self, GetParam(), "after it, of rank ");
    EXPECT_EQ(self.transport->register_memory(4096, Deadline(20s)).peers.size(), 3U);
  })));
}

TEST_P(TransportDescriptorContract, NamesTheRankThatGivesNone) {
  EXPECT_TRUE(all_ok(run(3, [](ConnectedRank& self) {
    if (self.store->rank() == 1) {
      // Stays until both others have given up, which ends the store with their error.
      message_of(ErrorCode::timeout, [&] {
        std::this_thread::sleep_for(700ms);
        self.store->all_gather("look at descriptors", "", Deadline(20s));
      });
      return;
    }
    Pipe pipe;
    EXPECT_THAT(
        message_of(ErrorCode::timeout, [&] { self.transport->exchange_descriptors(pipe.sink.get(), Deadline(400ms)); }),
        HasSubstr("rank 1 did not come"));
    pipe.sink.reset();
    EXPECT_TRUE(pipe.read_to_end().empty());
  })));
}

TEST_P(TransportDescriptorContract, GivesASingleRankNothingAndLooksAtItsOwnNonetheless) {
  EXPECT_TRUE(all_ok(run(1, [](ConnectedRank& self) {
    expect_exchange(self, GetParam(), "alone, rank ");
    message_of(ErrorCode::invalid_argument, [&] { self.transport->exchange_descriptors(-1, Deadline(20s)); }, 0);
  })));
}

TEST_P(DescriptorsOfProcessesContract, TellsAllRanksThatOneHasNoneLeftAndGoesOn) {
  EXPECT_TRUE(all_ok(run(4, [](ConnectedRank& self) {
    Pipe pipe;
    rlimit usual{};
    ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &usual), 0);
    if (self.store->rank() == 2) {
      // One more than there are: the first that comes is taken, the next is not.
      const UniqueFd lowest_free(::fcntl(pipe.sink.get(), F_DUPFD_CLOEXEC, 0));
      const rlimit low{static_cast<rlim_t>(lowest_free.get()) + 1, usual.rlim_max};
      ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
    }
    EXPECT_THAT(message_of(
                    ErrorCode::resource_exhausted,
                    [&] { self.transport->exchange_descriptors(pipe.sink.get(), Deadline(20s)); },
                    2),
                AllOf(HasSubstr("on rank 2"), HasSubstr("ulimit -n")));
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &usual), 0);
    pipe.sink.reset();
    EXPECT_TRUE(pipe.read_to_end().empty());
    expect_exchange(self, GetParam(), "after it, of rank ");
  })));
}

TEST_P(DescriptorsOfProcessesContract, NamesAPeerThatDiedBeforeItGaveOne) {
  auto outcomes = run(3, [](ConnectedRank& self) {
    Pipe pipe;
    barrier(*self.store);
    if (self.store->rank() == 2) ::raise(SIGKILL);
    EXPECT_THAT(
        message_of(ErrorCode::peer_lost, [&] { self.transport->exchange_descriptors(pipe.sink.get(), Deadline(20s)); }),
        HasSubstr("rank 2"));
    pipe.sink.reset();
    EXPECT_TRUE(pipe.read_to_end().empty());
  });
  EXPECT_EQ(outcomes[2].signal, SIGKILL);
  outcomes[2] = {};
  EXPECT_TRUE(all_ok(outcomes));
}

INSTANTIATE_TEST_SUITE_P(
    Transports,
    TransportDescriptorContract,
    ::testing::Values(kLoopback, kShmThreads, kShm, kLoopbackUnmapped, kShmUnmapped, kUnrulyLoopback, kUnrulyShm),
    case_name);
INSTANTIATE_TEST_SUITE_P(Transports, DescriptorsOfProcessesContract, ::testing::Values(kShm), case_name);

}  // namespace
}  // namespace moebus::transport
