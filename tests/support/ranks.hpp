// Ranks: runs one body once per rank, as threads of this process or as forked processes, and says how each ended.
// Room: tests · host. Call from a process without other threads: children are forked.

#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace moebus::tests {

/// How one rank ended.
struct RankOutcome {
  int exit_code = 0;       ///< 0 = the body returned and no expectation failed; 1 = it threw or an expectation failed
  int signal = 0;          ///< what ended the process, 0 = it exited
  bool timed_out = false;  ///< still running at the limit, then killed
  bool stopped = false;    ///< was stopped (SIGSTOP) when nobody else ran any more, then killed
  std::string message;     ///< text of the exception or of the failed expectations

  [[nodiscard]] bool is_ok() const noexcept { return exit_code == 0 && signal == 0 && !timed_out && !stopped; }
};

/// Runs on its rank's thread or process. It may return, throw, use EXPECT_ and ASSERT_, raise a signal or call _exit.
using RankBody = std::function<void(int rank)>;

inline constexpr std::chrono::milliseconds kRanksLimit{60'000};

/// Runs `body` on `num_ranks` threads and waits for them. Threads cannot be killed: at the limit the whole process
/// aborts and says which ranks hang.
std::vector<RankOutcome> run_as_threads(int num_ranks,
                                        const RankBody& body,
                                        std::chrono::milliseconds limit = kRanksLimit);

/// Runs `body` in `num_ranks` forked processes and waits for them; stragglers are killed at the limit, and with the
/// caller.
std::vector<RankOutcome> run_as_processes(int num_ranks,
                                          const RankBody& body,
                                          std::chrono::milliseconds limit = kRanksLimit);

/// Succeeds if every rank did; otherwise names those that did not, with their messages.
::testing::AssertionResult all_ok(const std::vector<RankOutcome>& outcomes);

}  // namespace moebus::tests
