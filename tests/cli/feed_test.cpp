#include "cli/feed.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "cli/floor.hpp"
#include "oracle/dispatch.hpp"

namespace moebus::cli {
namespace {

BenchSetup small_setup(const std::string& layout) {
  BenchOptions options;
  options.tokens = 21;
  options.hidden = 48;
  options.topk = 3;
  options.experts = 10;
  options.layout = layout;
  complete(options);
  Machine machine;
  machine.l2_bytes = 1 << 10;
  machine.l3_bytes = 1 << 12;
  return make_setup(options, 4, machine, 2);
}

std::size_t rows_from(const oracle::DispatchExpectation& expected, int source) {
  return static_cast<std::size_t>(
      std::count_if(expected.rows.begin(), expected.rows.end(), [&](const oracle::ReceivedRow& row) {
        return row.src_rank == source;
      }));
}

double writes_to_peers(const CopyPlan& plan) {
  double bytes = 0;
  for (const CopyStep& step : plan.push) bytes += static_cast<double>(step.rows * step.row_bytes);
  return bytes;
}

TEST(RowCounts, AreThoseOfTheOracle) {
  const BenchSetup setup = small_setup("rank_major");
  const auto dispatched = oracle::dispatch(setup.config, first_inputs(setup));
  for (int rank = 0; rank < setup.num_ranks; ++rank) {
    const RowCounts counts = count_rows(setup, rank).front();
    const auto& here = dispatched[static_cast<std::size_t>(rank)];
    EXPECT_EQ(counts.result_rows, here.num_rows);
    for (int peer = 0; peer < setup.num_ranks; ++peer) {
      const auto p = static_cast<std::size_t>(peer);
      EXPECT_EQ(counts.received[p], here.rank_counts[p]);
      EXPECT_EQ(static_cast<std::size_t>(counts.sent[p]), rows_from(dispatched[p], rank));
    }
  }
}

TEST(RowCounts, CountARowForEachExpertInExpertLayouts) {
  const BenchSetup setup = small_setup("expert_major");
  const auto dispatched = oracle::dispatch(setup.config, first_inputs(setup));
  const RowCounts counts = count_rows(setup, 2).front();
  EXPECT_EQ(static_cast<std::size_t>(counts.result_rows), dispatched[2].rows.size());
}

TEST(InputSets, ExceedTwiceTheCaches) {
  const BenchSetup setup = small_setup("rank_major");
  EXPECT_GE(static_cast<std::size_t>(setup.num_sets) * setup.set_bytes, setup.rotated_bytes);
  EXPECT_GE(setup.num_sets, 2);
}

TEST(BenchSetup, SaysHowManyRanksShareACore) { EXPECT_EQ(small_setup("rank_major").ranks_per_core, 2.0); }

TEST(InputSets, DifferFromEachOtherAndNotFromRunToRun) {
  const BenchSetup setup = small_setup("rank_major");
  const workload::RoutingGenerator routing = routing_of(setup);
  EXPECT_EQ(make_input(setup, routing, 1, 1).tokens, make_input(setup, routing, 1, 1).tokens);
  EXPECT_NE(make_input(setup, routing, 1, 0).tokens, make_input(setup, routing, 1, 1).tokens);
  EXPECT_NE(make_input(setup, routing, 1, 0).topk_idx, make_input(setup, routing, 1, 1).topk_idx);
}

TEST(Floor, PushesEachRemoteRowOnce) {
  const BenchSetup setup = small_setup("expert_major");
  const FloorWindows windows(setup, true);
  const auto counts = count_rows(setup, 1);
  const Floor floor(setup, 1, windows, counts);
  std::int64_t remote = 0;
  for (int peer = 0; peer < setup.num_ranks; ++peer) {
    if (peer != 1) remote += counts[0].sent[static_cast<std::size_t>(peer)];
  }
  EXPECT_EQ(writes_to_peers(floor.dispatch()[0]), static_cast<double>(remote) * 96);
}

TEST(Floor, WritesEachResultRowOnceOnTheLatencyPath) {
  const BenchSetup setup = small_setup("expert_major");
  const FloorWindows windows(setup, true);
  const auto counts = count_rows(setup, 1);
  const Floor floor(setup, 1, windows, counts);
  const CopyPlan& plan = floor.dispatch()[0];
  EXPECT_EQ(bytes_written(plan) - writes_to_peers(plan), static_cast<double>(counts[0].result_rows) * 96);
}

TEST(Floor, WritesEachOutputOfCombineOnce) {
  const BenchSetup setup = small_setup("rank_major");
  const FloorWindows windows(setup, true);
  const auto counts = count_rows(setup, 3);
  const Floor floor(setup, 3, windows, counts);
  const CopyPlan& plan = floor.combine()[0];
  std::int64_t returned = 0;
  for (int peer = 0; peer < 3; ++peer) returned += counts[0].received[static_cast<std::size_t>(peer)];
  EXPECT_EQ(writes_to_peers(plan), static_cast<double>(returned) * 96);
  EXPECT_EQ(bytes_written(plan) - writes_to_peers(plan), 21.0 * 96);
}

}  // namespace
}  // namespace moebus::cli
