// Calls that are posted and waited for later: two contexts side by side, any order of waits, what is refused, what is
// dropped.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/exchange_run.hpp"
#include "tests/support/test_names.hpp"

namespace moebus::tests {
namespace {

using ::testing::HasSubstr;

/// An exchange in a context, with what it sends and gets back.
struct Lane {
  ExchangeCase one;
  DispatchTruth sent;
  CombineTruth back;

  Lane(int context, Route route, int num_ranks, const std::vector<int>& nodes = {}) {
    one.seed = static_cast<std::uint64_t>(context) + 5;
    one.num_ranks = num_ranks;
    one.nodes = nodes;
    one.levels = nodes.empty() ? 0 : 2;
    one.config = small_config(route, num_ranks);
    one.config.context = context;
    one.num_tokens.assign(static_cast<std::size_t>(num_ranks), 13);
    sent = make_dispatch_truth(one, 0);
    back = make_combine_truth(one, sent, 0);
  }
};

/// One rank's calls on a lane.
struct Turn {
  const Lane& lane;
  ExchangeRun run;
  DispatchBuffers sent;
  CombineBuffers answers;
  DispatchResult result{};
  PendingDispatch dispatch{};
  PendingCombine combine{};

  Turn(Group& group, const Lane& with) : lane(with), run(group, with.one) {}

  void post_dispatch() { dispatch = run.exchange().post_dispatch(run.input(lane.sent, sent)); }

  void wait_dispatch() {
    result = dispatch.wait();
    run.check(lane.sent, result);
  }

  void post_combine() {
    combine = run.exchange().post_combine(run.answers(lane.sent, lane.back, result.handle, answers));
  }

