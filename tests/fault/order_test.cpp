// Ranks that make different calls: an error on every rank, and no hang.

#include <functional>

#include "tests/fault/victim.hpp"

namespace moebus::tests {
namespace {

using ::testing::HasSubstr;

class CallOrder : public ::testing::TestWithParam<Route> {
 protected:
  /// Every rank must end in an error that says that the calls differ.
  static void expect_sequence_error(Group& group, const std::function<void()>& calls) {
    try {
      calls();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument) << error.what();
      EXPECT_THAT(error.what(), HasSubstr("different calls"));
      EXPECT_THROW(group.barrier(), Error);
    }
  }
};

TEST_P(CallOrder, OfDispatchAgainstCombineIsAnErrorOnEveryRank) {
  const Round round(3, GetParam());
  for (const bool as_processes : {false, true}) {
    for (int other = 0; other < 3; ++other) {
      expect_ok(run_group(3, as_processes, [&](Group& group) {
        ExchangeRun run(group, round.one);
        DispatchBuffers buffers;
        DispatchResult result = run.dispatch(round.sent, buffers);
        result.release();
        expect_sequence_error(group, [&] {
          if (group.rank() == other) run.dispatch(round.sent, buffers);
          run.combine(round.sent, round.back, result.handle);
        });
      }));
    }
  }
}

TEST_P(CallOrder, OfTwoExchangesIsAnErrorOnEveryRank) {
  const Round round(3, GetParam());
  Round other(3, GetParam());
  other.one.config.num_experts = 15;
  other.sent = make_dispatch_truth(other.one, 0);
  other.back = make_combine_truth(other.one, other.sent, 0);
  expect_ok(run_group(3, true, [&](Group& group) {
    ExchangeRun first(group, round.one);
    ExchangeRun second(group, other.one);
    first.exchange_once(round.sent, round.back);
    second.exchange_once(other.sent, other.back);
    expect_sequence_error(group, [&] {
      if (group.rank() == 1) {
        second.exchange_once(other.sent, other.back);
        first.exchange_once(round.sent, round.back);
      } else {
        first.exchange_once(round.sent, round.back);
        second.exchange_once(other.sent, other.back);
      }
    });
  }));
}

TEST_P(CallOrder, OfOneCallMoreIsNotAHangWhenTheOthersWaitElsewhere) {
  const Round round(3, GetParam());
  GroupOptions options = limits(milliseconds(500), milliseconds(500));
  options.join_limit = milliseconds(4000);
  const auto body = [&](Group& group) {
    ExchangeRun run(group, round.one);
    run.exchange_once(round.sent, round.back);
    try {
      if (group.rank() == 0) run.exchange_once(round.sent, round.back);
      group.barrier();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      if (group.rank() == 0) {
        EXPECT_EQ(error.code(), ErrorCode::timeout) << error.what();
        EXPECT_THAT(error.what(), HasSubstr("call 3"));
      }
    }
  };
  expect_ok(run_group(3, true, body, options));
}

INSTANTIATE_TEST_SUITE_P(Every, CallOrder, ::testing::ValuesIn(kRoutes), name_of_route_case);

}  // namespace
}  // namespace moebus::tests
