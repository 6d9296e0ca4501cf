#include "tests/contract/transport_contract.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "base/math.hpp"
#include "moebus/error.hpp"
#include "transport/loopback/connect.hpp"
#include "transport/mapping.hpp"
#include "transport/shm/connect.hpp"

namespace moebus::transport {
namespace {

using base::Deadline;
using base::idx;
using std::chrono_literals::operator""ms;
using std::chrono_literals::operator""s;
using ::testing::AllOf;
using ::testing::HasSubstr;
using tests::all_ok;

class TransportContract : public ::testing::TestWithParam<TransportCase> {
 protected:
  static std::vector<tests::RankOutcome> run(int num_ranks, const std::function<void(ConnectedRank&)>& body) {
    return run_connected(GetParam(), num_ranks, body);
  }
};

/// What holds only where peers are mapped.
class MappingTransportContract : public TransportContract {};

/// What holds only where a rank can be killed.
class TransportOfProcessesContract : public TransportContract {};

int count_mappings(const std::string& of) {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find(of) != std::string::npos ? 1 : 0;
  return count;
}

/// Names in a folder where something of ours would show; other programs may come and go there.
std::set<std::string> ours_in(const std::string& folder) {
  std::set<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.path().filename().string().find("moebus") != std::string::npos) names.insert(entry.path().string());
  }
  return names;
}

TEST_P(MappingTransportContract, GivesZeroedPageAlignedMemoryThatPeersSee) {
  EXPECT_TRUE(all_ok(run(3, [](ConnectedRank& self) {
    constexpr std::size_t kBytes = 3 * 4096 + 8;
    const int rank = self.store->rank();
    const Registration memory = self.transport->register_memory(kBytes, Deadline(20s));
    ASSERT_EQ(memory.local.size_bytes, kBytes);
    ASSERT_EQ(memory.local.kind, MemoryKind::host);
    ASSERT_EQ(memory.peers.size(), 3U);
    EXPECT_EQ(memory.peers[idx(rank)], memory.local.data);
    for (std::byte* peer : memory.peers) {
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(peer) % page_bytes(), 0U);
      EXPECT_TRUE(std::all_of(peer, peer + kBytes, [](std::byte b) { return b == std::byte{0}; }));
    }
    barrier(*self.store);
    // Each writes its mark into every peer, at its own place, first and last byte of the region included.
    for (std::byte* peer : memory.peers) {
      peer[rank] = static_cast<std::byte>(10 + rank);
      peer[kBytes - 1 - idx(rank)] = static_cast<std::byte>(20 + rank);
    }
    barrier(*self.store);
    for (int peer = 0; peer < 3; ++peer) {
      EXPECT_EQ(memory.local.data[peer], static_cast<std::byte>(10 + peer));
      EXPECT_EQ(memory.local.data[kBytes - 1 - idx(peer)], static_cast<std::byte>(20 + peer));
    }
    barrier(*self.store);
  })));
}

TEST_P(TransportContract, GivesZeroedPageAlignedMemoryAndShowsWhatIsMapped) {
  EXPECT_TRUE(all_ok(run(3, [](ConnectedRank& self) {
    constexpr std::size_t kBytes = 3 * 4096 + 8;
    const Registration memory = self.transport->register_memory(kBytes, Deadline(20s));
    ASSERT_EQ(memory.local.size_bytes, kBytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory.local.data) % page_bytes(), 0U);
    EXPECT_TRUE(
        std::all_of(memory.local.data, memory.local.data + kBytes, [](std::byte b) { return b == std::byte{0}; }));
    ASSERT_EQ(memory.peers.size(), 3U);
    for (int peer = 0; peer < 3; ++peer) {
      const bool is_self = peer == self.store->rank();
      EXPECT_EQ(memory.peers[idx(peer)] != nullptr, is_self || GetParam().are_peers_mapped) << "rank " << peer;
    }
    EXPECT_EQ(memory.peers[idx(self.store->rank())], memory.local.data);
  })));
}

