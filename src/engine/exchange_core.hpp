// ExchangeCore: one rank's side of an exchange: which step of dispatch and combine comes when.
// Room: engine · host.
// Source: [ours] design 4.2 (paths), 4.5 (epochs, refusals), 4.6 (combine), 4.7 (gateways), 4.8 (post and wait).

#pragma once

#include <memory>
#include <optional>
#include <span>

#include "backend/backend.hpp"
#include "base/local_memory.hpp"
#include "engine/context.hpp"
#include "engine/flows.hpp"
#include "engine/handles.hpp"
#include "engine/peers.hpp"
#include "model/combine_plan.hpp"
#include "model/gradient_plan.hpp"
#include "model/layout.hpp"
#include "model/receive_plan.hpp"
#include "model/send_plan.hpp"
#include "model/shape.hpp"
#include "moebus/io.hpp"
#include "moebus/placement.hpp"
#include "moebus/stats.hpp"

namespace moebus::engine {

/// Arrays that steps fill and use; each is used within one step, or from post to wait of one call.
struct Scratch {
  std::span<model::RowMove> moves;      // most moves of one step
  std::span<std::int32_t> marks;        // [num_seats]
  std::span<std::int32_t> own_counts;   // [ranks + num_seats]
  std::span<std::byte> cast_rows;       // [kSendBlock] slots (direct delivery with cast)
  std::span<std::byte> tables;          // [peers that are not mapped] tables of this call
  std::span<std::int32_t> slots;        // of the rows that one block of a combine sends
  std::span<std::uint8_t> has_payload;  // the same
  model::SumTerms terms;                // of kSumBlock tokens
  std::span<std::byte> partial_rows;    // partial sums of kSumBlock tokens (levels 2)
  std::span<float> lane;                // [max tokens, K] result of combine
  std::span<std::uint64_t> missing;     // [max tokens] result of combine
  model::GradientRows gradients;        // of kGradientBlock wire rows (expert layouts)
  std::span<float> gradient_lane;       // [result rows, K] result of combine_backward

  void carve(base::Carver& carver, const model::Shape& shape) noexcept;
};

/// Tokens that one block of a send covers: their rows stay in the second-level cache while they go to several ranks.
inline constexpr std::int64_t kSendBlock = 32;

/// Outputs that one block of a sum covers: bounds the lists of addresses.
inline constexpr std::int64_t kSumBlock = 128;

/// Wire rows that one block of combine_backward covers: their gradients stay in the second-level cache from the dot
/// products to the multiplication.
inline constexpr std::int32_t kGradientBlock = 8;

/// Marks the digest of calls that carry gradients: they do not match a dispatch or a combine.
inline constexpr std::uint64_t kGradientMark = 0xA5A5A5A55A5A5A5AULL;

using PeerTable = std::array<PeerStats, kMaxRanks>;

/// Slots of dispatched rows, `num` of them, in a peer's window (or where Context::window says that they would lie).
struct SlotArray {
  std::byte* data = nullptr;
  std::int64_t num = 0;
};

class ExchangeCore {
 public:
  /// Error{invalid_argument} for a wrong configuration.
  ExchangeCore(std::shared_ptr<GroupCore> group, const ExchangeConfig& config);
  ~ExchangeCore();
  ExchangeCore(const ExchangeCore&) = delete;
  ExchangeCore& operator=(const ExchangeCore&) = delete;

  /// Error{invalid_argument} for a wrong configuration.
  static BytesNeeded bytes_needed(const ExchangeConfig& config, const model::GroupFacts& group);

  PrepareReport prepare();
  PrepareReport warm_up();
  void set_placement(const Placement& placement, ReplicaRule rule);

