// The counters of an exchange, against what follows from the routing.

#include <gtest/gtest.h>

#include <chrono>
#include <set>
#include <string>
#include <thread>

#include "base/math.hpp"
#include "oracle/numbers.hpp"
#include "tests/support/exchange_run.hpp"

namespace moebus::tests {
namespace {

using base::idx;

/// Tokens of `src` that have an expert on `dst`, by counting.
std::uint64_t rows_between(const ExchangeCase& one, const DispatchTruth& truth, int src, int dst) {
  const oracle::RankInput& input = (*truth.inputs)[idx(src)];
  std::uint64_t rows = 0;
  for (std::int64_t token = 0; token < input.num_tokens; ++token) {
    std::set<int> ranks;
    for (int k = 0; k < one.config.num_topk; ++k) {
      const std::int64_t expert = input.topk_idx[idx(token * one.config.num_topk + k)];
      if (expert >= 0) ranks.insert(oracle::owner_of(one.config.num_experts, one.num_ranks, static_cast<int>(expert)));
    }
    rows += ranks.count(dst);
  }
  return rows;
}

std::uint64_t row_bytes(const ExchangeConfig& config) {
  std::size_t bytes = oracle::received_row_bytes(config) + oracle::scale_row_bytes(config.hidden, config.scale_format);
  for (const int side : config.side_bytes) bytes += idx(side);
  return bytes;
}

struct Kind {
  Route route;
  Layout layout;
};

class Stats : public ::testing::TestWithParam<Kind> {
 protected:
  static ExchangeCase make_case() {
    ExchangeCase one;
    one.num_ranks = 3;
    one.config = small_config(GetParam().route, 3);
    one.config.layout = GetParam().layout;
    one.config.num_experts = 10;  // 4, 3 and 3
    one.config.hidden = 200;
    one.config.cast = Cast::fp8;
    one.config.scale_format = ScaleFormat::f32;
    one.config.side_bytes = {7, 4};
    one.gate = Gate::repeated;
    set_route(one.config, GetParam().route, 3);
    return one;
  }
};

TEST_P(Stats, CountOneRowPerTokenAndRank) {
  const ExchangeCase one = make_case();
  const DispatchTruth sent = make_dispatch_truth(one, 0);
  const CombineTruth back = make_combine_truth(one, sent, 0);
  expect_ok(run_group(3, false, [&](Group& group) {
    const int rank = group.rank();
    ExchangeRun run(group, one);
    for (int call = 0; call < 2; ++call) run.exchange_once(sent, back);
    const ExchangeStats stats = run.exchange().stats();
    EXPECT_EQ(stats.num_ranks, 3);
    EXPECT_EQ(stats.dispatch.calls, 2U);
    EXPECT_EQ(stats.combine.calls, 2U);
    EXPECT_EQ(stats.dispatch.refused + stats.combine.refused, 0U);
    EXPECT_GE(stats.dispatch.total_ns, stats.dispatch.wait_ns);
    EXPECT_GE(stats.combine.total_ns, stats.combine.wait_ns);
    EXPECT_GT(stats.dispatch.bytes_control, 0U);
    const std::uint64_t answer = 200 * 2;  // bf16
    for (int peer = 0; peer < 3; ++peer) {
      const std::uint64_t out = 2 * rows_between(one, sent, rank, peer);
      const std::uint64_t in = 2 * rows_between(one, sent, peer, rank);
      const std::uint64_t link = peer == rank ? 0 : 1;
      const PeerStats& there = stats.dispatch_peers[idx(peer)];
      const PeerStats& home = stats.combine_peers[idx(peer)];
      EXPECT_EQ(there.rows_sent, out);
      EXPECT_EQ(there.rows_received, in);
      EXPECT_EQ(there.bytes_sent, link * out * row_bytes(one.config));
      EXPECT_EQ(there.bytes_received, link * in * row_bytes(one.config));
      EXPECT_EQ(home.rows_sent, in);
      EXPECT_EQ(home.rows_received, out);
      EXPECT_EQ(home.bytes_sent, link * in * answer);
      EXPECT_EQ(home.bytes_received, link * out * answer);
    }
    run.exchange().reset_stats();
    EXPECT_EQ(run.exchange().stats().dispatch.calls, 0U);
    EXPECT_EQ(run.exchange().stats().dispatch_peers[0].rows_sent, 0U);
  }));
}

/// Layouts whose rows can come home one by one; rank_major rows are summed by the caller.
class ExpertStats : public Stats {};

TEST_P(ExpertStats, CountRowsOfEveryExpertWhenNoneAreSummedAtTheOwner) {
  ExchangeCase one = make_case();
  one.config.combine_rows = CombineRows::per_expert;
  one.gate = Gate::uniform;
  const DispatchTruth sent = make_dispatch_truth(one, 0);
  const CombineTruth back = make_combine_truth(one, sent, 0);
  expect_ok(run_group(3, false, [&](Group& group) {
    ExchangeRun run(group, one);
    run.exchange_once(sent, back);
    const ExchangeStats stats = run.exchange().stats();
    std::array<std::uint64_t, 3> owned{};
    for (const oracle::ReceivedRow& row : sent.expected[idx(group.rank())].rows) ++owned[idx(row.src_rank)];
    std::array<std::uint64_t, 3> returned{};
    for (int owner = 0; owner < 3; ++owner) {
      for (const oracle::ReceivedRow& row : sent.expected[idx(owner)].rows) {
        if (row.src_rank == group.rank()) ++returned[idx(owner)];
      }
    }
    for (int peer = 0; peer < 3; ++peer) {
      EXPECT_EQ(stats.combine_peers[idx(peer)].rows_sent, owned[idx(peer)]);
      EXPECT_EQ(stats.combine_peers[idx(peer)].rows_received, returned[idx(peer)]);
    }
  }));
}

TEST_P(Stats, CountRowsThatTheCapacityDropped) {
  ExchangeCase one = make_case();
  one.gate = Gate::single;
  one.num_tokens = {16, 16, 16};
  one.config.capacity_rows = 10;
  const DispatchTruth sent = make_dispatch_truth(one, 0);
  const CombineTruth back = make_combine_truth(one, sent, 0);
  EXPECT_GT(sent.expected[0].num_overflowed, 0);
  expect_ok(run_group(3, false, [&](Group& group) {
    ExchangeRun run(group, one);
    run.exchange_once(sent, back);
    const ExchangeStats stats = run.exchange().stats();
    EXPECT_EQ(stats.dispatch.rows_overflowed,
              static_cast<std::uint64_t>(sent.expected[idx(group.rank())].num_overflowed));
    // All rows go to rank 0, which keeps the first ten: its own.
    if (GetParam().layout != Layout::rank_major) return;
    const std::uint64_t kept = group.rank() == 0 ? 10 : 0;
    EXPECT_EQ(stats.combine_peers[0].rows_received, kept);
    EXPECT_EQ(stats.combine_peers[0].rows_sent, kept);
  }));
}

TEST(Waiting, IsCountedForThePeerThatWasLate) {
  ExchangeCase one;
  one.num_ranks = 3;
  one.config = small_config(Route::latency, 3);
  const DispatchTruth sent = make_dispatch_truth(one, 0);
  const CombineTruth back = make_combine_truth(one, sent, 0);
  expect_ok(run_group(3, true, [&](Group& group) {
    ExchangeRun run(group, one);
    run.exchange_once(sent, back);
    run.exchange().reset_stats();
    group.barrier();
    constexpr std::chrono::milliseconds kLate{400};
    if (group.rank() == 1) std::this_thread::sleep_for(kLate);
    run.exchange_once(sent, back);
    const ExchangeStats stats = run.exchange().stats();
    if (group.rank() == 1) return;
    // How much of its sleep this rank stood waiting is the machine's business; that it stood waiting is not.
    constexpr std::uint64_t least = 1'000'000;
    EXPECT_GE(stats.dispatch_peers[1].wait_ns, least);
    EXPECT_GE(stats.dispatch.wait_ns, least);
    EXPECT_EQ(stats.dispatch_peers[idx(group.rank())].wait_ns, 0U);
  }));
}

std::vector<Kind> all_kinds() {
  std::vector<Kind> kinds;
  for (const Route route : kRoutes) {
    for (const Layout layout : kLayouts) kinds.push_back({route, layout});
  }
  return kinds;
}

std::vector<Kind> expert_kinds() {
  std::vector<Kind> kinds = all_kinds();
  std::erase_if(kinds, [](const Kind& kind) { return kind.layout == Layout::rank_major; });
  return kinds;
}

INSTANTIATE_TEST_SUITE_P(Every, ExpertStats, ::testing::ValuesIn(expert_kinds()));
INSTANTIATE_TEST_SUITE_P(Every, Stats, ::testing::ValuesIn(all_kinds()));

}  // namespace
}  // namespace moebus::tests
