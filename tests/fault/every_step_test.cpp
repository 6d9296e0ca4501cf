// Every step of the protocol, on every rank, with every fault: each run hurts one rank at one step of one call.
//
// Steps are named by kind, field and peer. Signals are the same in every run, so each is hit for certain. Which waits
// stand still depends on who comes first: they are collected from runs without faults and from runs in which one signal
// is late, and hit by making the same signal late again. A step that no run hits fails the test.
//
// Of each step's faults the default takes one, in turn over steps and ranks, so that every step of every rank is hit,
// and every kind of step by every fault; MOEBUS_TEST_EVERY_STEP=all takes all of them. MOEBUS_FAULT repeats one run.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>
#include <tuple>

#include "base/math.hpp"
#include "tests/fault/fault_run.hpp"
#include "tests/support/process_state.hpp"
#include "tests/support/test_names.hpp"

namespace moebus::tests {
namespace {

using base::idx;
using engine::FaultReport;
using engine::SeenStep;
using engine::StepName;
using sync::StepKind;

enum class Links : std::uint8_t { mapped, unmapped, gateways };

struct Setting {
  Route route;
  Links links;
  int num_ranks;
};

std::string name_of_case(const ::testing::TestParamInfo<Setting>& info) {
  const char* const links[] = {"Mapped", "Unmapped", "ByGateways"};
  const Setting& setting = info.param;
  return name_of(setting.route) + links[static_cast<int>(setting.links)] + std::to_string(setting.num_ranks) + "Ranks";
}

/// A step of a rank.
struct Place {
  int rank = 0;
  SeenStep step;
};

/// Where a fault strikes, and for a wait the signals whose lateness made it stand still once, surest first.
struct Target {
  Place place;
  std::vector<Place> late;
  std::vector<Action> actions;
};

constexpr std::size_t kMaxLate = 6;  // signals that are tried for one wait

bool operator<(const Place& a, const Place& b) {
  const auto key = [](const Place& place) {
    const StepName& name = place.step.name;
    return std::tuple(place.rank, place.step.call, name.kind, name.field, name.peer, name.nth);
  };
  return key(a) < key(b);
}

/// The waits that stood still, and what was late then.
using Waits = std::map<Place, std::vector<Place>>;

bool is_wait(const StepName& name) { return name.kind == StepKind::wait_begins || name.kind == StepKind::wait_ends; }

std::string clause(Action action, const Place& place, const std::string& more) {
  return to_text(action) + ":rank=" + std::to_string(place.rank) + ",call=" + std::to_string(place.step.call) +
         ",at=" + to_text(place.step.name) + more;
}

/// True if nobody waits until a limit is over.
bool has_end(Action action) { return action == Action::kill || action == Action::delay; }

/// How surely the wait `place` stands still if `late` is late: best the awaited signal itself, then all that its rank
/// does. A gateway signals the same word several times, for itself and for others, and what it says of others can be
/// what counts: no single guess is right for all of them.
int closeness(const Place& late, const Place& place) {
  if (late.rank != place.step.name.peer || late.step.call != place.step.call) return 0;
  if (late.step.name.kind == StepKind::call_begins) return 1;
  return late.step.name.field == place.step.name.field && late.step.name.peer == place.rank ? 2 : 0;
}

class EveryStep : public ::testing::TestWithParam<Setting> {
 protected:
  EveryStep() {
    const auto& [route, links, num_ranks] = GetParam();
    one_.num_ranks = num_ranks;
    one_.config = small_config(route, num_ranks);
    // Staged: rounds of three rows, so that places are used again.
    one_.num_tokens.assign(idx(num_ranks), route == Route::staged ? 7 : 4);
    if (links == Links::unmapped) one_.map_peers = MapPeers::none;
    if (links == Links::gateways) {
      one_.map_peers = MapPeers::node;
      for (int rank = 0; rank < num_ranks; ++rank) one_.nodes.push_back(rank < 2 ? 0 : 1);
      one_.config.stage_bytes *= 4;  // room for what gateways add up
    }
    for (int call = 0; call < 2; ++call) sent_.push_back(make_dispatch_truth(one_, call));
    for (int call = 0; call < 2; ++call) back_.push_back(make_combine_truth(one_, sent_[0], call));
  }

