// Random schedules: a random group, random calls of two contexts, random pauses, and one random fault or none.
//
// MOEBUS_TEST_SCHEDULES=N runs N of them, MOEBUS_TEST_SEED=S begins at S: a failure says what repeats it.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <sstream>

#include "base/math.hpp"
#include "tests/fault/fault_run.hpp"
#include "workload/random.hpp"

namespace moebus::tests {
namespace {

using base::idx;
using workload::Random;
using workload::seed_from;

/// What the ranks do once: an exchange of one context, or one of each context that overlap.
enum class Turn : std::uint8_t { first, second, both };

struct Schedule {
  std::uint64_t seed = 0;
  std::array<ExchangeCase, 2> cases;  ///< of contexts 0 and 1
  std::vector<Turn> turns;
  std::array<std::vector<DispatchTruth>, 2> sent;  ///< by turn
  std::array<std::vector<CombineTruth>, 2> back;
  FaultRun run;
};

void choose_fault(Random& random, Schedule& schedule) {
  constexpr std::array kActions{Action::none, Action::delay, Action::drop, Action::cut, Action::kill, Action::stop};
  // Every other schedule ends at once; those with limits take most of the time.
  const Action action = random.below(4) == 0 ? Action::none : kActions[random.below(kActions.size())];
  const int num_ranks = schedule.cases[0].num_ranks;
  FaultRun& run = schedule.run;
  std::ostringstream spec;
  if (random.below(2) == 0) spec << "delay:" << random.below(1'000'000);
  run.options = quiet_options();
  run.fault.action = action;
  run.fault.has_posts = true;
  if (action != Action::none) {
    run.fault.rank = static_cast<int>(random.below(static_cast<std::uint64_t>(num_ranks)));
    run.fault.peer =
        (run.fault.rank + 1 + static_cast<int>(random.below(static_cast<std::uint64_t>(num_ranks) - 1))) % num_ranks;
    spec << (spec.tellp() > 0 ? ";" : "") << to_text(action) << ":rank=" << run.fault.rank
         << ",call=" << random.below(2 * schedule.turns.size()) << ",step=" << random.below(16);
    if (action == Action::cut) spec << ",peer=" << run.fault.peer;
  }
  if (action == Action::drop || action == Action::cut || action == Action::stop) run.options = short_limits();
  run.spec = spec.str();
  const bool as_processes = action == Action::kill || action == Action::stop || random.below(8) == 0;
  for (ExchangeCase& one : schedule.cases) one.as_processes = as_processes;
  if (random.below(3) == 0) run.transport = "unruly:" + std::to_string(random.below(1'000'000));
}

/// Two cases of one group; small, so that many fit into a test.
void choose_cases(Random& random, Schedule& schedule) {
  const int num_ranks = 2 + static_cast<int>(random.below(3));
  const ExchangeCase group = random_group_case(random.next(), num_ranks, Route::latency);
  for (int context = 0; context < 2; ++context) {
    ExchangeCase& one = schedule.cases[idx(context)];
    one.seed = random.next();
    one.num_ranks = num_ranks;
    one.nodes = group.nodes;
    one.levels = group.levels;
    one.map_peers = group.map_peers;
    one.config = small_config(kRoutes[random.below(3)], num_ranks);
    one.config.layout = kLayouts[random.below(3)];
    one.config.inter_node = group.config.inter_node;
    one.config.context = context;
    one.config.stage_bytes *= 4;
    one.config.max_tokens_per_rank = 8;
  }
}

std::shared_ptr<Schedule> make_schedule(std::uint64_t seed) {
  Random random(seed);
  auto schedule = std::make_shared<Schedule>();
  schedule->seed = seed;
  choose_cases(random, *schedule);
  const std::size_t num_turns = 1 + random.below(3);
  for (std::size_t t = 0; t < num_turns; ++t) schedule->turns.push_back(static_cast<Turn>(random.below(3)));
  choose_fault(random, *schedule);
  for (std::size_t context = 0; context < 2; ++context) {
    const ExchangeCase& one = schedule->cases[context];
    for (int t = 0; t < static_cast<int>(num_turns); ++t) {
      schedule->sent[context].push_back(make_dispatch_truth(one, t));
      schedule->back[context].push_back(make_combine_truth(one, schedule->sent[context].back(), t));
    }
  }
  return schedule;
}

/// Both contexts at once: posted in one order, waited for in an order of the rank's own.
void overlap(std::array<std::optional<ExchangeRun>, 2>& runs, const Schedule& schedule, std::size_t turn) {
  const std::size_t first = (schedule.seed + idx(runs[0]->rank())) % 2;
  std::array<DispatchBuffers, 2> buffers;
  std::array<CombineBuffers, 2> answers;
  std::array<PendingDispatch, 2> dispatches;
  std::array<PendingCombine, 2> combines;
  std::array<std::optional<DispatchResult>, 2> results;
  for (std::size_t c = 0; c < 2; ++c) {
    dispatches[c] = runs[c]->exchange().post_dispatch(runs[c]->input(schedule.sent[c][turn], buffers[c]));
  }
  for (const std::size_t c : {first, 1 - first}) {
    results[c] = dispatches[c].wait();
    runs[c]->check(schedule.sent[c][turn], *results[c]);
  }
  for (std::size_t c = 0; c < 2; ++c) {
    const auto& sent = schedule.sent[c][turn];
    combines[c] = runs[c]->exchange().post_combine(
        runs[c]->answers(sent, schedule.back[c][turn], results[c]->handle, answers[c]));
  }
  for (const std::size_t c : {1 - first, first}) runs[c]->check(schedule.back[c][turn], combines[c].wait());
  for (auto& result : results) poison_rows(*result);
}

void call_all(const Schedule& schedule, Group& group) {
  std::array<std::optional<ExchangeRun>, 2> runs;
  for (std::size_t c = 0; c < 2; ++c) runs[c].emplace(group, schedule.cases[c]);
  for (std::size_t t = 0; t < schedule.turns.size(); ++t) {
    if (schedule.turns[t] == Turn::both) {
      overlap(runs, schedule, t);
    } else {
      const std::size_t c = schedule.turns[t] == Turn::first ? 0 : 1;
      runs[c]->exchange_once(schedule.sent[c][t], schedule.back[c][t]);
    }
  }
}

std::string how_to_repeat(std::uint64_t seed) {
  return "MOEBUS_TEST_SEED=" + std::to_string(seed) +
         " MOEBUS_TEST_SCHEDULES=1 random_schedule_test --gtest_filter=RandomSchedules.*";
}

std::size_t num_schedules() {
  const char* const text = std::getenv("MOEBUS_TEST_SCHEDULES");
  return text != nullptr ? std::strtoull(text, nullptr, 10) : std::size_t{2000} / kSlowdown;
}

TEST(RandomSchedules, EndInRightResultsOrAnErrorThatNamesTheCulprit) {
  struct Count {
    std::atomic<std::uint32_t> planned{};
    std::atomic<std::uint32_t> fired{};
  };

  const auto count = make_shared_object<Count>();
  const std::uint64_t first = first_seed();
  const auto run = [&](std::size_t i) {
    const auto schedule = make_schedule(seed_from(first + i, 61));
    schedule->run.one = &schedule->cases[0];
    schedule->run.calls = [&](Group& group) { call_all(*schedule, group); };
    const auto report = make_shared_object<engine::FaultReport>();
    const bool has_fired = run_with_fault(schedule->run, *report);
    if (schedule->run.fault.action == Action::none) return;
    ++count->planned;
    if (has_fired) ++count->fired;
  };
  const std::size_t num = num_schedules();
  run_side_by_side(num, run, [&](std::size_t i) { return how_to_repeat(first + i); });
  std::printf("%zu schedules, %u with a fault, %u of them fired\n", num, count->planned.load(), count->fired.load());
  // Steps are planned by number, and some calls have fewer.
  if (num >= 100) {
    EXPECT_GT(count->fired, count->planned / 2);
  }
}

}  // namespace
}  // namespace moebus::tests
