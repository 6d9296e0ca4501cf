// Calls in other orders than one dispatch and one combine: several open handles, several exchanges, hundreds of calls.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "base/math.hpp"
#include "tests/support/exchange_run.hpp"
#include "tests/support/test_names.hpp"
#include "workload/random.hpp"

namespace moebus::tests {
namespace {

using base::idx;
using ::testing::HasSubstr;

/// A case with everything it needs for several calls.
struct Prepared {
  ExchangeCase one;
  std::vector<DispatchTruth> dispatched;
  std::vector<CombineTruth> combined;

  Prepared(ExchangeCase given, int num_calls) : one(std::move(given)) {
    for (int call = 0; call < num_calls; ++call) {
      dispatched.push_back(make_dispatch_truth(one, call));
      combined.push_back(make_combine_truth(one, dispatched.back(), call));
    }
  }
};

ExchangeCase plain_case(Route route, int num_ranks, Layout layout, std::uint64_t seed) {
  ExchangeCase one;
  one.seed = seed;
  one.num_ranks = num_ranks;
  one.config = small_config(route, num_ranks);
  one.config.layout = layout;
  return one;
}

struct Kind {
  Route route;
  Layout layout;
  bool as_processes;
};

class Sequence : public ::testing::TestWithParam<Kind> {
 protected:
  static ExchangeCase plain(int num_ranks, std::uint64_t seed) {
    return plain_case(GetParam().route, num_ranks, GetParam().layout, seed);
  }

