// ExchangeCore: one rank's side of an exchange: which step of dispatch and combine comes when.
// Room: engine · host.
// Source: [ours] design 4.2 (paths), 4.5 (epochs, refusals), 4.6 (combine).

#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <span>

#include "backend/backend.hpp"
#include "base/local_memory.hpp"
#include "engine/group_core.hpp"
#include "engine/handles.hpp"
#include "model/combine_plan.hpp"
#include "model/layout.hpp"
#include "model/receive_plan.hpp"
#include "model/send_plan.hpp"
#include "model/shape.hpp"
#include "moebus/io.hpp"
#include "moebus/stats.hpp"

namespace moebus::engine {

/// Arrays that steps fill and use within one call.
struct Scratch {
  std::span<model::RowMove> moves;     // most moves of one step
  std::span<std::int32_t> marks;       // [num_experts]
  std::span<std::int32_t> own_counts;  // [ranks + num_experts]
  model::RegionPlan region;            // direct delivery
  std::span<std::byte> cast_rows;      // [kSendBlock] slots (direct delivery with cast)
  model::SumTerms terms;               // of kSumBlock outputs
  std::span<float> lane;               // [max tokens, K] result of combine
  std::span<std::uint64_t> missing;    // [max tokens] result of combine

  void carve(base::Carver& carver, const model::Shape& shape) noexcept;
};

/// The counters that one call adds to.
struct CallPart {
  CallStats& call;
  std::array<PeerStats, kMaxRanks>& peers;
};

/// Tokens that one block of a send covers: their rows stay in the second-level cache while they go to several ranks.
inline constexpr std::int64_t kSendBlock = 32;

/// Outputs that one block of a sum covers: bounds the lists of addresses.
inline constexpr std::int64_t kSumBlock = 128;

class ExchangeCore {
 public:
  /// Error{invalid_argument} for a wrong configuration.
  ExchangeCore(std::shared_ptr<GroupCore> group, const ExchangeConfig& config);

  /// Error{invalid_argument} for a wrong configuration.
  static BytesNeeded bytes_needed(const ExchangeConfig& config, int num_ranks);

  PrepareReport prepare();
  PrepareReport warm_up();
  DispatchResult dispatch(const DispatchInput& input);
  CombineResult combine(const CombineInput& input);

  [[nodiscard]] const model::Shape& shape() const noexcept { return shape_; }

  [[nodiscard]] int rank() const noexcept { return group_->rank(); }

  [[nodiscard]] const ExchangeStats& stats() const noexcept { return stats_; }

  void reset_stats() noexcept;

 private:
  // Set-up.
  void agree();
  void allocate();
  void warm_up_once();

  // What both calls share.
  void check_prepared(std::string_view call) const;
  void announce(const Call& call, const Refusal* refusal);
  void finish(const Call& call);
  std::uint64_t wait_for(const Call& call, int peer, Awaited what, std::uint32_t count, CallPart& part);
  /// Waits until every rank has made the call. If one refused it (`own`, or a peer), carries the call to its end and
  /// throws.
  void wait_for_arrivals(const Call& call, CallPart& part, const Refusal* own);
  void wait_for_finishes(const Call& call, CallPart& part);
  [[nodiscard]] std::byte* parity(const Call& call, int peer) const noexcept;
  [[nodiscard]] std::byte* stage(int peer) const noexcept;
  [[nodiscard]] std::byte* region(int peer) const noexcept;
  [[nodiscard]] model::CallFacts& facts(const Call& call, int at_rank, int of_rank) const noexcept;
  [[nodiscard]] std::byte* table(const Call& call, int at_rank, int of_rank) const noexcept;
  [[nodiscard]] std::int32_t* counts(const Call& call, int at_rank, int of_rank) const noexcept;

  // Dispatch.
  struct DispatchState;
  std::optional<Refusal> check_dispatch(const DispatchInput& input, HandleSlot* slot, ResultHold*& hold);
  void choose_result_memory(DispatchState& state);
  void publish_tables(const Call& call, DispatchState& state);
  void plan_from_tables(const Call& call, DispatchState& state);
  [[nodiscard]] backend::RowArrays latency_slots(const Call& call, int at_rank, int of_rank) const noexcept;
  void dispatch_latency(const Call& call, DispatchState& state);
  /// True if every peer's table is there and nobody refused; never waits.
  bool has_everybody_arrived(const Call& call);
  /// Sends the rows of tokens [first, last); `next` counts what each destination's list has behind it.
  void send_latency_block(const Call& call,
                          DispatchState& state,
                          std::int64_t first,
                          std::int64_t last,
                          std::array<std::size_t, kMaxRanks>& next);
  void place_own_rows(const Call& call, DispatchState& state, model::RowRange rows);
  void dispatch_direct(const Call& call, DispatchState& state);
  void send_direct_rows(DispatchState& state);
  [[nodiscard]] backend::RowArrays dispatch_round_slots(int at_rank, int of_rank, std::int64_t round) const noexcept;
  void dispatch_staged(const Call& call, DispatchState& state);
  void send_staged_round(const Call& call, DispatchState& state, std::int64_t round);
  void take_staged_round(const Call& call, DispatchState& state, std::int64_t round);
  void fill_padding(DispatchState& state);
  DispatchResult make_result(DispatchState& state, HandleSlot* slot);
  void count_dispatch(const DispatchState& state);

  // Combine.
  struct CombineState;
  [[nodiscard]] std::optional<Refusal> check_combine(const CombineInput& input, const HandleSlot* slot) const;
  void lay_out(CombineState& state);
  void publish_weights(const Call& call, CombineState& state);
  void combine_latency(const Call& call, CombineState& state);
  [[nodiscard]] model::HomeSlots combine_round_slots(int home, std::int64_t round) const noexcept;
  void combine_throughput(const Call& call, CombineState& state);
  void push_round(const Call& call, CombineState& state, int home, std::int64_t round);
  void sum_round(const Call& call, CombineState& state, std::int64_t round);
  void push_rows(CombineState& state, int home, model::RowRange rows, const model::HomeSlots& slots);
  void sum_at_home(CombineState& state,
                   std::int64_t first_token,
                   std::int64_t last_token,
                   const model::HomeSlots& slots);
  CombineResult make_result(CombineState& state);
  void count_combine(const CombineState& state);

  std::shared_ptr<GroupCore> group_;
  model::Shape shape_;
  model::WindowLayout layout_;
  model::ResultLayout result_layout_;
  std::shared_ptr<HandlePool> handles_;
  base::LocalMemory scratch_memory_;
  Scratch scratch_;
  bool is_prepared_ = false;
  PrepareReport report_;
  ExchangeStats stats_;
};

}  // namespace moebus::engine
