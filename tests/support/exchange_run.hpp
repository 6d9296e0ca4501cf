// Exchange run: one rank's side of an exchange case: its buffers, its calls, and the comparison with the oracle.
// Room: tests · host.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "moebus/moebus.hpp"
#include "tests/support/exchange_case.hpp"
#include "tests/support/ranks.hpp"

namespace moebus::tests {

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

/// Memory that a rank hands to dispatch; must outlive the result if it gives outputs.
struct DispatchBuffers {
  std::vector<std::byte> gapped;
  std::vector<std::int32_t> short_ids;
  std::vector<std::byte> tokens;
  std::vector<std::byte> scales;
  std::array<std::vector<std::byte>, kMaxSideTensors> side;
};

/// Memory that a rank hands to combine.
struct CombineBuffers {
  std::vector<std::byte> rows;
  std::vector<float> lane;
  std::vector<std::byte> output;
};

/// One rank's exchange. Differences from the oracle are thrown as std::runtime_error.
class ExchangeRun {
 public:
  /// Makes and prepares the exchange, and sets the case's placement. `one` must outlive the run.
  ExchangeRun(const Group& group, const ExchangeCase& one);

  [[nodiscard]] Exchange& exchange() noexcept { return exchange_; }

  [[nodiscard]] int rank() const noexcept { return rank_; }

  [[nodiscard]] DispatchInput input(const DispatchTruth& truth, DispatchBuffers& buffers);
  [[nodiscard]] CombineInput answers(const DispatchTruth& dispatched,
                                     const CombineTruth& truth,
                                     const DispatchHandle& handle,
                                     CombineBuffers& buffers);

  /// Compares what came of a dispatch, or of a combine.
  void check(const DispatchTruth& truth, const DispatchResult& result) const;
  void check(const CombineTruth& truth, const CombineResult& result) const;

  /// Dispatches and compares.
  DispatchResult dispatch(const DispatchTruth& truth, DispatchBuffers& buffers);

  /// Combines and compares.
  void combine(const DispatchTruth& dispatched, const CombineTruth& truth, const DispatchHandle& handle);

  /// One dispatch and combine; the result's memory is poisoned before it is given back.
  void exchange_once(const DispatchTruth& dispatched, const CombineTruth& combined);

 private:
  [[nodiscard]] TensorView output(std::vector<std::byte>& memory, DType dtype, std::int64_t columns);
  void leave_gaps(const oracle::RankInput& given, DispatchInput& input, DispatchBuffers& buffers) const;
  void give_outputs(DispatchInput& input, DispatchBuffers& buffers);

  const ExchangeCase& one_;
  const ExchangeConfig& config_;
  int rank_;
  Exchange exchange_;
};

/// Fills the rows of a result with NaN, so that nothing stale can pass for right afterwards.
void poison_rows(DispatchResult& result);

/// Runs a case on all its ranks. Succeeds if every byte is the oracle's, and no rank sent more than it must; where
/// nothing can be dropped, exactly that.
::testing::AssertionResult matches_oracle(const ExchangeCase& one);

/// Throws std::runtime_error unless the counters of a rank say that it sent and received what it must. Unless
/// `is_exact` it may have been less: rows that a capacity drops need not travel.
void check_traffic(const ExchangeStats& stats, int rank, const LeastTraffic& least, bool is_exact);

/// Returns the text of the error that `call` throws; fails unless it throws Error{code} with this origin.
std::string error_of(ErrorCode code, int origin_rank, const std::function<void()>& call);

}  // namespace moebus::tests