  /// Dispatch, combine, combine, dispatch: each of them in both parities of the windows.
  void call_all(Group& group) const {
    ExchangeRun run(group, one_);
    DispatchBuffers buffers;
    DispatchResult result = run.dispatch(sent_[0], buffers);
    run.combine(sent_[0], back_[0], result.handle);
    run.combine(sent_[0], back_[1], result.handle);
    poison_rows(result);
    result = {};
    run.dispatch(sent_[1], buffers);
  }

  [[nodiscard]] FaultRun make_run(const ExchangeCase& one) const {
    FaultRun run;
    run.one = &one;
    run.options = quiet_options();
    run.calls = [this](Group& group) { call_all(group); };
    return run;
  }

  [[nodiscard]] std::set<Place> steps_of(const FaultReport& report) const {
    std::set<Place> steps;
    for (int rank = 0; rank < one_.num_ranks; ++rank) {
      EXPECT_LE(report.num_steps[idx(rank)], FaultReport::kMaxSeen);
      for (const SeenStep& step : report.steps_of(rank)) steps.insert({rank, step});
    }
    return steps;
  }

  [[nodiscard]] std::vector<Place> find_fixed_steps(Waits& waits);
  void make_signals_late(const std::vector<Place>& fixed, Waits& waits);
  void repeat(const std::string& spec);
  void hit(const Target& target, Action action, std::size_t turn);

