// Experts that move: any map of experts to seats, replicas, changed between calls, agreed by all ranks.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/support/exchange_run.hpp"
#include "tests/support/test_names.hpp"
#include "workload/random.hpp"

namespace moebus::tests {
namespace {

using ::testing::HasSubstr;

constexpr int kRanks = 3;
constexpr int kSeats = 8;

/// Every expert at least once, replicas and empty seats for the rest.
Placement random_placement(int num_experts, std::uint64_t seed) {
  workload::Random random(seed);
  Placement placement;
  placement.experts.assign(kRanks * kSeats, -1);
  const auto is_here = [&](std::size_t rank, int expert) {
    const auto first = placement.experts.begin() + static_cast<std::ptrdiff_t>(rank * kSeats);
    return std::find(first, first + kSeats, expert) != first + kSeats;
  };
  const auto put = [&](int expert) {
    for (int tries = 0; tries < 1000; ++tries) {
      const auto seat = static_cast<std::size_t>(random.below(placement.experts.size()));
      if (placement.experts[seat] >= 0 || is_here(seat / kSeats, expert)) continue;
      placement.experts[seat] = expert;
      return;
    }
  };
  for (int expert = 0; expert < num_experts; ++expert) put(expert);
  for (int extra = 0; extra < 5; ++extra) put(static_cast<int>(random.below(static_cast<std::uint64_t>(num_experts))));
  return placement;
}

ExchangeCase seated_case(Route route) {
  ExchangeCase one;
  one.num_ranks = kRanks;
  one.config = small_config(route, kRanks);
  one.config.seats_per_rank = kSeats;
  one.config.layout = Layout::expert_major;
  one.num_tokens.assign(kRanks, 14);
  return one;
}

class Placements : public ::testing::TestWithParam<Route> {};

TEST_P(Placements, ChangeBetweenCallsWithoutAnythingElse) {
  std::vector<ExchangeCase> cases;
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    ExchangeCase one = seated_case(GetParam());
    one.seed = seed;
    one.placement = random_placement(one.config.num_experts, seed);
    if (seed % 2 == 0) {
      one.rule = [](const ReplicaChoice& choice) { return static_cast<int>(choice.token) + choice.expert; };
    }
    cases.push_back(one);
  }
  std::vector<DispatchTruth> sent;
  std::vector<CombineTruth> back;
  for (const ExchangeCase& one : cases) {
    sent.push_back(make_dispatch_truth(one, 0));
    back.push_back(make_combine_truth(one, sent.back(), 0));
  }
  expect_ok(run_group(cases[0], [&](Group& group) {
    ExchangeRun run(group, cases[0]);
    for (std::size_t i = 0; i < cases.size(); ++i) {
      run.exchange().set_placement(cases[i].placement, cases[i].rule);
      run.exchange_once(sent[i], back[i]);
    }
  }));
}

TEST_P(Placements, LetAnEarlierDispatchBeCombinedButNotDispatchedAgain) {
  ExchangeCase one = seated_case(GetParam());
  one.placement = random_placement(one.config.num_experts, 1);
  const DispatchTruth sent = make_dispatch_truth(one, 0);
  const CombineTruth back = make_combine_truth(one, sent, 0);
  const Placement other = random_placement(one.config.num_experts, 2);
  expect_ok(run_group(one, [&](Group& group) {
    ExchangeRun run(group, one);
    DispatchBuffers buffers;
    DispatchResult result = run.dispatch(sent, buffers);
    run.exchange().set_placement(other);
    run.combine(sent, back, result.handle);
    result.release();
    DispatchInput again = run.input(sent, buffers);
    again.topk_idx = {};
    again.topk_weights = {};
    again.handle = result.handle;
    EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { run.exchange().dispatch(again); }),
                ::testing::AllOf(HasSubstr("stale"), HasSubstr("placement")));
    run.exchange().set_placement(one.placement);
    run.exchange_once(sent, back);
  }));
}

INSTANTIATE_TEST_SUITE_P(Every, Placements, ::testing::ValuesIn(kRoutes), name_of_route_case);

TEST(SetPlacement, ThatDiffersBetweenRanksNamesThemAndChangesNothing) {
  ExchangeCase one = seated_case(Route::latency);
  one.placement = random_placement(one.config.num_experts, 1);
  const DispatchTruth sent = make_dispatch_truth(one, 0);
  const CombineTruth back = make_combine_truth(one, sent, 0);
  expect_ok(run_group(one, [&](Group& group) {
    ExchangeRun run(group, one);
    const Placement mine = random_placement(one.config.num_experts, group.rank() == 2 ? 8 : 7);
    const std::string text = error_of(ErrorCode::invalid_argument, -1, [&] { run.exchange().set_placement(mine); });
    EXPECT_THAT(text, ::testing::AllOf(HasSubstr("placement"), HasSubstr("rank 2"), HasSubstr("ranks 0, 1")));
    run.exchange_once(sent, back);
  }));
}

TEST(SetPlacement, ThatIsWrongOnOneRankFailsOnEveryRankAndChangesNothing) {
  ExchangeCase one = seated_case(Route::latency);
  one.placement = random_placement(one.config.num_experts, 1);
  const DispatchTruth sent = make_dispatch_truth(one, 0);
  const CombineTruth back = make_combine_truth(one, sent, 0);
  expect_ok(run_group(one, [&](Group& group) {
    ExchangeRun run(group, one);
    Placement mine = one.placement;
    if (group.rank() == 1) std::replace(mine.experts.begin(), mine.experts.end(), 3, -1);
    EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { run.exchange().set_placement(mine); }),
                ::testing::AllOf(HasSubstr("placement"), HasSubstr("3")));
    run.exchange_once(sent, back);
  }));
}

TEST(ReplicaRule, ThatThrowsIsARefusalOnEveryRankAndLosesNothing) {
  ExchangeCase one = seated_case(Route::latency);
  one.placement = random_placement(one.config.num_experts, 1);
  const DispatchTruth sent = make_dispatch_truth(one, 0);
  const CombineTruth back = make_combine_truth(one, sent, 0);
  expect_ok(run_group(one, [&](Group& group) {
    ExchangeRun run(group, one);
    const ReplicaRule thrower = [](const ReplicaChoice&) -> int { throw std::runtime_error("no idea"); };
    run.exchange().set_placement(one.placement, group.rank() == 1 ? thrower : ReplicaRule());
    for (int turn = 0; turn < 5; ++turn) {  // more often than there are handles
      DispatchBuffers buffers;
      const std::string text =
          error_of(ErrorCode::invalid_argument, 1, [&] { run.exchange().dispatch(run.input(sent, buffers)); });
      EXPECT_THAT(text, HasSubstr("no idea"));
    }
    run.exchange().set_placement(one.placement);
    run.exchange_once(sent, back);
  }));
}

TEST(SetPlacement, NeedsSeats) {
  ExchangeCase one;
  one.num_ranks = 2;
  one.config = small_config();
  expect_ok(run_group(one, [&](Group& group) {
    ExchangeRun run(group, one);
    EXPECT_THAT(error_of(ErrorCode::invalid_argument, group.rank(), [&] { run.exchange().set_placement({}); }),
                HasSubstr("seats_per_rank"));
  }));
}

}  // namespace
}  // namespace moebus::tests
