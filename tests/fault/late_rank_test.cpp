// A rank that comes late: waited for up to the arrival limit, named after it.

#include <thread>

#include "tests/fault/victim.hpp"

namespace moebus::tests {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class LateRank : public ::testing::TestWithParam<Route> {};

TEST_P(LateRank, IsWaitedForWithinTheArrivalLimit) {
  const Round round(3, GetParam());
  const auto body = [&](Group& group) {
    ExchangeRun run(group, round.one);
    for (int turn = 0; turn < 3; ++turn) {
      // Longer than the progress limit: what a peer has not begun is not held against it.
      if (group.rank() == turn) std::this_thread::sleep_for(milliseconds(500));
      run.exchange_once(round.sent, round.back);
    }
  };
  expect_ok(run_group(3, true, body, limits(milliseconds(40'000), milliseconds(200))));
}

TEST_P(LateRank, IsNamedByAllOthersAfterTheArrivalLimit) {
  const Round round(4, GetParam());
  const auto body = [&](Group& group) {
    ExchangeRun run(group, round.one);
    run.exchange_once(round.sent, round.back);
    if (group.rank() == 2) std::this_thread::sleep_for(milliseconds(1300));
    const Error error = exchange_until_error(run, round);
    EXPECT_EQ(error.code(), ErrorCode::timeout) << error.what();
    EXPECT_EQ(error.origin_rank(), 2) << error.what();
    EXPECT_THAT(
        error.what(),
        AllOf(HasSubstr("rank 2"), HasSubstr("expected epoch"), HasSubstr("seen"), HasSubstr("arrival limit 300 ms")));
    expect_poisoned(group, run, round, error);
  };
  expect_ok(run_group(4, true, body, limits(milliseconds(300), milliseconds(40'000))));
}

TEST_P(LateRank, IsNamedInCombineToo) {
  const Round round(3, GetParam());
  const auto body = [&](Group& group) {
    ExchangeRun run(group, round.one);
    DispatchBuffers buffers;
    const DispatchResult result = run.dispatch(round.sent, buffers);
    if (group.rank() == 1) std::this_thread::sleep_for(milliseconds(1300));
    try {
      run.combine(round.sent, round.back, result.handle);
      // Rows that had left before the limit passed may still serve the late rank itself.
      EXPECT_EQ(group.rank(), 1);
      return;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::timeout) << error.what();
      EXPECT_EQ(error.origin_rank(), 1) << error.what();
      EXPECT_THAT(error.what(), HasSubstr("combine"));
      expect_poisoned(group, run, round, error);
    }
  };
  expect_ok(run_group(3, true, body, limits(milliseconds(300), milliseconds(40'000))));
}

TEST_P(LateRank, IsNamedAmongThreadsToo) {
  const Round round(3, GetParam());
  const auto body = [&](Group& group) {
    ExchangeRun run(group, round.one);
    if (group.rank() == 0) std::this_thread::sleep_for(milliseconds(1300));
    const Error error = exchange_until_error(run, round);
    EXPECT_EQ(error.code(), ErrorCode::timeout) << error.what();
    EXPECT_EQ(error.origin_rank(), 0) << error.what();
    expect_poisoned(group, run, round, error);
  };
  expect_ok(run_group(3, false, body, limits(milliseconds(300), milliseconds(40'000))));
}

TEST_P(LateRank, IsWaitedForLongerOnceTheLimitIsRaised) {
  const Round round(2, GetParam());
  const auto body = [&](Group& group) {
    group.set_arrival_limit(milliseconds(40'000));
    ExchangeRun run(group, round.one);
    if (group.rank() == 1) std::this_thread::sleep_for(milliseconds(400));
    run.exchange_once(round.sent, round.back);
  };
  expect_ok(run_group(2, true, body, limits(milliseconds(50), milliseconds(40'000))));
}

INSTANTIATE_TEST_SUITE_P(Every, LateRank, ::testing::ValuesIn(kRoutes), name_of_route_case);

TEST(LateRankAtSetUp, IsNamedByPrepare) {
  GroupOptions options = quiet_options();
  options.join_limit = milliseconds(1000);
  const auto body = [&](Group& group) {
    Exchange exchange(group, small_config(Route::latency, 3));
    if (group.rank() == 1) {
      std::this_thread::sleep_for(milliseconds(2500));
      return;
    }
    try {
      exchange.prepare();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::timeout) << error.what();
      EXPECT_THAT(error.what(), HasSubstr("rank 1"));
    }
  };
  expect_ok(run_group(3, true, body, options));
}

}  // namespace
}  // namespace moebus::tests