TEST_P(TransportContract, CountsRegistrationsAlikeOnAllRanksAndNeverTwice) {
  EXPECT_TRUE(all_ok(run(2, [](ConnectedRank& self) {
    std::vector<Registration> regions;
    for (int i = 0; i < 3; ++i) regions.push_back(self.transport->register_memory(64, Deadline(20s)));
    // What one rank gives back, or what all are refused, does not set them apart.
    if (self.store->rank() == 0) self.transport->deregister(regions[2]);
    const std::size_t bytes = self.store->rank() == 0 ? 64 : 65;
    message_of(ErrorCode::invalid_argument, [&] { self.transport->register_memory(bytes, Deadline(20s)); });
    regions.push_back(self.transport->register_memory(64, Deadline(20s)));
    for (std::uint32_t i = 0; i < 4; ++i) EXPECT_EQ(regions[i].id, i);
  })));
}

TEST_P(TransportContract, RefusesMappingThatIsNotMutualOnAllRanksAndNamesThePair) {
  EXPECT_TRUE(all_ok(run_met(GetParam(), 3, [](std::unique_ptr<Store> store) {
    ConnectOptions options{{true, true, true}};
    if (store->rank() == 2) options.may_map[0] = false;
    EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { GetParam().connect(*store, Deadline(20s), options); }),
                HasSubstr("rank 0 may map rank 2, but rank 2 may not map rank 0"));
  })));
}

TEST_P(TransportContract, RefusesAMappingOfAnotherNumberOfRanksOnAllRanks) {
  EXPECT_TRUE(all_ok(run_met(GetParam(), 2, [](std::unique_ptr<Store> store) {
    const ConnectOptions options{std::vector<bool>(store->rank() == 1 ? 3 : 0, true)};
    EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { GetParam().connect(*store, Deadline(20s), options); }),
                AllOf(HasSubstr("on rank 1"), HasSubstr("3 entries"), HasSubstr("2 ranks")));
  })));
}

TEST_P(TransportContract, HidesThePeersThatMayNotBeMappedAndNoOthers) {
  EXPECT_TRUE(all_ok(run_met(GetParam(), 3, [](std::unique_ptr<Store> store) {
    // Ranks 0 and 1 map each other, rank 2 nobody; what a rank says of itself is of no account.
    const int rank = store->rank();
    const ConnectOptions options{{rank == 1, rank == 0, false}};
    const auto transport = GetParam().connect(*store, Deadline(20s), options);
    const Registration memory = transport->register_memory(4096, Deadline(20s));
    for (int peer = 0; peer < 3; ++peer) {
      const bool is_shown = peer == rank || (peer < 2 && rank < 2);
      EXPECT_EQ(memory.peers[idx(peer)] != nullptr, is_shown) << "rank " << rank << " of rank " << peer;
    }
    if (rank < 2) memory.peers[idx(1 - rank)][7] = std::byte{9};
    barrier(*store);
    EXPECT_EQ(memory.local.data[7], static_cast<std::byte>(rank < 2 ? 9 : 0));
    barrier(*store);
  })));
}

TEST_P(MappingTransportContract, KeepsSeveralRegistrationsApart) {
  EXPECT_TRUE(all_ok(run(2, [](ConnectedRank& self) {
    const int rank = self.store->rank();
    std::vector<Registration> regions;
    for (int i = 0; i < 4; ++i) {
      regions.push_back(self.transport->register_memory(std::size_t{5000} << i, Deadline(20s)));
      std::memset(regions.back().local.data, 16 * (i + 1) + rank, regions.back().local.size_bytes);
    }
    barrier(*self.store);
    for (int i = 0; i < 4; ++i) {
      const std::byte expected = static_cast<std::byte>(16 * (i + 1) + (1 - rank));
      const std::byte* peer = regions[idx(i)].peers[idx(1 - rank)];
      EXPECT_TRUE(std::all_of(peer, peer + (std::size_t{5000} << i), [&](std::byte b) { return b == expected; }));
    }
    barrier(*self.store);
  })));
}

