// Random exchanges over nodes, gateways, unmapped peers and placements: every byte compared with the oracle, every
// counter with the fewest rows that must cross. MOEBUS_TEST_SEED=N runs as many others.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/exchange_run.hpp"
#include "workload/random.hpp"

namespace moebus::tests {
namespace {

struct Batch {
  int num_ranks;
  Route route;
};

std::string name_of(const ::testing::TestParamInfo<Batch>& info) {
  const char* const names[] = {"Latency", "Direct", "Staged"};
  return names[static_cast<int>(info.param.route)] + std::to_string(info.param.num_ranks) + "Ranks";
}

class GroupProperty : public ::testing::TestWithParam<Batch> {
 protected:
  static void run_cases(bool as_processes, int num_cases) {
    const auto [num_ranks, route] = GetParam();
    const std::uint64_t base = workload::seed_from(first_seed(),
                                                   static_cast<std::uint64_t>(num_ranks) + 100,
                                                   static_cast<std::uint64_t>(route) * 2 + (as_processes ? 1 : 0));
    for (int i = 0; i < num_cases; ++i) {
      ExchangeCase one = random_group_case(workload::seed_from(base, static_cast<std::uint64_t>(i)), num_ranks, route);
      one.as_processes = as_processes;
      ASSERT_TRUE(matches_oracle(one)) << "MOEBUS_TEST_SEED=" << first_seed() << ", case " << i;
    }
  }
};

TEST_P(GroupProperty, GivesTheOraclesBytesAndTheLeastTrafficToThreads) { run_cases(false, 200 / kSlowdown); }

TEST_P(GroupProperty, GivesTheOraclesBytesAndTheLeastTrafficToProcesses) { run_cases(true, kSlowdown > 1 ? 3 : 30); }

std::vector<Batch> all_batches() {
  std::vector<Batch> batches;
  for (const int num_ranks : {1, 2, 3, 4, 7, 8}) {
    for (const Route route : kRoutes) batches.push_back({num_ranks, route});
  }
  return batches;
}

INSTANTIATE_TEST_SUITE_P(Random, GroupProperty, ::testing::ValuesIn(all_batches()), name_of);

}  // namespace
}  // namespace moebus::tests
