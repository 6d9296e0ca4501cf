// Bugs planted into the library: a comparison with the oracle that lets them pass would let real ones pass.

#include <cstdlib>

#include "tests/fault/victim.hpp"

namespace moebus::tests {
namespace {

/// Runs some exchanges with the bug; returns how many came out wrong.
int count_wrong(const char* bug, Route route, bool as_processes) {
  ::setenv("MOEBUS_FAULT", bug, 1);
  int num_wrong = 0;
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    ExchangeCase one;
    one.seed = seed;
    one.num_ranks = 3;
    one.num_calls = 4;
    one.as_processes = as_processes;
    one.config = small_config(route, 3);
    one.num_tokens = {16, 16, 16};
    num_wrong += matches_oracle(one) ? 0 : 1;
  }
  ::unsetenv("MOEBUS_FAULT");
  return num_wrong;
}

class PlantedBug : public ::testing::TestWithParam<Route> {};

TEST_P(PlantedBug, OfASkippedFenceIsNoticed) {
  EXPECT_GT(count_wrong("skipped-fence", GetParam(), false), 0);
  EXPECT_GT(count_wrong("skipped-fence", GetParam(), true), 0);
}

/// Routes on which rows wait for the epoch alone; staged rounds are counted.
class PlantedStaleEpoch : public PlantedBug {};

TEST_P(PlantedStaleEpoch, IsNoticed) {
  EXPECT_GT(count_wrong("stale-epoch", GetParam(), false), 0);
  EXPECT_GT(count_wrong("stale-epoch", GetParam(), true), 0);
}

TEST_P(PlantedBug, LeavesNoTraceOnceItIsGone) { EXPECT_EQ(count_wrong("delay:1", GetParam(), true), 0); }

INSTANTIATE_TEST_SUITE_P(Every,
                         PlantedStaleEpoch,
                         ::testing::Values(Route::latency, Route::direct),
                         name_of_route_case);
INSTANTIATE_TEST_SUITE_P(Every, PlantedBug, ::testing::ValuesIn(kRoutes), name_of_route_case);

}  // namespace
}  // namespace moebus::tests
