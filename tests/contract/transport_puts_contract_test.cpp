#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "tests/contract/transport_contract.hpp"
#include "transport/mapping.hpp"

namespace moebus::transport {
namespace {

using base::Deadline;
using base::idx;
using std::chrono_literals::operator""s;
using tests::all_ok;

/// The ordering contract of puts, signals and fences.
class TransportPutContract : public ::testing::TestWithParam<TransportCase> {
 protected:
  static std::vector<tests::RankOutcome> run(int num_ranks, const std::function<void(ConnectedRank&)>& body) {
    return run_connected(GetParam(), num_ranks, body);
  }
};

// Where things lie in each rank's memory: words of peers first, then what is sent, then what is received.
constexpr std::size_t kPage = 4096;
constexpr std::size_t kSource = kPage;
constexpr std::size_t kSink = 16 * kPage;
constexpr std::size_t kBytes = 32 * kPage;

constexpr std::size_t arrived_slot(int writer) { return 128 * idx(writer); }

constexpr std::size_t taken_slot(int writer) { return 128 * idx(writer) + 64; }

/// Bytes that differ with who sends, to whom, in which round, and at which place.
std::byte mark(int src, int dst, int round, std::size_t i) {
  return static_cast<std::byte>(1 + (idx(src) * 89 + idx(dst) * 53 + idx(round) * 17 + i) % 251);
}

void signal(Transport& transport, const Registration& memory, int peer, std::size_t slot, sync::Word value) {
  transport.put_signal(peer, {}, nullptr, 0, {memory.id, slot}, value);
}

/// All ranks send to all others, round after round, each with three puts behind one fence and a signal.
void exchange_rounds(ConnectedRank& self, int num_rounds) {
  constexpr std::size_t kRow = 777;  // odd, so that rows start anywhere
  Transport& transport = *self.transport;
  const int rank = self.store->rank();
  const int num_ranks = self.store->num_ranks();
  const Registration memory = transport.register_memory(kBytes, Deadline(20s));
  const auto each_peer = [&](const std::function<void(int peer)>& deed) {
    for (int i = 1; i < num_ranks; ++i) deed((rank + i) % num_ranks);
  };
  for (int round = 1; round <= num_rounds; ++round) {
    each_peer([&](int peer) {
      const std::size_t source = kSource + 3 * kRow * idx(peer);
      for (std::size_t i = 0; i < 3 * kRow; ++i) memory.local.data[source + i] = mark(rank, peer, round, i);
      for (std::size_t part = 0; part < 3; ++part) {
        const std::size_t sink = kSink + 3 * kRow * idx(rank) + part * kRow;
        transport.put(peer, {memory.id, sink}, memory.local.data + source + part * kRow, kRow);
      }
      transport.fence(peer);
      signal(transport, memory, peer, arrived_slot(rank), idx(round));
    });
    each_peer([&](int peer) {
      ASSERT_TRUE(wait_for_word(transport, memory, arrived_slot(peer), idx(round)));
      const std::byte* row = memory.local.data + kSink + 3 * kRow * idx(peer);
      for (std::size_t i = 0; i < 3 * kRow; ++i) ASSERT_EQ(row[i], mark(peer, rank, round, i)) << "byte " << i;
      signal(transport, memory, peer, taken_slot(rank), idx(round));
    });
    ASSERT_TRUE(transport.flush(transport.num_started(), Deadline(20s)));
    // A peer's answer to this round shows that nothing of it is under way any more, the signal included.
    each_peer([&](int peer) { ASSERT_TRUE(wait_for_word(transport, memory, taken_slot(peer), idx(round))); });
  }
  barrier(*self.store);
}

TEST_P(TransportPutContract, ShowsPutsWholeBehindAFenceAndASignal) {
  EXPECT_TRUE(all_ok(run(2, [](ConnectedRank& self) { exchange_rounds(self, 40); })));
}

TEST_P(TransportPutContract, TakesPutsFromManyPeersAtOnce) {
  EXPECT_TRUE(all_ok(run(5, [](ConnectedRank& self) { exchange_rounds(self, 8); })));
}

TEST_P(TransportPutContract, ShowsAPutsOwnBytesWithItsSignal) {
  EXPECT_TRUE(all_ok(run(2, [](ConnectedRank& self) {
    constexpr std::size_t kRow = 300;
    constexpr std::size_t kNumRows = 12;
    const int rank = self.store->rank();
    const int peer = 1 - rank;
    Transport& transport = *self.transport;
    const Registration memory = transport.register_memory(kBytes, Deadline(20s));
    for (int round = 1; round <= 20; ++round) {
      for (std::size_t i = 0; i < kRow * kNumRows; ++i) memory.local.data[kSource + i] = mark(rank, peer, round, i);
      // No fence: each signal answers for its own bytes only.
      for (std::size_t row = 0; row < kNumRows; ++row) {
        transport.put_signal(peer,
                             {memory.id, kSink + row * kRow},
                             memory.local.data + kSource + row * kRow,
                             kRow,
                             {memory.id, 1024 + 8 * row},
                             idx(round));
      }
      for (std::size_t row = kNumRows; row-- > 0;) {
        ASSERT_TRUE(wait_for_word(transport, memory, 1024 + 8 * row, idx(round)));
        for (std::size_t i = row * kRow; i < (row + 1) * kRow; ++i) {
          ASSERT_EQ(memory.local.data[kSink + i], mark(peer, rank, round, i)) << "row " << row;
        }
      }
      signal(transport, memory, peer, taken_slot(rank), idx(round));
      ASSERT_TRUE(transport.flush(transport.num_started(), Deadline(20s)));
      ASSERT_TRUE(wait_for_word(transport, memory, taken_slot(peer), idx(round)));
    }
    barrier(*self.store);
  })));
}

TEST_P(TransportPutContract, NeverTakesASignalBackThatIsFenced) {
  EXPECT_TRUE(all_ok(run(2, [](ConnectedRank& self) {
    constexpr sync::Word kLast = 400;
    Transport& transport = *self.transport;
    const Registration memory = transport.register_memory(kPage, Deadline(20s));
    if (self.store->rank() == 0) {
      for (sync::Word value = 1; value <= kLast; ++value) {
        signal(transport, memory, 1, arrived_slot(0), value);
        transport.fence(1);
      }
      wait_for_word(transport, memory, taken_slot(1), 1);
    } else {
      const Deadline deadline(20s);
      sync::Word last = 0;
      while (last < kLast && !deadline.is_over()) {
        const sync::Word seen = sync::load_acquire(word_at(memory, arrived_slot(0)));
        ASSERT_GE(seen, last);
        last = seen;
        transport.progress();
      }
      EXPECT_EQ(last, kLast);
      signal(transport, memory, 0, taken_slot(1), 1);
    }
    barrier(*self.store);
  })));
}

TEST_P(TransportPutContract, TouchesNothingButTheBytesOfThePut) {
  EXPECT_TRUE(all_ok(run(2, [](ConnectedRank& self) {
    constexpr std::byte kUntouched{0xEE};
    Transport& transport = *self.transport;
    const Registration memory = transport.register_memory(kBytes, Deadline(20s));
    std::memset(memory.local.data + kSink, 0xEE, kBytes - kSink);
    barrier(*self.store);
    if (self.store->rank() == 0) {
      for (std::size_t i = 0; i < kSink - kSource; ++i) memory.local.data[kSource + i] = mark(0, 1, 0, i);
    }
    std::vector<std::byte> expected(kBytes - kSink, kUntouched);
    std::size_t sink = 1;
    for (std::size_t size = 1; size <= 200; ++size) {
      const std::size_t source = 3 * size % 1001;
      for (std::size_t i = 0; i < size; ++i) expected[sink + i] = mark(0, 1, 0, source + i);
      if (self.store->rank() == 0) {
        transport.put(1, {memory.id, kSink + sink}, memory.local.data + kSource + source, size);
      }
      sink += size + 1 + size % 4;
    }
    if (self.store->rank() == 0) {
      transport.fence(1);
      signal(transport, memory, 1, arrived_slot(0), 1);
      wait_for_word(transport, memory, taken_slot(1), 1);
    } else {
      ASSERT_TRUE(wait_for_word(transport, memory, arrived_slot(0), 1));
      EXPECT_TRUE(std::equal(expected.begin(), expected.end(), memory.local.data + kSink));
      signal(transport, memory, 0, taken_slot(1), 1);
    }
    barrier(*self.store);
  })));
}

TEST_P(TransportPutContract, LetsASourceBeReusedAfterFlush) {
  EXPECT_TRUE(all_ok(run(2, [](ConnectedRank& self) {
    constexpr std::size_t kRow = 500;
    constexpr int kNumRows = 60;
    Transport& transport = *self.transport;
    const Registration memory = transport.register_memory(kBytes, Deadline(20s));
    if (self.store->rank() == 0) {
      std::byte* source = memory.local.data + kSource;
      for (int row = 0; row < kNumRows; ++row) {
        for (std::size_t i = 0; i < kRow; ++i) source[i] = mark(0, 1, row, i);
        transport.put(1, {memory.id, kSink + kRow * idx(row)}, source, kRow);
        ASSERT_TRUE(transport.flush(transport.num_started(), Deadline(20s)));
        std::memset(source, 0xFF, kRow);
      }
      transport.fence(1);
      signal(transport, memory, 1, arrived_slot(0), 1);
      wait_for_word(transport, memory, taken_slot(1), 1);
    } else {
      ASSERT_TRUE(wait_for_word(transport, memory, arrived_slot(0), 1));
      for (int row = 0; row < kNumRows; ++row) {
        for (std::size_t i = 0; i < kRow; ++i) {
          ASSERT_EQ(memory.local.data[kSink + kRow * idx(row) + i], mark(0, 1, row, i)) << "row " << row;
        }
      }
      signal(transport, memory, 0, taken_slot(1), 1);
    }
    barrier(*self.store);
  })));
}

TEST_P(TransportPutContract, CountsWhatWasStarted) {
  EXPECT_TRUE(all_ok(run(2, [](ConnectedRank& self) {
    Transport& transport = *self.transport;
    const Registration memory = transport.register_memory(kPage, Deadline(20s));
    EXPECT_EQ(transport.num_started(), 0U);
    const int peer = 1 - self.store->rank();
    transport.put(peer, {memory.id, 2048}, memory.local.data + 1024, 10);
    signal(transport, memory, peer, arrived_slot(self.store->rank()), 1);
    EXPECT_EQ(transport.num_started(), 2U);
    EXPECT_TRUE(transport.flush(0, Deadline(20s)));
    EXPECT_TRUE(transport.flush(2, Deadline(20s)));
    EXPECT_TRUE(wait_for_word(transport, memory, arrived_slot(peer), 1));
    barrier(*self.store);
  })));
}

TEST_P(TransportPutContract, KeepsSeveralRegistrationsApart) {
  EXPECT_TRUE(all_ok(run(2, [](ConnectedRank& self) {
    Transport& transport = *self.transport;
    const int rank = self.store->rank();
    std::vector<Registration> regions;
    for (int i = 0; i < 4; ++i) regions.push_back(transport.register_memory(kPage << i, Deadline(20s)));
    std::byte* source = regions[0].local.data + 1024;
    for (int i = 0; i < 4; ++i) {
      source[i] = mark(rank, 1 - rank, i, 0);
      // The last byte of each.
      transport.put(1 - rank, {regions[idx(i)].id, (kPage << i) - 1}, source + i, 1);
    }
    transport.fence(1 - rank);
    signal(transport, regions[3], 1 - rank, arrived_slot(rank), 1);
    ASSERT_TRUE(wait_for_word(transport, regions[3], arrived_slot(1 - rank), 1));
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(regions[idx(i)].local.data[(kPage << i) - 1], mark(1 - rank, rank, i, 0));
    }
    barrier(*self.store);
  })));
}

TEST_P(TransportPutContract, LetsPutsToAPeerThatIsGoneGoNowhere) {
  EXPECT_TRUE(all_ok(run(3, [](ConnectedRank& self) {
    const Registration memory = self.transport->register_memory(kBytes, Deadline(20s));
    const int rank = self.store->rank();
    barrier(*self.store);
    if (rank == 2) self.transport->close();
    if (rank > 0) self.transport.reset();
    if (rank == 0) {
      for (const int peer : {1, 2}) {
        EXPECT_EQ(wait_for_end(*self.transport, peer).state, peer == 1 ? PeerState::dead : PeerState::closed);
        self.transport->put(peer, {memory.id, kSink}, memory.local.data + kSource, kBytes - kSink);
        self.transport->fence(peer);
        self.transport->put_signal(peer, {memory.id, kSink}, memory.local.data, 100, {memory.id, 0}, 1);
      }
      EXPECT_TRUE(self.transport->flush(self.transport->num_started(), Deadline(20s)));
      self.transport->progress();
    }
    barrier(*self.store);
  })));
}

TEST_P(TransportPutContract, TakesPutsToMemoryThatWasGivenBackOnEitherSide) {
  EXPECT_TRUE(all_ok(run(2, [](ConnectedRank& self) {
    Transport& transport = *self.transport;
    const Registration memory = transport.register_memory(kPage, Deadline(20s));
    const Registration other = transport.register_memory(kPage, Deadline(20s));
    if (self.store->rank() == 1) transport.deregister(other);
    barrier(*self.store);
    if (self.store->rank() == 0) {
      transport.put(1, {other.id, 0}, memory.local.data, 64);
      transport.deregister(other);
      transport.put(1, {other.id, 0}, memory.local.data, 64);
      // What comes behind is not lost with it.
      transport.fence(1);
      signal(transport, memory, 1, arrived_slot(0), 1);
    } else {
      EXPECT_TRUE(wait_for_word(transport, memory, arrived_slot(0), 1));
    }
    barrier(*self.store);
  })));
}

TEST_P(TransportPutContract, DeliversWhatARankStartedBeforeItLeft) {
  EXPECT_TRUE(all_ok(run(2, [](ConnectedRank& self) {
    const Registration memory = self.transport->register_memory(kBytes, Deadline(20s));
    if (self.store->rank() == 0) {
      self.transport->put(1, {memory.id, kSink}, memory.local.data + kSource, 100);
      self.transport->fence(1);
      signal(*self.transport, memory, 1, arrived_slot(0), 1);
      self.transport->close();
      self.transport.reset();
    } else {
      // Who is seen to have left in order has nothing under way any more.
      EXPECT_EQ(wait_for_end(*self.transport, 0).state, PeerState::closed);
      EXPECT_EQ(sync::load_acquire(word_at(memory, arrived_slot(0))), 1U);
    }
    barrier(*self.store);
  })));
}

INSTANTIATE_TEST_SUITE_P(
    Transports,
    TransportPutContract,
    ::testing::Values(kLoopback, kShm, kLoopbackUnmapped, kShmUnmapped, kUnrulyLoopback, kUnrulyShm),
    case_name);

/// Runs one rank that puts to itself over an unruly loopback, and looks between its calls, so that what it sees depends
/// on the seed alone. Returns whether any of some seeds lets the signal show without the bytes ahead of it.
bool does_a_signal_come_too_early(bool is_fenced, Fences fences) {
  const TransportCase kind{"", "inproc", nullptr, false, false};
  const auto store = join_rendezvous(unused_uri(kind), 0, 1, {"", false}, Deadline(20s));
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const auto transport = make_unruly(connect_loopback(*store, Deadline(20s)), 0, seed, fences);
    const Registration memory = transport->register_memory(kBytes, Deadline(20s));
    std::memset(memory.local.data + kSource, 1, 64);
    transport->put(0, {memory.id, kSink}, memory.local.data + kSource, 64);
    if (is_fenced) transport->fence(0);
    signal(*transport, memory, 0, arrived_slot(0), 1);
    if (!wait_for_word(*transport, memory, arrived_slot(0), 1)) return false;
    const std::byte* row = memory.local.data + kSink;
    if (!std::all_of(row, row + 64, [](std::byte b) { return b == std::byte{1}; })) return true;
  }
  return false;
}

TEST(UnrulyTransport, KeepsASignalBehindTheFenceBeforeIt) {
  EXPECT_FALSE(does_a_signal_come_too_early(true, Fences::kept));
}

TEST(UnrulyTransport, LetsASignalOvertakeWithoutAFence) {
  EXPECT_TRUE(does_a_signal_come_too_early(false, Fences::kept));
}

TEST(UnrulyTransport, ShowsWhoDependsOnAFenceThatIsIgnored) {
  EXPECT_TRUE(does_a_signal_come_too_early(true, Fences::ignored));
}

}  // namespace
}  // namespace moebus::transport
