// A process that is stopped (SIGSTOP) at any moment: waited for if it wakes in time, named if it does not.

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <new>
#include <thread>

#include "tests/fault/victim.hpp"
#include "workload/random.hpp"

namespace moebus::tests {
namespace {

/// A number that all forked ranks see.
class SharedPid {
 public:
  SharedPid()
      : pid_(new(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))
                 std::atomic<pid_t>(0)) {}

  ~SharedPid() { ::munmap(pid_, 4096); }

  SharedPid(const SharedPid&) = delete;
  SharedPid& operator=(const SharedPid&) = delete;

  void set(pid_t pid) const { pid_->store(pid); }

  /// Waits for the number; only a hang makes this long.
  [[nodiscard]] pid_t get() const {
    while (pid_->load() == 0) std::this_thread::sleep_for(milliseconds(1));
    return pid_->load();
  }

 private:
  std::atomic<pid_t>* pid_;
};

class StoppedRank : public ::testing::TestWithParam<Route> {};

TEST_P(StoppedRank, IsWaitedForIfItWakesWithinTheLimits) {
  const Round round(3, GetParam());
  const SharedPid victim;
  const auto body = [&](Group& group) {
    if (group.rank() == 1) victim.set(::getpid());
    std::thread stopper;
    if (group.rank() == 0) {
      stopper = std::thread([pid = victim.get()] {
        for (int i = 0; i < 5; ++i) {
          std::this_thread::sleep_for(milliseconds(7));
          ::kill(pid, SIGSTOP);
          std::this_thread::sleep_for(milliseconds(100));
          ::kill(pid, SIGCONT);
        }
      });
    }
    ExchangeRun run(group, round.one);
    for (int call = 0; call < 300; ++call) run.exchange_once(round.sent, round.back);
    group.barrier();
    if (stopper.joinable()) stopper.join();
    group.barrier();  // nobody leaves while the victim may still be stopped
  };
  expect_ok(run_group(3, true, body));
}

TEST_P(StoppedRank, IsNamedByAllOthersIfItDoesNotWake) {
  for (std::uint64_t seed = first_seed(); seed < first_seed() + 4; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Round round(4, GetParam());
    const SharedPid victim;
    ::setenv("MOEBUS_FAULT", ("delay:" + std::to_string(seed)).c_str(), 1);
    const auto body = [&](Group& group) {
      ExchangeRun run(group, round.one);
      if (group.rank() == 1) victim.set(::getpid());
      std::thread stopper;
      if (group.rank() == 3) {
        stopper = std::thread([pid = victim.get(), seed] {
          workload::Random random(seed);
          std::this_thread::sleep_for(std::chrono::microseconds(random.below(20'000)));
          ::kill(pid, SIGSTOP);
        });
      }
      const Error error = exchange_until_error(run, round);
      EXPECT_EQ(error.code(), ErrorCode::timeout) << error.what();
      EXPECT_EQ(error.origin_rank(), 1) << error.what();
      expect_poisoned(group, run, round, error);
      if (stopper.joinable()) stopper.join();
    };
    std::vector<RankOutcome> outcomes = run_group(4, true, body, limits(milliseconds(1000), milliseconds(1000)));
    ::unsetenv("MOEBUS_FAULT");
    EXPECT_TRUE(outcomes[1].stopped);
    outcomes[1] = {};
    ASSERT_TRUE(all_ok(outcomes));
  }
}

INSTANTIATE_TEST_SUITE_P(Every, StoppedRank, ::testing::ValuesIn(kRoutes), name_of_route_case);

}  // namespace
}  // namespace moebus::tests
