// Fault run: a group of ranks with planted faults, and what each survivor must see; many of them side by side.
// Room: tests · host.

#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/faults.hpp"
#include "tests/support/exchange_run.hpp"

namespace moebus::tests {

using Action = engine::PlannedFault::Action;

[[nodiscard]] std::string to_text(Action action);

/// A fault, and the place of it among those of a run's MOEBUS_FAULT.
struct MainFault {
  Action action = Action::none;
  int rank = 0;
  int peer = 0;         ///< cut
  std::size_t idx = 0;  ///< in MOEBUS_FAULT

  /// Calls are posted: the first that a rank waits for may be a later one, and fail because an earlier one failed.
  bool has_posts = false;

  /// Why this error must not come of the fault, empty if it may.
  [[nodiscard]] std::string objection_to(const Error& error) const;
};

/// One group, once.
struct FaultRun {
  std::string spec;  ///< MOEBUS_FAULT, empty = none
  MainFault fault;
  const ExchangeCase* one = nullptr;        ///< size, nodes, mapping, threads or processes
  std::function<void(Group& group)> calls;  ///< what each rank does; differences from the oracle are thrown
  GroupOptions options;
  std::string transport;  ///< MOEBUS_TEST_TRANSPORT, empty = none
};

/// Runs the group and fails the test unless every survivor ends each call with a right result or, if the fault allows
/// it, an error that names the culprit; then the group is poisoned, repeats its first cause, and gives everything back.
/// Returns true if the main fault fired (without one: true).
bool run_with_fault(const FaultRun& run, engine::FaultReport& report);

/// Calls `run(i)` for every i below `num`, some at a time in processes of their own. Fails the test with what they say.
/// `name(i)` says how a run can be repeated.
void run_side_by_side(std::size_t num,
                      const std::function<void(std::size_t)>& run,
                      const std::function<std::string(std::size_t)>& name);

/// Zeroed memory that this process shares with those that it forks.
[[nodiscard]] std::shared_ptr<void> shared_memory(std::size_t size_bytes);

/// The same as an object for which zeroed memory is the initial state.
template <class T>
std::shared_ptr<T> make_shared_object() {
  return std::static_pointer_cast<T>(shared_memory(sizeof(T)));
}

/// Limits that a rank which is merely late does not reach on a loaded machine, and a test can wait for.
[[nodiscard]] GroupOptions short_limits();

}  // namespace moebus::tests
