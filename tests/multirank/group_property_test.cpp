// Random exchanges over nodes, gateways, unmapped peers and placements: every byte compared with the oracle, every
// counter with the fewest rows that must cross. MOEBUS_TEST_SEED=N runs as many others.

#include <gtest/gtest.h>

#include "tests/support/exchange_run.hpp"
#include "tests/support/test_names.hpp"

namespace moebus::tests {
namespace {

class GroupProperty : public ::testing::TestWithParam<Batch> {
 protected:
  static void run_cases(bool as_processes, int num_cases) {
    run_batch(
        GetParam(),
        as_processes,
        num_cases,
        100,
        [](auto... which) { return random_group_case(which...); },
        matches_oracle);
  }
};

TEST_P(GroupProperty, GivesTheOraclesBytesAndTheLeastTrafficToThreads) { run_cases(false, 200 / kSlowdown); }

TEST_P(GroupProperty, GivesTheOraclesBytesAndTheLeastTrafficToProcesses) { run_cases(true, kSlowdown > 1 ? 3 : 30); }

INSTANTIATE_TEST_SUITE_P(Random, GroupProperty, ::testing::ValuesIn(batches_of({1, 2, 3, 4, 7, 8})), name_of_batch);

}  // namespace
}  // namespace moebus::tests
