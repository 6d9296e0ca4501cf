// Victim: what fault tests share: an exchange that goes round until it fails, and what a survivor must then see.
// Room: tests · host.

#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "base/math.hpp"
#include "tests/support/exchange_run.hpp"
#include "tests/support/test_names.hpp"

namespace moebus::tests {

using std::chrono::milliseconds;

/// An exchange of `num_ranks` with what it sends and gets back.
struct Round {
  ExchangeCase one;
  DispatchTruth sent;
  CombineTruth back;

  explicit Round(int num_ranks, Route route = Route::latency) {
    one.num_ranks = num_ranks;
    one.as_processes = true;
    one.config = small_config(route, num_ranks);
    one.num_tokens.assign(base::idx(num_ranks), 12);
    sent = make_dispatch_truth(one, 0);
    back = make_combine_truth(one, sent, 0);
  }
};

inline GroupOptions limits(milliseconds arrival, milliseconds progress) {
  GroupOptions options = quiet_options();
  options.arrival_limit = arrival;
  options.progress_limit = progress;
  return options;
}

/// Exchanges until the group fails, and returns the error.
inline Error exchange_until_error(ExchangeRun& run, const Round& round) {
  for (;;) {
    try {
      run.exchange_once(round.sent, round.back);
    } catch (const Error& error) {
      return error;
    }
  }
}

/// What must hold after a failure: every call repeats the first cause, and leaving works.
inline void expect_poisoned(Group& group, ExchangeRun& run, const Round& round, const Error& cause) {
  DispatchBuffers buffers;
  const std::string first = cause.what();
  for (int turn = 0; turn < 2; ++turn) {
    const std::string text = error_of(ErrorCode::group_poisoned, cause.origin_rank(), [&] {
      run.exchange().dispatch(run.input(round.sent, buffers));
    });
    EXPECT_THAT(text, ::testing::HasSubstr(first));
  }
  EXPECT_THAT(error_of(ErrorCode::group_poisoned, cause.origin_rank(), [&] { group.barrier(); }),
              ::testing::HasSubstr(first));
  group.close();
}

/// Succeeds if all ranks but the victim are well, and the victim ended by `signal`.
inline ::testing::AssertionResult all_but_victim_ok(std::vector<RankOutcome> outcomes, int victim, int signal) {
  RankOutcome& lost = outcomes[base::idx(victim)];
  if (lost.signal != signal) {
    return ::testing::AssertionFailure() << "the victim ended by signal " << lost.signal << ", code " << lost.exit_code
                                         << ": " << lost.message;
  }
  lost = {};
  return all_ok(outcomes);
}

}  // namespace moebus::tests
