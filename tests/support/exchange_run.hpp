// Exchange run: groups of ranks that run an exchange case, and how a test says what it expects of them.
// Room: tests · host.

#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cases/exchange_case.hpp"
#include "cases/exchange_run.hpp"
#include "moebus/moebus.hpp"
#include "tests/support/errors.hpp"
#include "tests/support/ranks.hpp"

namespace moebus::tests {

using namespace cases;  // a case is what most tests here are about

/// How many times fewer random cases a build with sanitizers runs.
#ifdef MOEBUS_TEST_SLOWDOWN
inline constexpr int kSlowdown = MOEBUS_TEST_SLOWDOWN;
#else
inline constexpr int kSlowdown = 1;
#endif

/// Returns MOEBUS_TEST_SEED, or the seed that all runs use; tests with seeds begin at it.
[[nodiscard]] std::uint64_t first_seed();

/// Returns an address that no other call of this process returns; make it before ranks start.
[[nodiscard]] std::string unique_uri(bool as_processes);

/// Limits that only a hang reaches, and no lines in the log.
[[nodiscard]] GroupOptions quiet_options();

/// Runs `body` on the ranks of a group at a new address, as threads or as processes.
using MemberBody = std::function<void(Group& group)>;
std::vector<RankOutcome> run_group(int num_ranks,
                                   bool as_processes,
                                   const MemberBody& body,
                                   const GroupOptions& options = quiet_options());

/// The same for a case: each rank says which node it is on, with the case's levels and mapping.
std::vector<RankOutcome> run_group(const ExchangeCase& one,
                                   const MemberBody& body,
                                   const GroupOptions& options = quiet_options());

/// Fails the test, with the ranks' messages, unless all of them are well.
void expect_ok(const std::vector<RankOutcome>& outcomes);

/// Runs a case on all its ranks. Succeeds if every byte is the oracle's, and no rank sent more than it must; where
/// nothing can be dropped, exactly that.
::testing::AssertionResult matches_oracle(const ExchangeCase& one);

/// Returns the text of the error that `call` throws; fails unless it throws Error{code} with this origin.
std::string error_of(ErrorCode code, int origin_rank, const std::function<void()>& call);

}  // namespace moebus::tests
