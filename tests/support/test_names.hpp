// Test names: how parameterised tests name what they run over, and batches of random cases.
// Room: tests · host.

#pragma once

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>
#include <vector>

#include "tests/support/exchange_run.hpp"
#include "workload/random.hpp"

namespace moebus::tests {

[[nodiscard]] inline std::string name_of(Route route) {
  const char* const names[] = {"Latency", "Direct", "Staged"};
  return names[static_cast<int>(route)];
}

[[nodiscard]] inline std::string name_of(Layout layout) {
  const char* const names[] = {"RankMajor", "ExpertMajor", "ExpertPadded"};
  return names[static_cast<int>(layout)];
}

[[nodiscard]] inline std::string name_of_route_case(const ::testing::TestParamInfo<Route>& info) {
  return name_of(info.param);
}

/// Random cases of one size that go one way.
struct Batch {
  int num_ranks;
  Route route;
};

[[nodiscard]] inline std::string name_of_batch(const ::testing::TestParamInfo<Batch>& info) {
  return name_of(info.param.route) + std::to_string(info.param.num_ranks) + "Ranks";
}

/// Each of these sizes by every route.
[[nodiscard]] inline std::vector<Batch> batches_of(std::initializer_list<int> sizes) {
  std::vector<Batch> batches;
  for (const int num_ranks : sizes) {
    for (const Route route : kRoutes) batches.push_back({num_ranks, route});
  }
  return batches;
}

/// Calls `run` with `num_cases` random cases of a batch until a test fails. `salt` keeps suites from running the same.
template <class Generate, class Run>
void run_batch(const Batch& batch,
               bool as_processes,
               int num_cases,
               std::uint64_t salt,
               const Generate& generate,
               const Run& run) {
  const std::uint64_t base = workload::seed_from(first_seed(),
                                                 static_cast<std::uint64_t>(batch.num_ranks) + salt,
                                                 static_cast<std::uint64_t>(batch.route) * 2 + (as_processes ? 1 : 0));
  for (int i = 0; i < num_cases; ++i) {
    ExchangeCase one = generate(workload::seed_from(base, static_cast<std::uint64_t>(i)), batch.num_ranks, batch.route);
    one.as_processes = as_processes;
    ASSERT_TRUE(run(one)) << "MOEBUS_TEST_SEED=" << first_seed() << ", case " << i;
  }
}

}  // namespace moebus::tests
