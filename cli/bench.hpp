// Bench: what one rank does in a benchmark: prepare, one checked call, then timed calls beside the floor's copies.
// Room: cli · host.

#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cases/exchange_run.hpp"
#include "cli/feed.hpp"
#include "cli/floor.hpp"
#include "cli/gather.hpp"
#include "cli/launch.hpp"
#include "cli/progress.hpp"
#include "cli/traffic.hpp"
#include "moebus/moebus.hpp"
#include "oracle/combine.hpp"
#include "oracle/dispatch.hpp"

namespace moebus::cli {

/// What the first call must bring; made once, before ranks start where they share a parent.
struct BenchTruth {
  oracle::SharedInputs inputs;  ///< set 0 of all ranks
  std::vector<oracle::DispatchExpectation> dispatched;
  std::vector<cases::LeastTraffic> least;  ///< by set, of all of them
  std::string hash;                        ///< of the inputs
};

BenchTruth make_truth(const BenchSetup& setup);

/// Times of one call on this rank, in microseconds.
struct CallTimes {
  double dispatch = 0;
  double experts = 0;
  double combine = 0;
};

/// One rank's exchange with its inputs, expert rows and results.
class BenchRank {
 public:
  /// Joins nothing; `group` is already whole. Collective (prepares, warms up).
  BenchRank(const BenchSetup& setup, const Group& group);

  /// Takes input set 0 from the truth, and fills the rows that combine will take. Makes no call.
  void load_first(const BenchTruth& truth);

  /// Makes the other input sets of this rank, and with a call on each the rows for combine. Collective.
  void load_others();

  /// One call on an input set; results stay until finish().
  CallTimes call(int set);

  /// Gives results back.
  void finish() noexcept;

  /// Compares the results of a call on set 0 with the oracle. Returns what differs first, or nothing.
  std::optional<std::string> difference(const BenchTruth& truth) const;

  /// Returns the time that counts for the kind of bench.
  [[nodiscard]] double time_of(const CallTimes& times) const noexcept;

  [[nodiscard]] Exchange& exchange() noexcept { return exchange_; }

  [[nodiscard]] const Exchange& exchange() const noexcept { return exchange_; }

  /// The inputs of a set, for who wants to move the same by other means.
  [[nodiscard]] const oracle::RankInput& input(int set) const { return inputs_[static_cast<std::size_t>(set)]; }

  /// The rows that combine takes after a dispatch of the set (kinds combine and exchange).
  [[nodiscard]] const std::byte* rows(int set) const noexcept {
    return rows_.data() + static_cast<std::size_t>(set) * rows_bytes_;
  }

  /// What combine must bring home after a call on set 0.
  [[nodiscard]] oracle::CombineExpectation combine_expectation(const BenchTruth& truth) const;

  [[nodiscard]] const PrepareReport& prepare_report() const noexcept { return prepared_; }

 private:
  std::byte* rows_of(int set) noexcept;
  [[nodiscard]] bool has_combine() const noexcept;
  [[nodiscard]] bool makes_rows_in_call() const noexcept;  // a layer runs its experts; else rows lie ready

  const BenchSetup& setup_;
  int rank_;
  Exchange exchange_;
  PrepareReport prepared_;
  std::size_t row_bytes_ = 0;              // of a combined row
  std::size_t rows_bytes_ = 0;             // of one set's rows
  std::vector<oracle::RankInput> inputs_;  // [sets]
  Pages rows_;                             // [sets] expert rows; one set in a layer, which makes them in each call
  DispatchResult dispatched_;
  CombineResult combined_;
};

/// Weights are applied by whoever adds: the caller's experts in rank_major, combine elsewhere.
Weighting weighting_of(const ExchangeConfig& config) noexcept;

/// Returns the rows that combine takes after a dispatch, lying at `rows`.
ConstTensorView rows_for_combine(const ExchangeConfig& config,
                                 const Exchange& exchange,
                                 const DispatchResult& dispatched,
                                 const std::byte* rows) noexcept;

/// The body of a rank: returns the figures of the bench as JSON text on rank 0, and on any rank that saw a mismatch
/// what differs.
std::string bench_body(const BenchSetup& setup, const BenchTruth& truth, const FloorWindows& windows, const Seat& seat);

}  // namespace moebus::cli
