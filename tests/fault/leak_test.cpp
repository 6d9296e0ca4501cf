// Nothing is left behind by a group: no descriptor, thread, mapping or name; not even when a peer died.

#include <malloc.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "tests/fault/victim.hpp"
#include "tests/support/process_state.hpp"

namespace moebus::tests {
namespace {

void go_round(const std::string& uri, int rank, const Round& round, bool has_close) {
  Group group = Group::join(uri, rank, round.one.num_ranks, quiet_options());
  ExchangeRun run(group, round.one);
  for (int call = 0; call < 3; ++call) run.exchange_once(round.sent, round.back);
  if (has_close) group.close();
}

std::vector<std::string> some_uris(bool as_processes, int num) {
  std::vector<std::string> uris;
  for (int i = 0; i < num; ++i) uris.push_back(unique_uri(as_processes));
  return uris;
}

class Leak : public ::testing::TestWithParam<Route> {};

TEST_P(Leak, IsNotLeftByGroupsOfProcesses) {
  const Round round(3, GetParam());
  const auto uris = some_uris(true, 5);
  expect_ok(run_as_processes(3, [&](int rank) {
    go_round(uris[0], rank, round, true);  // what is made once per process
    const ProcessState before = process_state();
    for (std::size_t i = 1; i < uris.size(); ++i) go_round(uris[i], rank, round, i % 2 == 0);
    const ProcessState after = process_state();
    EXPECT_EQ(after.descriptors, before.descriptors) << after.text();
    EXPECT_EQ(after.threads, before.threads) << after.text();
    EXPECT_EQ(after.shared_mappings, 0) << after.text();
    EXPECT_EQ(before.shared_mappings, 0) << before.text();
  }));
}

TEST_P(Leak, IsNotLeftByGroupsOfThreads) {
  const Round round(3, GetParam());
  const auto go = [&](const std::string& uri) {
    expect_ok(run_as_threads(3, [&](int rank) { go_round(uri, rank, round, true); }));
  };
  go(unique_uri(false));
  const ProcessState before = process_state();
  for (int i = 0; i < 4; ++i) go(unique_uri(false));
  const ProcessState after = process_state();
  EXPECT_EQ(after.descriptors, before.descriptors) << after.text();
  EXPECT_EQ(after.threads, before.threads) << after.text();
}

TEST_P(Leak, IsNotLeftWhenAPeerWasKilled) {
  const Round round(3, GetParam());
  const auto uris = some_uris(true, 2);
  const auto names = process_state().named_things;
  EXPECT_TRUE(all_but_victim_ok(run_as_processes(3,
                                                 [&](int rank) {
                                                   go_round(uris[0], rank, round, true);
                                                   const ProcessState before = process_state();
                                                   {
                                                     Group group = Group::join(uris[1], rank, 3, quiet_options());
                                                     ExchangeRun run(group, round.one);
                                                     run.exchange_once(round.sent, round.back);
                                                     const ProcessState during = process_state();
                                                     EXPECT_EQ(during.shared_mappings, 9) << during.text();
                                                     if (rank == 1) ::raise(SIGKILL);
                                                     EXPECT_EQ(exchange_until_error(run, round).origin_rank(), 1);
                                                     group.close();
                                                     // Closed: everything of the system is back, though group and
                                                     // exchange are still here.
                                                     const ProcessState after = process_state();
                                                     EXPECT_EQ(after.descriptors, before.descriptors) << after.text();
                                                     EXPECT_EQ(after.threads, before.threads) << after.text();
                                                     EXPECT_EQ(after.shared_mappings, 0) << after.text();
                                                   }
                                                 }),
                                1,
                                SIGKILL));
  EXPECT_EQ(process_state().named_things, names);
}

INSTANTIATE_TEST_SUITE_P(Every, Leak, ::testing::ValuesIn(kRoutes), name_of_route_case);

/// Bytes that this process has asked for and not given back, and bytes that lie in memory.
struct MemoryInUse {
  std::size_t heap = 0;
  std::size_t resident = 0;
};

MemoryInUse memory_in_use() {
  const auto heap = ::mallinfo2();
  std::ifstream statm("/proc/self/statm");
  std::size_t pages = 0;
  statm >> pages >> pages;
  return {heap.uordblks + heap.hblkhd, pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE))};
}

/// Exchanges of three routes, over two contexts; each call has other numbers of tokens.
struct ManyShapes {
  static constexpr int kNumTruths = 5;
  std::vector<ExchangeCase> cases;
  std::vector<std::vector<DispatchTruth>> sent;
  std::vector<std::vector<CombineTruth>> back;

