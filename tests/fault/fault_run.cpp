#include "tests/fault/fault_run.hpp"

#include <gmock/gmock.h>
#include <sys/mman.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <system_error>

#include "base/math.hpp"
#include "tests/support/process_state.hpp"

namespace moebus::tests {
namespace {

using base::idx;
using std::chrono::milliseconds;

constexpr int kNumWorkers = 16;  // most of them wait
constexpr int kMaxFailures = 4;  // then no further run begins

/// A run takes its limits at most, and what a loaded machine adds.
constexpr milliseconds kRunLimit{40'000 * kSlowdown};

void set_variable(const char* name, const std::string& value) {
  if (value.empty()) {
    ::unsetenv(name);
  } else {
    ::setenv(name, value.c_str(), 1);
  }
}

/// The calls, and after an error what must hold then.
void call_and_check(Group& group, const FaultRun& run, const engine::FaultReport& report) {
  try {
    run.calls(group);
  } catch (const Error& error) {
    EXPECT_GT(report.num_fired[run.fault.idx], 0U) << error.what();
    EXPECT_EQ(run.fault.objection_to(error), "") << error.what();
    const std::string first = error.what();
    const auto repeats = [&](const std::function<void()>& call) {
      EXPECT_THAT(error_of(ErrorCode::group_poisoned, error.origin_rank(), call), ::testing::HasSubstr(first));
    };
    repeats([&] { run.calls(group); });
    repeats([&] { group.barrier(); });
  }
}

void take_part(const FaultRun& run, const engine::FaultReport& report, const std::string& uri, int rank) {
  const GroupOptions options = group_options(*run.one, rank, run.options);
  const bool is_alone = run.one->as_processes;
  const ProcessState before = is_alone ? process_state() : ProcessState{};
  {
    Group group = Group::join(uri, rank, run.one->num_ranks, options);
    call_and_check(group, run, report);
    group.close();
  }
  if (!is_alone) return;
  const ProcessState after = process_state();
  EXPECT_EQ(after.descriptors, before.descriptors) << after.text();
  EXPECT_EQ(after.threads, before.threads) << after.text();
  EXPECT_EQ(after.shared_mappings, before.shared_mappings) << after.text();
}

/// The victim ended as the fault says, and nobody else did.
void check_outcomes(const FaultRun& run, std::vector<RankOutcome> outcomes, bool has_fired) {
  RankOutcome& victim = outcomes[idx(run.fault.rank)];
  if (has_fired && run.fault.action == Action::kill) {
    EXPECT_EQ(victim.signal, SIGKILL) << victim.message;
    EXPECT_FALSE(victim.timed_out || victim.stopped);
    victim = {};
  }
  if (has_fired && run.fault.action == Action::stop) {
    EXPECT_TRUE(victim.stopped) << victim.message;
    victim = {};
  }
  EXPECT_TRUE(all_ok(outcomes));
}

/// What the processes that run side by side tell each other.
struct Desk {
  std::atomic<std::size_t> next{};
  std::atomic<int> num_failures{};
  std::array<std::atomic<std::size_t>, kNumWorkers> current{};  ///< run, plus 1
};

}  // namespace

std::string to_text(Action action) {
  const char* const names[] = {"none", "kill", "stop", "delay", "drop", "cut"};
  return names[static_cast<int>(action)];
}

std::string MainFault::objection_to(const Error& error) const {
  const bool is_later = has_posts && error.code() == ErrorCode::group_poisoned;
  const bool is_lost = error.code() == ErrorCode::peer_lost || is_later;
  const bool is_late = error.code() == ErrorCode::timeout || is_later;
  const bool is_named = error.origin_rank() == rank;
  switch (action) {
    case Action::none:
    case Action::delay:
      return "nobody was hurt";
    case Action::kill:
      return is_lost && is_named ? "" : "rank " + std::to_string(rank) + " was lost";
    case Action::stop:
      return is_late && is_named ? "" : "rank " + std::to_string(rank) + " stands still";
    case Action::drop:
      // It may have left when the missing signal is noticed.
      return (is_late || is_lost) && is_named ? "" : "rank " + std::to_string(rank) + " lost a signal";
    case Action::cut:
      if ((is_lost || is_late) && (is_named || error.origin_rank() == peer)) return "";
      return "the link between ranks " + std::to_string(rank) + " and " + std::to_string(peer) + " was cut";
  }
  return {};
}

std::shared_ptr<void> shared_memory(std::size_t size_bytes) {
  void* memory = ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap");
  return {memory, [size_bytes](void* address) { ::munmap(address, size_bytes); }};
}

GroupOptions short_limits() {
  GroupOptions options = quiet_options();
  options.arrival_limit = milliseconds(700 * kSlowdown);
  options.progress_limit = milliseconds(500 * kSlowdown);
  return options;
}

bool run_with_fault(const FaultRun& run, engine::FaultReport& report) {
  const std::string uri = unique_uri(run.one->as_processes);
  set_variable("MOEBUS_FAULT", run.spec);
  set_variable("MOEBUS_TEST_TRANSPORT", run.transport);
  engine::report_faults_to(&report);
  const auto start = run.one->as_processes ? &run_as_processes : &run_as_threads;
  std::vector<RankOutcome> outcomes =
      start(run.one->num_ranks, [&](int rank) { take_part(run, report, uri, rank); }, kRunLimit);
  engine::report_faults_to(nullptr);
  set_variable("MOEBUS_FAULT", "");
  set_variable("MOEBUS_TEST_TRANSPORT", "");
  const std::uint32_t num_fired = report.num_fired[run.fault.idx];
  EXPECT_LE(num_fired, 1U);
  check_outcomes(run, std::move(outcomes), num_fired > 0);
  if (::testing::Test::HasFailure()) {
    ADD_FAILURE() << "with MOEBUS_FAULT='" << run.spec << "' MOEBUS_TEST_TRANSPORT='" << run.transport << "', "
                  << describe(*run.one);
  }
  return run.fault.action == Action::none || num_fired == 1;
}

void run_side_by_side(std::size_t num,
                      const std::function<void(std::size_t)>& run,
                      const std::function<std::string(std::size_t)>& name) {
  const auto desk = make_shared_object<Desk>();
  const auto work = [&](int worker) {
    for (;;) {
      const std::size_t i = desk->next++;
      if (i >= num || desk->num_failures >= kMaxFailures) break;
      desk->current[idx(worker)] = i + 1;
      run(i);
      if (!::testing::Test::HasFailure()) continue;
      ADD_FAILURE() << "in the run " << name(i);
      ++desk->num_failures;
      break;
    }
    desk->current[idx(worker)] = 0;
  };
  const std::vector<RankOutcome> outcomes = run_as_processes(kNumWorkers, work, std::chrono::minutes(60));
  EXPECT_TRUE(all_ok(outcomes));
  for (const auto& current : desk->current) {
    if (current > 0) ADD_FAILURE() << "did not end: " << name(current - 1);
  }
}

}  // namespace moebus::tests
