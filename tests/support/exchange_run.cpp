#include "tests/support/exchange_run.hpp"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <stdexcept>

namespace moebus::tests {
namespace {

template <class OptionsOf>
std::vector<RankOutcome> run_members(int num_ranks, bool as_processes, const MemberBody& body, OptionsOf options_of) {
  const std::string uri = unique_uri(as_processes);
  const auto run = as_processes ? &run_as_processes : &run_as_threads;
  return run(
      num_ranks,
      [&](int rank) {
        Group group = Group::join(uri, rank, num_ranks, options_of(rank));
        body(group);
      },
      kRanksLimit);
}

}  // namespace

std::uint64_t first_seed() {
  const char* const text = std::getenv("MOEBUS_TEST_SEED");
  return text != nullptr ? std::strtoull(text, nullptr, 10) : 1;
}

std::string unique_uri(bool as_processes) {
  static std::atomic<int> last{0};
  return std::string(as_processes ? "local://" : "inproc://") + "test-" + std::to_string(::getpid()) + "-" +
         std::to_string(++last);
}

GroupOptions quiet_options() {
  GroupOptions options;
  options.join_limit = std::chrono::seconds(50);
  options.arrival_limit = std::chrono::seconds(50);
  options.progress_limit = std::chrono::seconds(50);
  options.show_progress = false;
  return options;
}

std::vector<RankOutcome> run_group(int num_ranks,
                                   bool as_processes,
                                   const MemberBody& body,
                                   const GroupOptions& options) {
  return run_members(num_ranks, as_processes, body, [&](int) { return options; });
}

std::vector<RankOutcome> run_group(const ExchangeCase& one, const MemberBody& body, const GroupOptions& options) {
  return run_members(
      one.num_ranks, one.as_processes, body, [&](int rank) { return group_options(one, rank, options); });
}

void expect_ok(const std::vector<RankOutcome>& outcomes) { EXPECT_TRUE(all_ok(outcomes)); }

::testing::AssertionResult matches_oracle(const ExchangeCase& one) {
  const CaseTruth truth = make_truth(one);
  const auto outcomes = run_group(one, [&](Group& group) {
    if (const auto difference = run_calls(group, one, truth)) throw std::runtime_error(*difference);
  });
  const auto result = all_ok(outcomes);
  if (result) return result;
  return ::testing::AssertionFailure() << describe(one) << "\n" << result.message();
}

std::string error_of(ErrorCode code, int origin_rank, const std::function<void()>& call) {
  return message_of(code, call, origin_rank);
}

}  // namespace moebus::tests