  DispatchResult dispatch(const DispatchInput& input);
  CombineResult combine(const CombineInput& input);
  CombineGradients combine_backward(const CombineGradInput& input);
  DispatchGradients dispatch_backward(const DispatchGradInput& input);
  void post_dispatch(const DispatchInput& input);
  void post_combine(const CombineInput& input);
  DispatchResult wait_dispatch();
  CombineResult wait_combine();
  /// Carries a posted call to its end and drops its result.
  void abandon_dispatch() noexcept;
  void abandon_combine() noexcept;

  [[nodiscard]] const model::Shape& shape() const noexcept { return shape_; }

  [[nodiscard]] int rank() const noexcept { return group_->rank(); }

  [[nodiscard]] const model::GroupFacts& group_facts() const noexcept { return group_->facts(); }

  [[nodiscard]] const ExchangeStats& stats() const noexcept { return stats_; }

  void reset_stats() noexcept;

 private:
  // Set-up.
  void agree();
  void allocate();
  void warm_up_once();

  // --- What both calls share (exchange_core.cpp) ---
  void check_prepared(std::string_view call) const;
  void check_free(std::string_view call) const;
  void announce(const Call& call, const Refusal* refusal);
  /// Stands still until the word is there, and notes the time for its writer.
  void wait_for(const Call& call, const sync::WordName& word, std::uint32_t count, CallStats& stats, PeerTable& peers);
  /// The same until `is_ready`; trouble is looked for at `word`.
  template <class Ready>
  void wait_until(const Call& call, const Blocker& word, CallStats& stats, PeerTable& peers, const Ready& is_ready);
  /// Makes a call known to its context and group and begins it; what `begin` throws is for wait().
  template <class Begin>
  void post(OpenCall& call, const Begin& begin);
  /// Completes a posted call.
  void complete(OpenCall& call) noexcept;
  /// Waits until every rank has made the call. If one refused it (`own`, or a peer), throws.
  void wait_for_arrivals(const Call& call, CallStats& stats, PeerTable& peers, const Refusal* own);
  /// True if the peer's rows of a latency call, and its word that they are finished, come here without a stop.
  [[nodiscard]] bool sends_here(const Call& call, int peer) const noexcept;
  /// True if rows of `src` for `dst` do not stop on the way, or `dst` is where they stop.
  [[nodiscard]] bool are_linked(int src, int dst) const noexcept;
  template <class Function>
  void for_each_linked(const Function& function) const;
  template <class Function>
  void for_each_neighbour(const Function& function) const;
  /// True if the handle's plan is one of this exchange's, or of one whose plans agree with it.
  [[nodiscard]] bool fits(const HandleSlot& slot) const noexcept;
  /// The word in which this rank hears of a source's dispatch.
  [[nodiscard]] sync::WordName heard(int src, sync::Field field) const noexcept;
  [[nodiscard]] std::byte* parity(const Call& call, int peer) const noexcept;
  [[nodiscard]] std::byte* stage(int peer) const noexcept;
  [[nodiscard]] std::byte* region(int peer) const noexcept;
  [[nodiscard]] std::byte* facts(const Call& call, int at_rank, int of_rank) const noexcept;
  [[nodiscard]] std::byte* table(const Call& call, int at_rank, int of_rank) const noexcept;
  [[nodiscard]] std::byte* counts(const Call& call, int at_rank, int of_rank) const noexcept;
  [[nodiscard]] model::CallFacts facts_of(const Call& call, int src) const noexcept;
  /// Copies dispatched rows into slots at a peer, mapped or not.
  void write_rows(int peer,
                  const backend::ConstRowArrays& source,
                  const SlotArray& slots,
                  std::span<const model::RowMove> moves,
                  bool is_cast,
                  backend::Stores stores);
  void put_rows(int peer,
                const backend::ConstRowArrays& source,
                const SlotArray& slots,
                std::span<const model::RowMove> moves,
                bool is_cast);