  void wait_combine() {
    run.check(lane.back, combine.wait());
    poison_rows(result);
    result.release();
  }
};

struct Pair {
  Route first;
  Route second;
  bool as_processes;
};

std::string name_of_case(const ::testing::TestParamInfo<Pair>& info) {
  return name_of(info.param.first) + "And" + name_of(info.param.second) +
         (info.param.as_processes ? "Processes" : "Threads");
}

class TwoContexts : public ::testing::TestWithParam<Pair> {
 protected:
  void exchange_side_by_side(int num_ranks, const std::vector<int>& nodes) {
    const Lane first(0, GetParam().first, num_ranks, nodes);
    const Lane second(1, GetParam().second, num_ranks, nodes);
    ExchangeCase group_case = first.one;
    group_case.as_processes = GetParam().as_processes;
    expect_ok(run_group(group_case, [&](Group& group) {
      Turn a(group, first);
      Turn b(group, second);
      for (int round = 0; round < 12; ++round) {
        // Every rank waits in an order of its own, another one each round.
        const auto is_second_first = [&](int step) { return ((group.rank() + round + step) & 1) != 0; };
        a.post_dispatch();
        b.post_dispatch();
        if (is_second_first(0)) b.wait_dispatch();
        a.wait_dispatch();
        if (!is_second_first(0)) b.wait_dispatch();
        a.post_combine();
        b.post_combine();
        if (is_second_first(1)) b.wait_combine();
        a.wait_combine();
        if (!is_second_first(1)) b.wait_combine();
      }
    }));
  }
};

TEST_P(TwoContexts, GiveTheOraclesBytesWhateverTheOrderOfWaits) { exchange_side_by_side(4, {}); }

TEST_P(TwoContexts, GiveThemOverNodesToo) { exchange_side_by_side(4, {0, 0, 0, 1}); }

TEST_P(TwoContexts, OverlapADispatchOfOneWithTheCombineOfTheOther) {
  const Lane first(0, GetParam().first, 3);
  const Lane second(1, GetParam().second, 3);
  ExchangeCase group_case = first.one;
  group_case.as_processes = GetParam().as_processes;
  expect_ok(run_group(group_case, [&](Group& group) {
    Turn a(group, first);
    Turn b(group, second);
    a.post_dispatch();
    for (int round = 0; round < 6; ++round) {
      b.post_dispatch();
      a.wait_dispatch();
      a.post_combine();
      b.wait_dispatch();
      b.post_combine();
      a.wait_combine();
      a.post_dispatch();
      b.wait_combine();
    }
    a.wait_dispatch();
  }));
}

std::vector<Pair> all_pairs() {
  std::vector<Pair> pairs;
  for (const Route first : kRoutes) {
    for (const Route second : kRoutes) pairs.push_back({first, second, false});
    pairs.push_back({first, Route::latency, true});
  }
  return pairs;
}

INSTANTIATE_TEST_SUITE_P(Every, TwoContexts, ::testing::ValuesIn(all_pairs()), name_of_case);

class Posted : public ::testing::TestWithParam<Route> {};

TEST_P(Posted, SecondCallOfAContextIsRefusedAtOnceAndNothingIsLost) {
  const Lane lane(0, GetParam(), 2);
  expect_ok(run_group(lane.one, [&](Group& group) {
    Turn turn(group, lane);
    turn.post_dispatch();
    DispatchBuffers more;
    const std::string text = error_of(ErrorCode::invalid_argument, group.rank(), [&] {
      static_cast<void>(turn.run.exchange().post_dispatch(turn.run.input(lane.sent, more)));
    });
    EXPECT_THAT(text, ::testing::AllOf(HasSubstr("in flight"), HasSubstr("Q = 1"), HasSubstr("context")));
    turn.wait_dispatch();
    turn.post_combine();
    EXPECT_THAT(error_of(ErrorCode::invalid_argument,
                         group.rank(),
                         [&] { turn.run.exchange().dispatch(turn.run.input(lane.sent, more)); }),
                HasSubstr("in flight"));
    turn.wait_combine();
    turn.post_dispatch();
    turn.wait_dispatch();
  }));
}

TEST_P(Posted, CallThatIsDroppedIsCarriedToItsEnd) {
  const Lane lane(0, GetParam(), 3);
  expect_ok(run_group(lane.one, [&](Group& group) {
    Turn turn(group, lane);
    for (int round = 0; round < 4; ++round) {
      turn.post_dispatch();
      if (group.rank() == round % 3) {
        turn.dispatch = {};
      } else {
        turn.wait_dispatch();
        turn.result = {};
      }
    }
    turn.post_dispatch();
    turn.wait_dispatch();
    turn.post_combine();
    turn.combine = {};
  }));
}

TEST_P(Posted, CallKeepsPrepareFromMovingItsMemory) {
  const Lane lane(0, GetParam(), 2);
  ExchangeConfig larger = lane.one.config;
  larger.hidden *= 64;
  larger.stage_bytes *= 64;
  expect_ok(run_group(lane.one, [&](Group& group) {
    Turn turn(group, lane);
    Exchange other(group, larger);
    turn.post_dispatch();
    EXPECT_THAT(error_of(ErrorCode::invalid_argument, -1, [&] { other.prepare(); }), HasSubstr("posted call"));
    turn.wait_dispatch();
    turn.result.release();
    other.prepare();
    turn.post_dispatch();
    turn.wait_dispatch();
  }));
}

TEST_P(Posted, CallOutlivesItsExchange) {
  const Lane lane(0, GetParam(), 2);
  expect_ok(run_group(lane.one, [&](Group& group) {
    PendingDispatch pending;
    DispatchBuffers buffers;
    const ExchangeRun checker(group, lane.one);
    std::optional<ExchangeRun> run(std::in_place, group, lane.one);
    pending = run->exchange().post_dispatch(run->input(lane.sent, buffers));
    run.reset();
    checker.check(lane.sent, pending.wait());
  }));
}

TEST_P(Posted, CallAndResultsMayOutliveTheirGroup) {
  const Lane lane(0, GetParam(), 2);
  expect_ok(run_group(lane.one, [&](Group& group) {
    Turn turn(group, lane);
    turn.post_dispatch();
    turn.wait_dispatch();
    group.barrier();
    DispatchResult kept = std::move(turn.result);
    CombineBuffers answers;
    turn.combine = turn.run.exchange().post_combine(turn.run.answers(lane.sent, lane.back, kept.handle, answers));
    group.close();
    EXPECT_THAT(error_of(ErrorCode::group_poisoned, group.rank(), [&] { turn.combine.wait(); }), HasSubstr("closed"));
    kept.release();
  }));
}

TEST_P(Posted, RefusalComesFromWaitOnEveryRank) {
  const Lane lane(0, GetParam(), 3);
  expect_ok(run_group(lane.one, [&](Group& group) {
    Turn turn(group, lane);
    DispatchInput input = turn.run.input(lane.sent, turn.sent);
    std::vector<std::int64_t> bad(static_cast<std::size_t>(13 * lane.one.config.num_topk), 999);
    if (group.rank() == 1) input.topk_idx = tensor_2d(bad.data(), DType::i64, 13, lane.one.config.num_topk);
    PendingDispatch pending = turn.run.exchange().post_dispatch(input);
    EXPECT_THAT(error_of(ErrorCode::invalid_argument, 1, [&] { pending.wait(); }), HasSubstr("999"));
    EXPECT_THAT(error_of(ErrorCode::invalid_argument, -1, [&] { pending.wait(); }), HasSubstr("already"));
    turn.post_dispatch();
    turn.wait_dispatch();
  }));
}

INSTANTIATE_TEST_SUITE_P(Every, Posted, ::testing::ValuesIn(kRoutes), name_of_route_case);

TEST(Context, ThatDoesNotExistIsRefused) {
  ExchangeConfig config = small_config();
  for (const int context : {-1, kMaxContexts}) {
    config.context = context;
    EXPECT_THAT(error_of(ErrorCode::invalid_argument, -1, [&] { Exchange::bytes_needed(config, 2); }),
                HasSubstr("context"));
  }
}

}  // namespace
}  // namespace moebus::tests
