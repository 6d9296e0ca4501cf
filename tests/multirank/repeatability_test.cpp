// The same bytes, whatever the ranks' speed: pauses are injected at every step, different ones for every seed.

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "tests/support/exchange_run.hpp"
#include "tests/support/test_names.hpp"
#include "workload/random.hpp"

namespace moebus::tests {
namespace {

/// Sets a variable for as long as it lives; ranks read it when they join.
class ScopedVariable {
 public:
  ScopedVariable(const char* name, const std::string& value) : name_(name) { ::setenv(name, value.c_str(), 1); }

  ~ScopedVariable() { ::unsetenv(name_); }

  ScopedVariable(const ScopedVariable&) = delete;
  ScopedVariable& operator=(const ScopedVariable&) = delete;

 private:
  const char* name_;
};

class Repeatability : public ::testing::TestWithParam<Route> {
 protected:
  static void run(bool as_processes, std::uint64_t num_seeds) {
    for (std::uint64_t i = 0; i < 4; ++i) {
      ExchangeCase one = random_case(workload::seed_from(31, i), 4, GetParam());
      one.as_processes = as_processes;
      one.num_calls = 4;
      for (std::uint64_t seed = 1; seed <= num_seeds; ++seed) {
        const ScopedVariable fault("MOEBUS_FAULT", "delay:" + std::to_string(seed * 1000 + i));
        ASSERT_TRUE(matches_oracle(one)) << "delays of seed " << seed * 1000 + i;
      }
    }
  }
};

TEST_P(Repeatability, HoldsForThreadsUnderDelays) { run(false, kSlowdown > 1 ? 2 : 4); }

TEST_P(Repeatability, HoldsForProcessesUnderDelays) { run(true, kSlowdown > 1 ? 1 : 3); }

INSTANTIATE_TEST_SUITE_P(Every, Repeatability, ::testing::ValuesIn(kRoutes), name_of_route_case);

}  // namespace
}  // namespace moebus::tests