  // --- Dispatch (dispatch.cpp, dispatch_paths.cpp, dispatch_rounds.cpp) ---
  struct DispatchState;
  class DispatchCall;
  /// `gradient` is what this dispatch is made for, or null.
  void start_dispatch(const DispatchInput& input, const CombineGradInput* gradient);
  void end_dispatch_call() noexcept;
  std::optional<Refusal> check_dispatch(DispatchState& state);
  std::optional<Refusal> take_routing(DispatchState& state) const;
  std::optional<Refusal> check_cached(const DispatchState& state) const;
  void choose_result_memory(DispatchState& state);
  void begin_dispatch(DispatchState& state);
  DispatchResult end_dispatch(DispatchState& state);
  void publish_tables(DispatchState& state);
  void write_own_tables(DispatchState& state);
  void relay_tables(DispatchState& state);
  void wait_for_relayed_tables(DispatchState& state);
  void plan_from_tables(DispatchState& state);
  [[nodiscard]] SlotArray latency_slots(const Call& call, int at_rank, int of_rank) const noexcept;
  void send_latency_rows(DispatchState& state);
  void take_latency_rows(DispatchState& state);
  void relay_latency_rows(DispatchState& state);
  bool has_everybody_arrived(const Call& call);
  void send_latency_block(DispatchState& state, std::int64_t first, std::int64_t last);
  void place_own_rows(DispatchState& state, model::RowRange rows);
  void finish_to_links(const Call& call);
  void dispatch_throughput(DispatchState& state);
  void plan_straight_rows(DispatchState& state);
  void send_straight_rows(DispatchState& state);
  void take_straight_rows(DispatchState& state);
  [[nodiscard]] SlotArray round_slots(int at_rank, int of_rank, std::int64_t round) const noexcept;
  void run_dispatch_rounds(DispatchState& state);
  [[nodiscard]] std::optional<Blocker> blocker_of_dispatch(const DispatchState& state, const Flow& flow) const;
  void step_dispatch(DispatchState& state, const Flow& flow);
  void send_round(DispatchState& state, int dst, std::int64_t round);
  void take_round(DispatchState& state, int src, std::int64_t round);
  void forward_round(DispatchState& state, int index, std::int64_t round);
  void fill_padding(DispatchState& state);
  DispatchResult make_result(DispatchState& state);
  void count_dispatch(const DispatchState& state);

  // --- Combine (combine.cpp, combine_paths.cpp) ---
  struct CombineState;
  class CombineCall;
  /// `gradient` is what this combine is made for, or null.
  void start_combine(const CombineInput& input, const DispatchGradInput* gradient);
  [[nodiscard]] std::optional<Refusal> check_combine(const CombineInput& input, const HandleSlot* slot) const;
  void end_combine_call() noexcept;
  void begin_combine(CombineState& state);
  CombineResult end_combine(CombineState& state);
  void lay_out(CombineState& state);
  void publish_weights(CombineState& state);
  /// True if combined rows between this rank and `peer` do not stop at a gateway.
  [[nodiscard]] bool is_straight(int peer) const noexcept;
  /// Rank that this rank's rows for tokens of `home` go to: the home, or its gateway here.
  [[nodiscard]] int target_of(int home) const noexcept;
  [[nodiscard]] model::HomeSlots latency_home_slots(const Call& call, int home) const noexcept;
  [[nodiscard]] model::HomeSlots latency_relay_slots(const Call& call, int gateway, int home) const noexcept;
  void push_latency_rows(CombineState& state);
  void end_latency(CombineState& state);
  [[nodiscard]] model::HomeSlots round_home_slots(int home, std::int64_t round) const noexcept;
  [[nodiscard]] model::HomeSlots round_relay_slots(int gateway, int home, std::int64_t round) const noexcept;
  void run_combine_rounds(CombineState& state);
  [[nodiscard]] std::optional<Blocker> blocker_of_combine(const CombineState& state, const Flow& flow) const;
  [[nodiscard]] std::optional<Blocker> blocker_of_sum(const CombineState& state, std::int64_t round) const;
  [[nodiscard]] std::optional<Blocker> blocker_of_relay(const CombineState& state, int index, std::int64_t round) const;
  /// True if rows for this home come from `peer` without a stop: summed there, or added up by it as a gateway.
  [[nodiscard]] bool are_partners(int peer) const noexcept;
  void step_combine(CombineState& state, const Flow& flow);
  void push_rows(CombineState& state, int home, model::RowRange rows, const model::HomeSlots& slots);
  /// A sum over the listed terms into the listed rows, unweighted.
  [[nodiscard]] backend::SumJob sum_job(std::int64_t num_outputs) const noexcept;
  void push_block(
      CombineState& state, int home, model::RowRange block, std::byte* data, std::span<const std::int32_t> at);
  void put_combined(int peer,
                    const model::HomeSlots& slots,
                    std::span<const std::int32_t> slot,
                    const std::uint8_t* has_payload,
                    const std::byte* rows);
  void relay_rows(CombineState& state,
                  int index,
                  model::RowRange rows,
                  const model::HomeSlots& relay_slots,
                  const model::HomeSlots& home_slots);
  void sum_at_home(CombineState& state,
                   std::int64_t first_token,
                   std::int64_t last_token,
                   const model::HomeSlots& slots);
  void sum_partials(CombineState& state,
                    std::int64_t first,
                    std::int64_t last,
                    const model::HomeSlots& slots,
                    const model::PartialSums& partial);
  CombineResult make_result(CombineState& state);
  void count_combine(const CombineState& state);