  ManyShapes(MapPeers map_peers, const std::vector<int>& nodes) {
    for (const Route route : kRoutes) {
      ExchangeCase one;
      one.seed = 7 + static_cast<std::uint64_t>(route);
      one.num_ranks = 3;
      one.as_processes = true;
      one.map_peers = map_peers;
      one.nodes = nodes;
      one.config = small_config(route, 3);
      one.config.layout = kLayouts[static_cast<std::size_t>(route)];
      one.config.stage_bytes *= 4;
      one.config.context = static_cast<int>(route) % 2;
      cases.push_back(one);
      sent.emplace_back();
      back.emplace_back();
      for (int call = 0; call < kNumTruths; ++call) {
        sent.back().push_back(make_dispatch_truth(cases.back(), call));
        back.back().push_back(make_combine_truth(cases.back(), sent.back().back(), call));
      }
    }
  }

  void go_round(std::vector<ExchangeRun>& runs, std::int64_t num_exchanges) const {
    for (std::int64_t i = 0; i < num_exchanges; ++i) {
      const std::size_t which = base::idx(i) % runs.size();
      const std::size_t call = base::idx(i) / runs.size() % kNumTruths;
      runs[which].exchange_once(sent[which][call], back[which][call]);
    }
  }
};

void expect_no_growth(MapPeers map_peers, const std::vector<int>& nodes) {
  const ManyShapes shapes(map_peers, nodes);
  expect_ok(run_group(shapes.cases[0], [&](Group& group) {
    std::vector<ExchangeRun> runs;
    for (const ExchangeCase& one : shapes.cases) runs.emplace_back(group, one);
    constexpr std::int64_t kNumExchanges = 10'000 / kSlowdown;
    shapes.go_round(runs, 500);
    const ProcessState before = process_state();
    const MemoryInUse used_before = memory_in_use();
    shapes.go_round(runs, kNumExchanges);
    const ProcessState after = process_state();
    const MemoryInUse used_after = memory_in_use();
    std::uint64_t num_calls = 0;
    for (ExchangeRun& run : runs) num_calls += run.exchange().stats().combine.calls;
    EXPECT_EQ(num_calls, 500U + static_cast<std::uint64_t>(kNumExchanges));
    EXPECT_EQ(after.descriptors, before.descriptors) << after.text();
    EXPECT_EQ(after.threads, before.threads) << after.text();
    EXPECT_EQ(after.shared_mappings, before.shared_mappings) << after.text();
    EXPECT_EQ(after.shared_bytes, before.shared_bytes) << after.text();
    // A byte that stayed of each exchange would be seen; what the test itself holds is the same at both times.
    EXPECT_LT(used_after.heap, used_before.heap + 5'000);
    EXPECT_LT(used_after.resident, used_before.resident + (std::size_t{1} << 20));
  }));
}

TEST(TenThousandExchanges, DoNotGrowOnOneNode) { expect_no_growth(MapPeers::reachable, {}); }

TEST(TenThousandExchanges, DoNotGrowWhenNobodyIsMapped) { expect_no_growth(MapPeers::none, {}); }

TEST(TenThousandExchanges, DoNotGrowOverNodes) { expect_no_growth(MapPeers::node, {0, 0, 1}); }

TEST(AFailedJoin, LeavesNothingBehind) {
  const auto uris = some_uris(true, 3);
  const auto names = process_state().named_things;
  expect_ok(run_as_processes(2, [&](int rank) {
    GroupOptions options = quiet_options();
    options.join_limit = milliseconds(300);
    const auto fail = [&](const std::string& uri) { EXPECT_THROW(Group::join(uri, rank, 3, options), Error); };
    fail(uris[0]);
    const ProcessState before = process_state();
    fail(uris[1]);
    fail(uris[2]);
    const ProcessState after = process_state();
    EXPECT_EQ(after.descriptors, before.descriptors) << after.text();
    EXPECT_EQ(after.threads, before.threads) << after.text();
    EXPECT_EQ(after.shared_mappings, 0) << after.text();
  }));
  EXPECT_EQ(process_state().named_things, names);
}

TEST(AFailedPrepare, LeavesNothingBehind) {
  expect_ok(run_group(2, true, [](Group& group) {
    const auto fail = [&] {
      ExchangeConfig config = small_config();
      config.hidden += group.rank();
      Exchange exchange(group, config);
      EXPECT_THROW(exchange.prepare(), Error);
    };
    fail();
    const ProcessState before = process_state();
    for (int i = 0; i < 5; ++i) fail();
    EXPECT_EQ(process_state(), before) << process_state().text();
  }));
}

TEST(TheFileOfARendezvous, IsGoneOnceAllAreThere) {
  const std::string path =
      (std::filesystem::temp_directory_path() / ("rendezvous-" + std::to_string(::getpid()))).string();
  expect_ok(run_as_processes(3, [&](int rank) {
    Group group = Group::join("file://" + path, rank, 3, quiet_options());
    group.barrier();
    EXPECT_FALSE(std::filesystem::exists(path));
  }));
  EXPECT_FALSE(std::filesystem::exists(path));
}

}  // namespace
}  // namespace moebus::tests