TEST_P(MappingTransportContract, HoldsMoreThanOneHugePage) {
  EXPECT_TRUE(all_ok(run(2, [](ConnectedRank& self) {
    constexpr std::size_t kBytes = (std::size_t{5} << 20) + 1;
    const Registration memory = self.transport->register_memory(kBytes, Deadline(20s));
    memory.peers[idx(1 - self.store->rank())][kBytes - 1] = std::byte{7};
    barrier(*self.store);
    EXPECT_EQ(memory.local.data[kBytes - 1], std::byte{7});
    barrier(*self.store);
  })));
}

TEST_P(MappingTransportContract, KeepsMemoryForPeersThatStillMapItAfterDeregister) {
  EXPECT_TRUE(all_ok(run(2, [](ConnectedRank& self) {
    const Registration memory = self.transport->register_memory(4096, Deadline(20s));
    memory.local.data[5] = std::byte{9};
    barrier(*self.store);
    if (self.store->rank() == 0) self.transport->deregister(memory);
    barrier(*self.store);
    if (self.store->rank() == 1) {
      EXPECT_EQ(memory.peers[0][5], std::byte{9});
    }
  })));
}

TEST_P(TransportContract, RefusesDifferentSizesOnAllRanksAndGoesOn) {
  EXPECT_TRUE(all_ok(run(3, [](ConnectedRank& self) {
    const std::size_t bytes = self.store->rank() == 1 ? 8192 : 4096;
    EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { self.transport->register_memory(bytes, Deadline(20s)); }),
                HasSubstr("4096, 8192, 4096"));
    EXPECT_EQ(self.transport->register_memory(4096, Deadline(20s)).peers.size(), 3U);
  })));
}

TEST_P(TransportContract, TellsAllRanksThatOneHasNoMemory) {
  EXPECT_TRUE(all_ok(run(3, [](ConnectedRank& self) {
    const std::size_t bytes = self.store->rank() == 2 ? ~std::size_t{0} : 4096;
    EXPECT_THAT(
        message_of(ErrorCode::resource_exhausted, [&] { self.transport->register_memory(bytes, Deadline(20s)); }),
        HasSubstr("on rank 2"));
    EXPECT_EQ(self.transport->register_memory(4096, Deadline(20s)).peers.size(), 3U);
  })));
}

TEST_P(TransportContract, NamesTheRankThatDoesNotRegister) {
  EXPECT_TRUE(all_ok(run(3, [](ConnectedRank& self) {
    if (self.store->rank() == 1) {
      // Stays until both others have given up, which ends the store with their error.
      message_of(ErrorCode::timeout, [&] {
        std::this_thread::sleep_for(700ms);
        self.store->all_gather("agree on memory", "", Deadline(20s));
      });
      return;
    }
    EXPECT_THAT(message_of(ErrorCode::timeout, [&] { self.transport->register_memory(4096, Deadline(400ms)); }),
                HasSubstr("rank 1 did not come"));
  })));
}

TEST_P(TransportContract, TellsALivingPeerFromOneThatLeftInOrder) {
  EXPECT_TRUE(all_ok(run(3, [](ConnectedRank& self) {
    for (int peer = 0; peer < 3; ++peer) EXPECT_EQ(self.transport->peer_status(peer).state, PeerState::alive);
    barrier(*self.store);
    if (self.store->rank() == 1) {
      self.transport->close();
      self.transport->close();
    } else {
      EXPECT_EQ(wait_for_end(*self.transport, 1).state, PeerState::closed);
      EXPECT_EQ(self.transport->peer_status(self.store->rank() == 0 ? 2 : 0).state, PeerState::alive);
    }
    barrier(*self.store);
    // The end of its process or thread changes nothing of that.
    if (self.store->rank() == 1) return;
    std::this_thread::sleep_for(20ms);
    EXPECT_EQ(self.transport->peer_status(1).state, PeerState::closed);
  })));
}

