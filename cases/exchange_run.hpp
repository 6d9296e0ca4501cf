// Exchange run: one rank's side of an exchange case: its buffers, its calls, and the comparison with the oracle.
// Room: cases · host.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cases/exchange_case.hpp"
#include "moebus/moebus.hpp"

namespace moebus::cases {

/// Memory that a rank hands to dispatch; must outlive the result if it gives outputs.
struct DispatchBuffers {
  std::vector<std::byte> gapped;
  std::vector<std::int64_t> ids;
  std::vector<std::int32_t> short_ids;
  std::vector<float> weights;
  std::vector<std::byte> tokens;
  std::vector<std::byte> scales;
  std::array<std::vector<std::byte>, kMaxSideTensors> side;
};

/// Memory that a rank hands to combine.
struct CombineBuffers {
  std::vector<std::byte> rows;
  std::vector<float> lane;
  std::vector<float> weights;
  std::vector<std::byte> output;
};

/// Faults that can be planted into what is given or received, to show that a comparison would notice. `order`: choices
/// are handed over in another order, so that sums are added in another one.
enum class Mutant : std::uint8_t { none, swapped_rows, dropped_row, order };

/// One rank's exchange. Differences from the oracle are thrown as std::runtime_error, unless they are asked for.
class ExchangeRun {
 public:
  /// Makes and prepares the exchange, and sets the case's placement. `one` must outlive the run.
  ExchangeRun(const Group& group, const ExchangeCase& one, Mutant mutant = Mutant::none);

  [[nodiscard]] Exchange& exchange() noexcept { return exchange_; }

  [[nodiscard]] int rank() const noexcept { return rank_; }

  [[nodiscard]] ExchangeStats stats() const { return exchange_.stats(); }

  [[nodiscard]] DispatchInput input(const DispatchTruth& truth, DispatchBuffers& buffers);
  [[nodiscard]] CombineInput answers(const DispatchTruth& dispatched,
                                     const CombineTruth& truth,
                                     const DispatchHandle& handle,
                                     CombineBuffers& buffers);

  /// Returns what differs first in what came of a dispatch, or of a combine.
  [[nodiscard]] std::optional<std::string> difference(const DispatchTruth& truth, const DispatchResult& result) const;
  [[nodiscard]] std::optional<std::string> difference(const CombineTruth& truth, const CombineResult& result) const;

  /// The same, thrown.
  void check(const DispatchTruth& truth, const DispatchResult& result) const;
  void check(const CombineTruth& truth, const CombineResult& result) const;

  /// Dispatches and compares.
  DispatchResult dispatch(const DispatchTruth& truth, DispatchBuffers& buffers);

  /// Combines and compares.
  void combine(const DispatchTruth& dispatched, const CombineTruth& truth, const DispatchHandle& handle);

  /// One dispatch and combine; the result's memory is poisoned before it is given back.
  void exchange_once(const DispatchTruth& dispatched, const CombineTruth& combined);

  /// Plants the mutant into a result.
  void spoil(const DispatchTruth& truth, DispatchResult& result) const;

 private:
  [[nodiscard]] TensorView output(std::vector<std::byte>& memory, DType dtype, std::int64_t columns);
  void reverse_choices(const oracle::RankInput& given, DispatchInput& input, DispatchBuffers& buffers) const;
  void leave_gaps(const oracle::RankInput& given, DispatchInput& input, DispatchBuffers& buffers) const;
  void give_outputs(DispatchInput& input, DispatchBuffers& buffers);
  void give_weights(const oracle::HomeInput& home,
                    std::int64_t tokens,
                    CombineInput& input,
                    CombineBuffers& buffers) const;

  const ExchangeCase& one_;
  const ExchangeConfig& config_;
  int rank_;
  Mutant mutant_;
  Exchange exchange_;
};

/// Fills the rows of a result with NaN, so that nothing stale can pass for right afterwards.
void poison_rows(DispatchResult& result);

/// Makes all calls of a case on one rank. Returns the first difference from the oracle or from the least traffic, or
/// nothing; calls are made to the end either way, so that no other rank is left waiting.
[[nodiscard]] std::optional<std::string> run_calls(const Group& group,
                                                   const ExchangeCase& one,
                                                   const CaseTruth& truth,
                                                   Mutant mutant = Mutant::none);

/// Returns where the counters of a rank do not say that it sent and received what it must, or nothing. Unless
/// `is_exact` it may have been less: rows that a capacity drops need not travel.
[[nodiscard]] std::optional<std::string> traffic_difference(const ExchangeStats& stats,
                                                            int rank,
                                                            const LeastTraffic& least,
                                                            bool is_exact);

}  // namespace moebus::cases