  // --- Backward (backward.cpp) ---
  [[nodiscard]] std::optional<Refusal> check_combine_backward(const CombineGradInput& input) const;
  [[nodiscard]] std::optional<Refusal> check_weight_gradients(const CombineGradInput& input,
                                                              const HandleSlot& slot) const;
  [[nodiscard]] std::optional<Refusal> check_dispatch_backward(const DispatchGradInput& input) const;
  void weigh_gradients(const CombineGradInput& input, const model::ReceivePlan& receive, CombineGradients& gradients);

  std::shared_ptr<GroupCore> group_;
  Context* context_ = nullptr;  ///< of the group; set by prepare
  model::Shape shape_;
  model::WindowLayout layout_;
  model::ResultLayout result_layout_;
  std::array<std::uint8_t, kMaxRanks>
      relay_index_{};  ///< [far home] its place among those that its gateway here serves
  ReplicaRule replica_rule_;
  std::uint64_t placement_digest_ = 0;
  std::shared_ptr<HandlePool> handles_;
  base::LocalMemory scratch_memory_;
  Scratch scratch_;
  std::unique_ptr<DispatchCall> dispatch_call_;
  std::unique_ptr<CombineCall> combine_call_;
  bool is_prepared_ = false;
  PrepareReport report_;
  ExchangeStats stats_;
};

template <class Ready>
void ExchangeCore::wait_until(
    const Call& call, const Blocker& word, CallStats& stats, PeerTable& peers, const Ready& is_ready) {
  const std::uint64_t waited = context_->wait_until(call, word.word, word.count, is_ready);
  stats.wait_ns += waited;
  peers[word.word.writer].wait_ns += waited;
}

template <class Begin>
void ExchangeCore::post(OpenCall& call, const Begin& begin) {
  context_->set_open_call(&call);
  group_->add_open_call(&call);
  try {
    begin();
  } catch (...) {
    call.fail(std::current_exception());
  }
}

template <class Function>
void ExchangeCore::for_each_linked(const Function& function) const {
  for_each_peer(rank(), shape_.num_ranks, [&](int peer) {
    if (are_linked(rank(), peer)) function(peer);
  });
}

template <class Function>
void ExchangeCore::for_each_neighbour(const Function& function) const {
  for (const int neighbour : shape_.topology.ranks_of(shape_.topology.node_of(rank()))) {
    if (neighbour != rank()) function(neighbour);
  }
}

}  // namespace moebus::engine