  ExchangeCase one_;
  std::vector<DispatchTruth> sent_;
  std::vector<CombineTruth> back_;
};

/// Runs without faults: returns what every run does, notes which waits stood still.
std::vector<Place> EveryStep::find_fixed_steps(Waits& waits) {
  std::vector<Place> fixed;
  for (int turn = 0; turn < 3; ++turn) {
    const auto report = make_shared_object<FaultReport>();
    run_with_fault(make_run(one_), *report);
    std::vector<Place> now;
    for (const Place& place : steps_of(*report)) {
      if (!is_wait(place.step.name)) {
        now.push_back(place);
      } else if (place.step.name.nth == 0) {
        waits.try_emplace(place);
      }
    }
    const auto is_same = [](const Place& a, const Place& b) { return a.rank == b.rank && a.step == b.step; };
    EXPECT_TRUE(turn == 0 || std::equal(fixed.begin(), fixed.end(), now.begin(), now.end(), is_same))
        << "signals differ from run to run";
    fixed = now;
  }
  return fixed;
}

/// The fault `delay` at every signal and call: all succeed, and more waits stand still than else.
void EveryStep::make_signals_late(const std::vector<Place>& fixed, Waits& waits) {
  std::vector<Place> late;
  for (const Place& place : fixed) {
    if (place.step.name.kind != StepKind::signal_made) late.push_back(place);
  }
  const auto memory = shared_memory(late.size() * sizeof(FaultReport));
  auto* const reports = static_cast<FaultReport*>(memory.get());
  const auto run_of = [&](std::size_t i) {
    FaultRun run = make_run(one_);
    run.fault = {Action::delay, late[i].rank, 0, 0};
    run.spec = clause(Action::delay, late[i], ",ms=20");
    return run;
  };
  run_side_by_side(
      late.size(),
      [&](std::size_t i) { EXPECT_TRUE(run_with_fault(run_of(i), reports[i])) << "did not fire"; },
      [&](std::size_t i) { return run_of(i).spec; });
  for (std::size_t i = 0; i < late.size(); ++i) {
    for (const Place& place : steps_of(reports[i])) {
      const StepName& name = place.step.name;
      if (!is_wait(name) || name.nth > 0) continue;
      waits[place].push_back(late[i]);
    }
  }
  for (auto& [place, known] : waits) {
    const auto is_surer = [&](const Place& a, const Place& b) { return closeness(a, place) > closeness(b, place); };
    std::ranges::stable_sort(known, is_surer);
    known.resize(std::min(known.size(), kMaxLate));
  }
}

/// One run with one fault, again with another signal late, and later, if the wait did not stand still.
void EveryStep::hit(const Target& target, Action action, std::size_t turn) {
  ExchangeCase one = one_;
  one.as_processes = action == Action::kill || action == Action::stop || turn % 4 == 0;
  FaultRun run = make_run(one);
  if (!has_end(action)) run.options = short_limits();
  run.fault.action = action;
  run.fault.rank = target.place.rank;
  run.fault.peer = (target.place.rank + 1 + static_cast<int>(turn % idx(one.num_ranks - 1))) % one.num_ranks;
  run.fault.idx = target.late.empty() ? 0 : 1;
  const std::string more = action == Action::cut ? ",peer=" + std::to_string(run.fault.peer) : "";
  const std::string main_clause = clause(action, target.place, more);
  std::vector<std::string> specs;
  for (const int lateness_ms : {40, 120, 360}) {
    for (const Place& late : target.late) {
      specs.push_back(clause(Action::delay, late, ",ms=" + std::to_string(lateness_ms)) + ";" + main_clause);
    }
    if (target.late.empty()) specs.push_back(main_clause);
  }
  for (const std::string& spec : specs) {
    run.spec = spec;
    const auto report = make_shared_object<FaultReport>();
    if (run_with_fault(run, *report) || ::testing::Test::HasFailure()) return;
  }
  ADD_FAILURE() << "did not fire: MOEBUS_FAULT=" << run.spec;
}

/// The one run that MOEBUS_FAULT asks for.
void EveryStep::repeat(const std::string& spec) {
  const engine::PlannedFault planned = engine::Faults(spec, 0).planned().back();
  ExchangeCase one = one_;
  one.as_processes = true;
  FaultRun run = make_run(one);
  run.spec = spec;
  run.fault = {planned.action, planned.rank, planned.peer, engine::Faults(spec, 0).planned().size() - 1};
  if (!has_end(planned.action)) run.options = short_limits();
  const auto report = make_shared_object<FaultReport>();
  EXPECT_TRUE(run_with_fault(run, *report)) << "did not fire";
}

TEST_P(EveryStep, EndsInARightResultOrAnErrorThatNamesTheCulprit) {
  if (const char* const spec = std::getenv("MOEBUS_FAULT")) return repeat(spec);
  const auto names = process_state().named_things;
  Waits waits;
  const std::vector<Place> fixed = find_fixed_steps(waits);
  make_signals_late(fixed, waits);
  if (HasFailure()) return;

  std::vector<Target> targets;
  for (const Place& place : fixed) {
    targets.push_back({place, {}, {Action::kill, Action::stop, Action::cut}});
    if (place.step.name.kind == StepKind::signal_ahead) targets.back().actions.push_back(Action::drop);
  }
  for (const auto& [place, late] : waits) {
    targets.push_back({place, late, {Action::kill, Action::stop, Action::cut, Action::delay}});
  }

  struct Turn {
    const Target* target;
    Action action;
    std::size_t number;
  };

  const char* const wanted = std::getenv("MOEBUS_TEST_EVERY_STEP");
  const bool has_all = wanted != nullptr && std::string(wanted) == "all";
  std::vector<Turn> turns;
  for (std::size_t t = 0; t < targets.size(); ++t) {
    const auto& actions = targets[t].actions;
    const std::size_t chosen = (t + idx(targets[t].place.rank)) % actions.size();
    for (std::size_t a = 0; a < actions.size(); ++a) {
      if (has_all || a == chosen) turns.push_back({&targets[t], actions[a], t + a});
    }
  }
  run_side_by_side(
      turns.size(),
      [&](std::size_t i) { hit(*turns[i].target, turns[i].action, turns[i].number); },
      [&](std::size_t i) { return clause(turns[i].action, turns[i].target->place, ""); });
  std::printf("%zu signals and calls, %zu waits, %zu runs\n", fixed.size(), waits.size(), turns.size());
  const auto is_shared = [](const std::string& path) { return path.starts_with("/dev/shm"); };
  for (const std::string& path : process_state().named_things) {
    EXPECT_TRUE(!is_shared(path) || names.contains(path)) << path << " stayed behind";
  }
}

std::vector<Setting> all_settings() {
  std::vector<Setting> settings;
  for (const Route route : kRoutes) {
    for (const Links links : {Links::mapped, Links::unmapped, Links::gateways}) {
      for (const int num_ranks : {2, 3, 4}) {
        if (links != Links::gateways || num_ranks > 2) settings.push_back({route, links, num_ranks});
      }
    }
  }
  return settings;
}

INSTANTIATE_TEST_SUITE_P(Settings, EveryStep, ::testing::ValuesIn(all_settings()), name_of_case);

}  // namespace
}  // namespace moebus::tests