TEST_P(TransportContract, CountsAPeerAsClosedWhenEverybodyLeavesAtOnce) {
  EXPECT_TRUE(all_ok(run(3, [](ConnectedRank& self) {
    const int next = (self.store->rank() + 1) % 3;
    self.transport->close();
    EXPECT_EQ(wait_for_end(*self.transport, next).state, PeerState::closed);
  })));
}

TEST_P(TransportContract, CountsAPeerAsDeadThatDropsTheTransportWithoutClosing) {
  EXPECT_TRUE(all_ok(run(2, [](ConnectedRank& self) {
    if (self.store->rank() == 1) {
      self.transport.reset();
    } else {
      EXPECT_EQ(wait_for_end(*self.transport, 1).state, PeerState::dead);
    }
    barrier(*self.store);
  })));
}

TEST_P(TransportContract, AnswersForPeersFromAnotherThread) {
  EXPECT_TRUE(all_ok(run(2, [](ConnectedRank& self) {
    std::atomic<bool> is_over{false};
    std::thread watcher([&] {
      while (!is_over) EXPECT_NE(self.transport->peer_status(1 - self.store->rank()).state, PeerState::dead);
    });
    for (int i = 0; i < 20; ++i) self.transport->deregister(self.transport->register_memory(4096, Deadline(20s)));
    is_over = true;
    watcher.join();
    barrier(*self.store);
  })));
}

TEST_P(TransportContract, LeavesNothingBehind) {
  const int descriptors = count_in("/proc/self/fd");
  const int mappings = count_mappings("memfd:moebus");
  const auto in_shm = ours_in("/dev/shm");
  const auto in_tmp = ours_in("/tmp");
  EXPECT_TRUE(all_ok(run(3, [](ConnectedRank& self) {
    const int own_mappings = count_mappings("memfd:moebus");
    const Registration kept = self.transport->register_memory(4096, Deadline(20s));
    const Registration given_back = self.transport->register_memory(4096, Deadline(20s));
    self.transport->deregister(given_back);
    if (GetParam().are_ranks_processes) {
      EXPECT_EQ(count_mappings("memfd:moebus"), own_mappings + 3);
      self.transport.reset();
      EXPECT_EQ(count_mappings("memfd:moebus"), own_mappings);
    }
    EXPECT_EQ(kept.peers.size(), 3U);
    barrier(*self.store);
  })));
  EXPECT_EQ(count_in("/proc/self/fd"), descriptors);
  EXPECT_EQ(count_mappings("memfd:moebus"), mappings);
  EXPECT_EQ(ours_in("/dev/shm"), in_shm);
  EXPECT_EQ(ours_in("/tmp"), in_tmp);
}

TEST_P(TransportContract, ConnectsASingleRank) {
  EXPECT_TRUE(all_ok(run(1, [](ConnectedRank& self) {
    const Registration memory = self.transport->register_memory(100, Deadline(20s));
    EXPECT_EQ(memory.peers, std::vector<std::byte*>{memory.local.data});
  })));
}

TEST_P(TransportOfProcessesContract, CountsAKilledPeerAsDead) {
  auto outcomes = run(3, [](ConnectedRank& self) {
    const Registration memory = self.transport->register_memory(4096, Deadline(20s));
    barrier(*self.store);
    if (self.store->rank() == 2) ::raise(SIGKILL);
    EXPECT_EQ(wait_for_end(*self.transport, 2).state, PeerState::dead);
    self.transport->put_signal(2, {memory.id, 0}, memory.local.data, 8, {memory.id, 8}, 1);
    EXPECT_TRUE(self.transport->flush(self.transport->num_started(), Deadline(20s)));
    if (memory.peers[2] == nullptr) return;
    memory.peers[2][0] = std::byte{1};  // its memory stays usable here
    EXPECT_EQ(memory.peers[2][0], std::byte{1});
  });
  EXPECT_EQ(outcomes[2].signal, SIGKILL);
  outcomes[2] = {};
  EXPECT_TRUE(all_ok(outcomes));
}

