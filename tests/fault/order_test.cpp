// Ranks that make different calls: an error on every rank, and no hang.

#include <functional>

#include "tests/fault/victim.hpp"

namespace moebus::tests {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;

class CallOrder : public ::testing::TestWithParam<Route> {
 protected:
  /// Every rank must end in an error that says so of the calls, and at which ones the odd rank and another are.
  static void expect_sequence_error(Group& group,
                                    int odd,
                                    const std::function<void()>& calls,
                                    const char* what = "different calls") {
    try {
      calls();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument) << error.what();
      EXPECT_THAT(error.what(), HasSubstr(what));
      EXPECT_THAT(error.what(),
                  ContainsRegex("rank [0-9]+ is at call [0-9]+.*rank [0-9]+,? (which )?is at call [0-9]+"));
      EXPECT_THAT(error.what(), ContainsRegex("rank " + std::to_string(odd) + ",? (which )?is at call"));
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
        expect_sequence_error(group, other, [&] {
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
    expect_sequence_error(group, 1, [&] {
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

/// Two exchanges in contexts of their own.
struct TwoContexts {
  Round first;
  Round second;

  TwoContexts(int num_ranks, Route route, MapPeers map_peers) : first(num_ranks, route), second(num_ranks) {
    second.one.config.context = 1;
    first.one.map_peers = map_peers;
  }
};

TEST_P(CallOrder, OfTwoContextsIsAnErrorOnEveryRankLongBeforeTheLimit) {
  for (const MapPeers map_peers : {MapPeers::reachable, MapPeers::none}) {
    for (int odd = 0; odd < 4; ++odd) {
      TwoContexts contexts(4, GetParam(), map_peers);
      contexts.first.one.as_processes = odd % 2 == 0;
      expect_ok(run_group(contexts.first.one, [&](Group& group) {
        ExchangeRun first(group, contexts.first.one);
        ExchangeRun second(group, contexts.second.one);
        first.exchange_once(contexts.first.sent, contexts.first.back);
        const auto call_first = [&] { first.exchange_once(contexts.first.sent, contexts.first.back); };
        const auto call_second = [&] { second.exchange_once(contexts.second.sent, contexts.second.back); };
        expect_sequence_error(
            group,
            odd,
            [&] {
              if (group.rank() == odd) {
                call_second();
                call_first();
              } else {
                call_first();
                call_second();
              }
            },
            "different orders");
      }));
    }
  }
}

TEST_P(CallOrder, OfOneCallMoreInOneContextIsAnErrorWhenTheOthersGoOnInAnother) {
  const TwoContexts contexts(3, GetParam(), MapPeers::reachable);
  expect_ok(run_group(contexts.first.one, [&](Group& group) {
    ExchangeRun first(group, contexts.first.one);
    ExchangeRun second(group, contexts.second.one);
    expect_sequence_error(
        group,
        2,
        [&] {
          first.exchange_once(contexts.first.sent, contexts.first.back);
          if (group.rank() == 2) first.exchange_once(contexts.first.sent, contexts.first.back);
          second.exchange_once(contexts.second.sent, contexts.second.back);
        },
        "different orders");
  }));
}

TEST_P(CallOrder, OfPostsIsAnErrorOnEveryRank) {
  const TwoContexts contexts(3, GetParam(), MapPeers::reachable);
  expect_ok(run_group(contexts.first.one, [&](Group& group) {
    ExchangeRun first(group, contexts.first.one);
    ExchangeRun second(group, contexts.second.one);
    DispatchBuffers buffers;
    DispatchBuffers second_buffers;
    expect_sequence_error(
        group,
        1,
        [&] {
          // Rank 1 calls where the others only post: it must make the second call before it may wait for the first.
          if (group.rank() == 1) second.dispatch(contexts.second.sent, second_buffers);
          first.dispatch(contexts.first.sent, buffers);
          PendingDispatch pending = second.exchange().post_dispatch(second.input(contexts.second.sent, second_buffers));
          static_cast<void>(pending.wait());
        },
        "different orders");
  }));
}

INSTANTIATE_TEST_SUITE_P(Every, CallOrder, ::testing::ValuesIn(kRoutes), name_of_route_case);

}  // namespace
}  // namespace moebus::tests
