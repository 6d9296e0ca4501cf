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
#include "moebus/placement.hpp"
#include "moebus/stats.hpp"

namespace moebus {

namespace engine {
class ExchangeCore;
}

/// A dispatch that was posted. wait() finishes it, once; dropping it finishes it too, and drops what came.
class PendingDispatch {
 public:
  PendingDispatch() noexcept = default;
  PendingDispatch(PendingDispatch&& other) noexcept = default;
  PendingDispatch& operator=(PendingDispatch&& other) noexcept;
  ~PendingDispatch();

  [[nodiscard]] bool is_valid() const noexcept { return core_ != nullptr; }

  /// Finishes the call, after all that this rank posted before it in other contexts. Results and errors as
  /// Exchange::dispatch.
  DispatchResult wait();

 private:
  friend class Exchange;

  explicit PendingDispatch(std::shared_ptr<engine::ExchangeCore> core) noexcept : core_(std::move(core)) {}

  std::shared_ptr<engine::ExchangeCore> core_;
};

/// A combine that was posted; see PendingDispatch.
class PendingCombine {
 public:
  PendingCombine() noexcept = default;
  PendingCombine(PendingCombine&& other) noexcept = default;
  PendingCombine& operator=(PendingCombine&& other) noexcept;
  ~PendingCombine();

  [[nodiscard]] bool is_valid() const noexcept { return core_ != nullptr; }

  CombineResult wait();

 private:
  friend class Exchange;

  explicit PendingCombine(std::shared_ptr<engine::ExchangeCore> core) noexcept : core_(std::move(core)) {}

  std::shared_ptr<engine::ExchangeCore> core_;
};

/// One shape of dispatch and combine over a group. Exchanges of one context (ExchangeConfig::context) share windows and
/// one sequence of calls.
///
/// Order:   dispatch, combine, warm_up, prepare and set_placement are collective, in the same order on all ranks.
/// Threads: one caller per rank at a time.
class Exchange {
 public:
  /// Checks the configuration. Error{invalid_argument} names field, value, limit and remedy. Nothing is allocated yet.
  Exchange(const Group& group, const ExchangeConfig& config);
  ~Exchange();
  Exchange(Exchange&&) noexcept;
  Exchange& operator=(Exchange&&) noexcept;

  /// Returns what `config` will need on each rank of a group of `num_ranks` that all map each other, before anything is
  /// allocated. A group with several nodes, or with peers that are not mapped, may need more: see bytes_needed() of an
  /// exchange.
  ///
  /// Errors:  Error{invalid_argument} names field, value, limit and remedy.
  static BytesNeeded bytes_needed(const ExchangeConfig& config, int num_ranks);

  /// Returns what this exchange needs on each rank of its group.
  [[nodiscard]] BytesNeeded bytes_needed() const;

  /// Agrees on the configuration with all ranks, allocates, maps and touches all memory. Does nothing the second time.
  ///
  /// Order:   collective; no result of this group may be held, and none of its posted calls may be open.
  /// Errors:  Error{invalid_argument} names each field that differs, with its value per rank;
  /// Error{resource_exhausted}.
  PrepareReport prepare();

  /// Runs a dispatch and a combine on zeros in each parity of the windows, so that the first real call costs what the
  /// thousandth costs. Prepares if needed, and resets stats().
  PrepareReport warm_up();

  /// Sends each token to the ranks that own its chosen experts and returns the rows that came here.
  ///
  /// Shape:   see DispatchInput, DispatchResult.
  /// Order:   collective. Takes one epoch of its context; finishes what this rank posted before it in others.
  /// Errors:  Error{invalid_argument} on every rank, naming the rank, argument, value and limit; the group stays whole.
  ///          Error{resource_exhausted} on every rank if a handle or the result memory is still held somewhere.
  ///          Error{timeout}, Error{peer_lost}: the group is then poisoned.
  /// Cost:    no allocation; one row per (token, rank) on the wire, between nodes one per (token, node) by gateways.
  DispatchResult dispatch(const DispatchInput& input);

  /// Starts a dispatch and returns: routing leaves, on the latency path the rows too. Inputs (and outputs given) stay
  /// as they are until wait(). A context (ExchangeConfig::context) holds one posted call; two batches that overlap use
  /// two.
  ///
  /// Order:   collective; contexts are posted in the same order on all ranks, and waited for in any.
  /// Errors:  Error{invalid_argument} here, on this rank only, if the context has a call in flight or the exchange is
  ///          not prepared: nothing was sent. What ends the group may show here or in wait(); all else in wait().
  [[nodiscard]] PendingDispatch post_dispatch(const DispatchInput& input);

  /// Brings the experts' rows home, weighted and summed in a fixed order; see docs/architecture.md for the order, to
  /// the bit.
  ///
  /// Order, Errors: as dispatch. May be called several times on one handle.
  CombineResult combine(const CombineInput& input);

  /// Starts a combine and returns; see post_dispatch. The handle given is kept until wait(). Rows leave in wait() on
  /// the throughput path, and where weights come with them.
  [[nodiscard]] PendingCombine post_combine(const CombineInput& input);

  /// Carries the gradient of combine's output to where the experts' rows were made: a dispatch on the same plan, then
  /// multiplied by the weights. Counts as a dispatch, and holds a result as one. Use an exchange whose dtype is that of
  /// combine, without a cast, scales or side tensors; another one of the group, maybe in another context, will do if
  /// its plans agree.
  ///
  /// Order:   collective. Each product is rounded once; dot products have a fixed order, see docs/guide/training.md.
  /// Errors:  as dispatch.
  CombineGradients combine_backward(const CombineGradInput& input);

  /// Brings the gradient of dispatched rows home: each row is added once, unweighted, in combine's order; the lane
  /// brings the gradient of the weights. Counts as a combine.
  ///
  /// Order:   collective.
  /// Errors:  as combine.
  DispatchGradients dispatch_backward(const DispatchGradInput& input);

  /// Moves experts to other seats, replicas included; from the next dispatch on. Handles of earlier dispatches can
  /// still be combined, but not dispatched again. `rule` picks replicas (empty: one on the own rank, else round robin
  /// over tokens); it is this rank's own.
  ///
  /// Order:   collective, between calls of a prepared exchange; config.seats_per_rank > 0.
  /// Errors:  Error{invalid_argument} names the entry, or the ranks that differ; the placement then stays as it was.
  void set_placement(const Placement& placement, ReplicaRule rule = {});

  [[nodiscard]] const ExchangeConfig& config() const noexcept;
  [[nodiscard]] int num_local_experts() const noexcept;   ///< with seats_per_rank: seats
  [[nodiscard]] int first_local_expert() const noexcept;  ///< with seats_per_rank: first seat, through all ranks

  /// Returns the most rows a result can have here (expert_padded: rows per expert).
  [[nodiscard]] std::int64_t capacity_rows() const noexcept;

  [[nodiscard]] ExchangeStats stats() const;
  void reset_stats() noexcept;

 private:
  std::shared_ptr<engine::ExchangeCore> core_;
};

}  // namespace moebus