TEST_P(TransportOfProcessesContract, NamesAPeerThatIsKilledBeforeItRegisters) {
  auto outcomes = run(3, [](ConnectedRank& self) {
    if (self.store->rank() == 1) ::raise(SIGKILL);
    EXPECT_THAT(message_of(ErrorCode::peer_lost, [&] { self.transport->register_memory(4096, Deadline(20s)); }),
                HasSubstr("rank 1"));
  });
  outcomes[1] = {};
  EXPECT_TRUE(all_ok(outcomes));
}

TEST_P(TransportOfProcessesContract, CountsAStoppedPeerAsAlive) {
  const auto outcomes = run(2, [](ConnectedRank& self) {
    barrier(*self.store);
    if (self.store->rank() == 1) ::raise(SIGSTOP);
    std::this_thread::sleep_for(50ms);
    EXPECT_EQ(self.transport->peer_status(1).state, PeerState::alive);
  });
  EXPECT_TRUE(outcomes[0].is_ok()) << outcomes[0].message;
  EXPECT_TRUE(outcomes[1].stopped);
}

TEST_P(TransportOfProcessesContract, ConnectsAsManyRanksAsThereMayBe) {
  EXPECT_TRUE(all_ok(run(kMaxRanks, [](ConnectedRank& self) {
    const int rank = self.store->rank();
    const Registration memory = self.transport->register_memory(4096, Deadline(30s));
    for (int peer = 0; peer < kMaxRanks; ++peer) {
      self.transport->put_signal(peer, {}, nullptr, 0, {memory.id, 8 * idx(rank)}, sync::Word(rank) + 1);
    }
    for (int peer = 0; peer < kMaxRanks; ++peer) {
      ASSERT_TRUE(wait_for_word(*self.transport, memory, 8 * idx(peer), sync::Word(peer) + 1));
    }
    barrier(*self.store);
  })));
}

TEST_P(TransportOfProcessesContract, IsNotKeptAliveByAChildOfAPeer) {
  auto outcomes = run(2, [](ConnectedRank& self) {
    if (self.store->rank() == 1) {
      // A child that only sleeps holds copies of all descriptors, as a data loader's worker would.
      const pid_t child = ::fork();
      if (child == 0) {
        ::sleep(3);
        ::_exit(0);
      }
      ::raise(SIGKILL);
    }
    EXPECT_EQ(wait_for_end(*self.transport, 1).state, PeerState::dead);
  });
  outcomes[1] = {};
  EXPECT_TRUE(all_ok(outcomes));
}

TEST(LoopbackTransport, RefusesRanksOfDifferentProcesses) {
  const std::string uri = "local://loopback-" + std::to_string(::getpid());
  EXPECT_TRUE(all_ok(tests::run_as_processes(2, [&](int rank) {
    const auto store = join_rendezvous(uri, rank, 2, {"", false}, Deadline(20s));
    EXPECT_THAT(message_of(ErrorCode::unsupported, [&] { connect_loopback(*store, Deadline(20s)); }),
                AllOf(HasSubstr("rank 1 and rank 0"), HasSubstr("use shm")));
  })));
}

INSTANTIATE_TEST_SUITE_P(
    Transports,
    TransportContract,
    ::testing::Values(kLoopback, kShmThreads, kShm, kLoopbackUnmapped, kShmUnmapped, kUnrulyLoopback, kUnrulyShm),
    case_name);
INSTANTIATE_TEST_SUITE_P(Transports,
                         MappingTransportContract,
                         ::testing::Values(kLoopback, kShmThreads, kShm),
                         case_name);
INSTANTIATE_TEST_SUITE_P(Transports,
                         TransportOfProcessesContract,
                         ::testing::Values(kShm, kShmUnmapped, kUnrulyShm),
                         case_name);

}  // namespace
}  // namespace moebus::transport
