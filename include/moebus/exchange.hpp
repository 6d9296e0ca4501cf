// Exchange: dispatch carries each token to the ranks that own its experts, combine brings the answers home.
// Room: public verbs · host.
// Source: [deepep-normal] two-step count exchange; [deepep-ll] fixed slots; [ours] order is (source rank, source
// token), always.

#pragma once

#include <cstdint>
#include <memory>

#include "moebus/config.hpp"
#include "moebus/group.hpp"
#include "moebus/io.hpp"
#include "moebus/stats.hpp"

namespace moebus {

namespace engine {
class ExchangeCore;
}

/// One shape of dispatch and combine over a group. Several exchanges of a group share windows and one sequence of
/// calls.
///
/// Order:   dispatch, combine, warm_up and prepare are collective, in the same order on all ranks.
/// Threads: one caller per rank at a time.
class Exchange {
 public:
  /// Checks the configuration. Error{invalid_argument} names field, value, limit and remedy. Nothing is allocated yet.
  Exchange(const Group& group, const ExchangeConfig& config);
  ~Exchange();
  Exchange(Exchange&&) noexcept;
  Exchange& operator=(Exchange&&) noexcept;

  /// Returns what `config` will need on each rank of a group of `num_ranks`, before anything is allocated.
  static BytesNeeded bytes_needed(const ExchangeConfig& config, int num_ranks);

  /// Agrees on the configuration with all ranks, allocates, maps and touches all memory. Does nothing the second time.
  ///
  /// Order:   collective; no result of this group may be held.
  /// Errors:  Error{invalid_argument} names each field that differs, with its value per rank;
  /// Error{resource_exhausted}.
  PrepareReport prepare();

  /// Runs one dispatch and one combine on zeros, so that the first real call costs what the thousandth costs. Prepares
  /// if needed.
  PrepareReport warm_up();

  /// Sends each token to the ranks that own its chosen experts and returns the rows that came here.
  ///
  /// Shape:   see DispatchInput, DispatchResult.
  /// Order:   collective. Takes one epoch of the group.
  /// Errors:  Error{invalid_argument} on every rank, naming the rank, argument, value and limit; the group stays whole.
  ///          Error{resource_exhausted} on every rank if a handle or the result memory is still held somewhere.
  ///          Error{timeout}, Error{peer_lost}: the group is then poisoned.
  /// Cost:    no allocation; one row per (token, rank) on the wire.
  DispatchResult dispatch(const DispatchInput& input);

  /// Brings the experts' rows home, weighted and summed in a fixed order; see docs/architecture.md for the order, to
  /// the bit.
  ///
  /// Order, Errors: as dispatch. May be called several times on one handle.
  CombineResult combine(const CombineInput& input);

  [[nodiscard]] const ExchangeConfig& config() const noexcept;
  [[nodiscard]] int num_local_experts() const noexcept;
  [[nodiscard]] int first_local_expert() const noexcept;

  /// Returns the most rows a result can have here (expert_padded: rows per expert).
  [[nodiscard]] std::int64_t capacity_rows() const noexcept;

  [[nodiscard]] ExchangeStats stats() const;
  void reset_stats() noexcept;

 private:
  std::unique_ptr<engine::ExchangeCore> core_;
};

}  // namespace moebus
