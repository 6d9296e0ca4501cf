// Random exchanges, every byte of every rank compared with the oracle. MOEBUS_TEST_SEED=N runs as many others.

#include <gtest/gtest.h>

#include "tests/support/exchange_run.hpp"
#include "tests/support/test_names.hpp"

namespace moebus::tests {
namespace {

class ExchangeProperty : public ::testing::TestWithParam<Batch> {
 protected:
  static void run_cases(bool as_processes, int num_cases) {
    run_batch(
        GetParam(), as_processes, num_cases, 0, [](auto... which) { return random_case(which...); }, matches_oracle);
  }
};

TEST_P(ExchangeProperty, GivesTheOraclesBytesToThreads) { run_cases(false, 200 / kSlowdown); }

TEST_P(ExchangeProperty, GivesTheOraclesBytesToProcesses) { run_cases(true, kSlowdown > 1 ? 3 : 30); }

INSTANTIATE_TEST_SUITE_P(Random, ExchangeProperty, ::testing::ValuesIn(batches_of({1, 2, 3, 4, 7, 8})), name_of_batch);

}  // namespace
}  // namespace moebus::tests
