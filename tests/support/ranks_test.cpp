#include "tests/support/ranks.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <new>
#include <stdexcept>
#include <thread>

namespace moebus::tests {
namespace {

using std::chrono_literals::operator""ms;

TEST(RunAsThreads, RunsTheBodyOncePerRankAndReportsWhatItThrew) {
  std::atomic<int> seen{0};
  const auto outcomes = run_as_threads(3, [&](int rank) {
    seen += 1 << rank;
    if (rank == 1) throw std::runtime_error("seven");
  });
  EXPECT_EQ(seen, 7);
  EXPECT_TRUE(outcomes[0].is_ok());
  EXPECT_EQ(outcomes[1].message, "exception: seven");
  EXPECT_FALSE(all_ok(outcomes));
}

TEST(RunAsProcesses, ReportsExceptionsFailedExpectationsExitCodesAndSignals) {
  const auto outcomes = run_as_processes(5, [](int rank) {
    if (rank == 1) throw std::runtime_error("seven");
    if (rank == 2) {
      EXPECT_EQ(rank, 3) << "told through the pipe";
    }
    if (rank == 3) ::_exit(42);
    if (rank == 4) ::raise(SIGKILL);
  });
  EXPECT_TRUE(outcomes[0].is_ok()) << outcomes[0].message;
  EXPECT_EQ(outcomes[1].message, "exception: seven");
  EXPECT_NE(outcomes[2].message.find("told through the pipe"), std::string::npos) << outcomes[2].message;
  EXPECT_EQ(outcomes[2].exit_code, 1);
  EXPECT_EQ(outcomes[3].exit_code, 42);
  EXPECT_EQ(outcomes[4].signal, SIGKILL);
}

TEST(RunAsProcesses, KillsAStoppedRankWhenNobodyElseRuns) {
  const auto outcomes = run_as_processes(2, [](int rank) {
    if (rank == 1) ::raise(SIGSTOP);
  });
  EXPECT_TRUE(outcomes[0].is_ok());
  EXPECT_TRUE(outcomes[1].stopped);
  EXPECT_EQ(outcomes[1].signal, SIGKILL);
}

TEST(RunAsProcesses, LeavesARankAloneThatWasWokenAndIsOnItsWayOut) {
  // Much memory takes long to be given back: for that time the rank is neither running nor gone.
  constexpr std::size_t kBytes = std::size_t{512} << 20;
  void* const shared = ::mmap(nullptr, sizeof(pid_t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  auto* const stopped = new (shared) std::atomic<pid_t>(0);
  const auto outcomes = run_as_processes(2, [stopped](int rank) {
    if (rank == 1) {
      ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
      *stopped = ::getpid();
      ::raise(SIGSTOP);
      ::_exit(0);
    }
    while (*stopped == 0) std::this_thread::sleep_for(1ms);
    std::this_thread::sleep_for(50ms);  // until the stop was noticed
    ::kill(*stopped, SIGCONT);
    ::_exit(0);
  });
  ::munmap(shared, sizeof(pid_t));
  EXPECT_EQ(outcomes[1].signal, 0);
  EXPECT_FALSE(outcomes[1].stopped);
}

TEST(RunAsProcesses, KillsStragglersAtTheLimit) {
  const auto outcomes = run_as_processes(
      2,
      [](int rank) {
        while (rank == 1 && ::getppid() != 0) std::this_thread::sleep_for(10ms);
      },
      300ms);
  EXPECT_TRUE(outcomes[0].is_ok());
  EXPECT_TRUE(outcomes[1].timed_out);
}

}  // namespace
}  // namespace moebus::tests