  static std::vector<RankOutcome> run(int num_ranks, const MemberBody& body) {
    return run_group(num_ranks, GetParam().as_processes, body);
  }
};

TEST_P(Sequence, KeepsTwoOpenHandlesApart) {
  ExchangeCase one = plain(3, 11);
  one.config.max_handles = 2;
  const Prepared two(one, 2);
  expect_ok(run(3, [&](Group& group) {
    ExchangeRun run(group, two.one);
    for (int turn = 0; turn < 3; ++turn) {
      DispatchBuffers buffers;
      DispatchResult first = run.dispatch(two.dispatched[0], buffers);
      poison_rows(first);
      first.release();
      DispatchResult second = run.dispatch(two.dispatched[1], buffers);
      poison_rows(second);
      second.release();
      // Not in the order of the dispatches: a handle needs nothing that a window holds.
      run.combine(two.dispatched[1], two.combined[1], second.handle);
      run.combine(two.dispatched[0], two.combined[0], first.handle);
    }
  }));
}

TEST_P(Sequence, CombinesSeveralTimesOnOneHandle) {
  const Prepared prepared(plain(4, 12), 1);
  const CombineTruth other = make_combine_truth(prepared.one, prepared.dispatched[0], 7);
  expect_ok(run(4, [&](Group& group) {
    ExchangeRun run(group, prepared.one);
    DispatchBuffers buffers;
    const DispatchResult result = run.dispatch(prepared.dispatched[0], buffers);
    run.combine(prepared.dispatched[0], prepared.combined[0], result.handle);
    run.combine(prepared.dispatched[0], other, result.handle);
    const DispatchHandle copy = result.handle;
    run.combine(prepared.dispatched[0], prepared.combined[0], copy);
  }));
}

TEST_P(Sequence, StaysRightOverHundredsOfCalls) {
  constexpr int kDistinct = 5;  // odd, so that each meets both parities
  const Prepared prepared(plain(3, 13), kDistinct);
  expect_ok(run(3, [&](Group& group) {
    ExchangeRun run(group, prepared.one);
    for (int call = 0; call < 220 / kSlowdown; ++call) {
      run.exchange_once(prepared.dispatched[idx(call % kDistinct)], prepared.combined[idx(call % kDistinct)]);
    }
  }));
}

TEST_P(Sequence, RefusesADispatchOnAllRanksWhileOneHoldsItsResult) {
  const Prepared prepared(plain(3, 14), 2);
  expect_ok(run(3, [&](Group& group) {
    ExchangeRun run(group, prepared.one);
    DispatchBuffers buffers;
    DispatchResult held = run.dispatch(prepared.dispatched[0], buffers);
    if (group.rank() != 1) held.release();
    const std::string text = error_of(
        ErrorCode::resource_exhausted, 1, [&] { run.exchange().dispatch(run.input(prepared.dispatched[1], buffers)); });
    EXPECT_THAT(text, HasSubstr("release()"));
    run.combine(prepared.dispatched[0], prepared.combined[0], held.handle);
    held.release();
    run.exchange_once(prepared.dispatched[1], prepared.combined[1]);
  }));
}

TEST_P(Sequence, RefusesADispatchOnAllRanksWhenOneHasNoHandleLeft) {
  ExchangeCase one = plain(3, 15);
  one.config.max_handles = 2;
  const Prepared prepared(one, 3);
  expect_ok(run(3, [&](Group& group) {
    ExchangeRun run(group, prepared.one);
    DispatchBuffers buffers;
    std::vector<DispatchHandle> kept;
    for (int call = 0; call < 2; ++call) {
      DispatchResult result = run.dispatch(prepared.dispatched[idx(call)], buffers);
      if (group.rank() == 2 || call == 1) kept.push_back(result.handle);
    }
    const std::string text = error_of(
        ErrorCode::resource_exhausted, 2, [&] { run.exchange().dispatch(run.input(prepared.dispatched[2], buffers)); });
    EXPECT_THAT(text, HasSubstr("max_handles"));
    run.combine(prepared.dispatched[1], prepared.combined[1], kept.back());
    kept.clear();
    run.exchange_once(prepared.dispatched[2], prepared.combined[2]);
  }));
}

std::string name_of_case(const ::testing::TestParamInfo<Kind>& info) {
  return name_of(info.param.route) + name_of(info.param.layout) + (info.param.as_processes ? "Processes" : "Threads");
}

std::vector<Kind> all_kinds() {
  std::vector<Kind> kinds;
  for (const Route route : kRoutes) {
    for (const Layout layout : kLayouts) {
      kinds.push_back({route, layout, false});
      if (layout != Layout::expert_padded) kinds.push_back({route, layout, true});
    }
  }
  return kinds;
}

INSTANTIATE_TEST_SUITE_P(Every, Sequence, ::testing::ValuesIn(all_kinds()), name_of_case);

/// Exchanges of different shapes, routes and types in one group; windows are shared and grow as more are prepared.
std::vector<Prepared> mixed_exchanges(int num_ranks) {
  std::vector<Prepared> exchanges;
  for (std::uint64_t i = 0; i < 6; ++i) {
    ExchangeCase one = random_case(workload::seed_from(77, i), num_ranks, kRoutes[i % 3]);
    exchanges.emplace_back(std::move(one), 2);
  }
  return exchanges;
}

void interleave(Group& group, const std::vector<Prepared>& exchanges, int num_turns) {
  std::vector<std::unique_ptr<ExchangeRun>> runs;
  for (const Prepared& prepared : exchanges) runs.push_back(std::make_unique<ExchangeRun>(group, prepared.one));
  workload::Random random(5);  // the same order on all ranks
  for (int turn = 0; turn < num_turns; ++turn) {
    const std::size_t i = random.below(exchanges.size());
    const std::size_t call = random.below(2);
    runs[i]->exchange_once(exchanges[i].dispatched[call], exchanges[i].combined[call]);
  }
}

TEST(SeveralExchanges, ShareOneGroupInAnyOrderAsThreads) {
  const std::vector<Prepared> exchanges = mixed_exchanges(4);
  expect_ok(run_group(4, false, [&](Group& group) { interleave(group, exchanges, 120 / kSlowdown); }));
}

TEST(SeveralExchanges, ShareOneGroupInAnyOrderAsProcesses) {
  const std::vector<Prepared> exchanges = mixed_exchanges(3);
  expect_ok(run_group(3, true, [&](Group& group) { interleave(group, exchanges, 120 / kSlowdown); }));
}

TEST(SeveralExchanges, StayRightWhenALaterOneNeedsLargerWindows) {
  const Prepared small(plain_case(Route::latency, 3, Layout::rank_major, 21), 2);
  ExchangeCase large_case = plain_case(Route::direct, 3, Layout::expert_major, 22);
  large_case.config.hidden = 512;
  large_case.config.max_tokens_per_rank = 100;
  set_route(large_case.config, Route::direct, 3);
  const Prepared large(large_case, 1);
  expect_ok(run_group(3, true, [&](Group& group) {
    ExchangeRun first(group, small.one);
    DispatchBuffers buffers;
    DispatchResult open = first.dispatch(small.dispatched[0], buffers);
    open.release();
    ExchangeRun second(group, large.one);
    second.exchange_once(large.dispatched[0], large.combined[0]);
    first.combine(small.dispatched[0], small.combined[0], open.handle);
    first.exchange_once(small.dispatched[1], small.combined[1]);
  }));
}

TEST(Prepare, IsRefusedOnAllRanksWhileOneHoldsAResult) {
  const Prepared small(plain_case(Route::latency, 3, Layout::rank_major, 23), 1);
  expect_ok(run_group(3, false, [&](Group& group) {
    ExchangeRun run(group, small.one);
    DispatchBuffers buffers;
    DispatchResult held = run.dispatch(small.dispatched[0], buffers);
    if (group.rank() != 2) held.release();
    ExchangeConfig other = small.one.config;
    other.hidden = 128;
    Exchange exchange(group, other);
    try {
      exchange.prepare();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_THAT(error.what(), HasSubstr("held"));
      EXPECT_THAT(error.what(), HasSubstr("2"));
    }
    held.release();
    exchange.prepare();
    run.exchange_once(small.dispatched[0], small.combined[0]);
  }));
}

TEST(WarmUp, LeavesAnExchangeReadyAndItsCountersAtZero) {
  const Prepared prepared(plain_case(Route::staged, 3, Layout::expert_padded, 24), 1);
  expect_ok(run_group(3, true, [&](Group& group) {
    ExchangeRun run(group, prepared.one);
    EXPECT_GT(run.exchange().warm_up().warm_up_us, 0.0);
    EXPECT_EQ(run.exchange().stats().dispatch.calls, 0U);
    run.exchange_once(prepared.dispatched[0], prepared.combined[0]);
    EXPECT_EQ(run.exchange().stats().dispatch.calls, 1U);
  }));
}

TEST(Results, OutliveTheirExchangeAndTheirGroup) {
  const Prepared prepared(plain_case(Route::direct, 2, Layout::rank_major, 25), 1);
  const std::string uri = unique_uri(false);
  expect_ok(run_as_threads(2, [&](int rank) {
    DispatchResult kept;
    DispatchHandle handle;
    {
      const Group group = Group::join(uri, rank, 2, quiet_options());
      ExchangeRun run(group, prepared.one);
      DispatchBuffers buffers;
      kept = run.dispatch(prepared.dispatched[0], buffers);
      handle = kept.handle;
    }
    EXPECT_TRUE(handle.is_valid());
    EXPECT_EQ(kept.rank_counts.shape[0], 2);
    poison_rows(kept);
    kept.release();
  }));
}

}  // namespace
}  // namespace moebus::tests
