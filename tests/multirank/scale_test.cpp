// Many ranks on few cores, and the largest shapes that a limit allows.

#include <gtest/gtest.h>

#include "tests/support/exchange_run.hpp"

namespace moebus::tests {
namespace {

ExchangeCase crowd(int num_ranks, Route route, bool as_processes) {
  ExchangeCase one;
  one.seed = 640;
  one.num_ranks = num_ranks;
  one.as_processes = as_processes;
  one.num_calls = 2;
  one.config = small_config(route, num_ranks);
  one.config.num_experts = 130;  // two or three a rank
  one.config.num_topk = 8;
  one.config.max_tokens_per_rank = 8;
  set_route(one.config, route, num_ranks);
  one.num_tokens.assign(static_cast<std::size_t>(num_ranks), 8);
  return one;
}

TEST(ManyRanks, ExchangeAsProcessesOnTheLatencyPath) { EXPECT_TRUE(matches_oracle(crowd(64, Route::latency, true))); }

TEST(ManyRanks, ExchangeAsProcessesOnTheThroughputPath) { EXPECT_TRUE(matches_oracle(crowd(64, Route::direct, true))); }

TEST(ManyRanks, ExchangeAsThreadsInRounds) { EXPECT_TRUE(matches_oracle(crowd(kMaxRanks, Route::staged, false))); }

TEST(ManyRanks, NeedNotBeAPowerOfTwo) {
  for (const int num_ranks : {6, 12, 24}) EXPECT_TRUE(matches_oracle(crowd(num_ranks, Route::latency, false)));
}

TEST(OneRank, PermutesItsOwnTokens) {
  for (const Route route : kRoutes) {
    for (const Layout layout : kLayouts) {
      ExchangeCase one = crowd(1, route, false);
      one.config.layout = layout;
      EXPECT_TRUE(matches_oracle(one));
    }
  }
}

TEST(LargestTopk, WorksWithFewerExpertsThanChoices) {
  for (const Route route : kRoutes) {
    ExchangeCase one = crowd(3, route, false);
    one.config.num_topk = kMaxTopk;
    one.config.num_experts = 20;
    one.config.layout = Layout::expert_major;
    one.config.combine_rows = CombineRows::per_expert;
    one.weighting = Weighting::dispatched;
    set_route(one.config, route, 3);
    EXPECT_TRUE(matches_oracle(one));
  }
}

}  // namespace
}  // namespace moebus::tests
