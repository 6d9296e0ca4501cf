// Input and output: what a rank hands to dispatch and combine, and what it gets back.
// Room: public vocabulary · host.

#pragma once

#include <array>
#include <cstdint>

#include "moebus/tensor.hpp"
#include "moebus/types.hpp"

namespace moebus {

namespace engine {
class ExchangeCore;
struct HandleSlot;
struct ResultHold;
}  // namespace engine

/// Keeps the plan of one dispatch: its routing, weights and positions, so that combine (any number of times) can bring
/// rows back, and dispatch can send others the same way. Copies share it; the last returns its storage to the
/// exchange's pool (`max_handles`). May outlive the Exchange. Exchanges of one group whose plans agree (experts, top-k,
/// tokens, layout, alignment, capacity, seats, combine_rows, inter_node) can use each other's handles: hidden, types,
/// path and context may differ. To dispatch again, the placement must be that of the handle too, and direct delivery
/// needs a handle of direct delivery.
class DispatchHandle {
 public:
  DispatchHandle() noexcept = default;
  DispatchHandle(const DispatchHandle& other) noexcept;
  DispatchHandle(DispatchHandle&& other) noexcept;
  DispatchHandle& operator=(DispatchHandle other) noexcept;
  ~DispatchHandle();

  [[nodiscard]] bool is_valid() const noexcept { return slot_ != nullptr; }

 private:
  friend class engine::ExchangeCore;

  explicit DispatchHandle(engine::HandleSlot* slot) noexcept : slot_(slot) {}

  engine::HandleSlot* slot_ = nullptr;
};

/// Keeps result memory of the library from being used again; ends with reset() or its life.
class ResultLease {
 public:
  ResultLease() noexcept = default;
  ResultLease(ResultLease&& other) noexcept;
  ResultLease& operator=(ResultLease&& other) noexcept;
  ~ResultLease();

  void reset() noexcept;

 private:
  friend class engine::ExchangeCore;

  explicit ResultLease(engine::ResultHold* hold) noexcept : hold_(hold) {}

  engine::ResultHold* hold_ = nullptr;
};

/// Tensors of the caller that receive a dispatch; what is not given comes from the library's memory.
struct DispatchOutput {
  TensorView tokens;  ///< [capacity rows, hidden], or [experts, capacity, hidden] for expert_padded
  TensorView scales;  ///< [.., ceil(hidden/128)] f32, or i32 words of four UE8M0 bytes
  std::array<TensorView, kMaxSideTensors> side;  ///< [.., side_bytes] u8
};

/// What one rank hands to dispatch. K = num_topk, T = this rank's tokens (may be 0, data pointers may then be null).
struct DispatchInput {
  ConstTensorView tokens;        ///< [T, hidden] of config dtype; rows contiguous, any row stride
  ConstTensorView topk_idx;      ///< [T, K] i32 or i64, contiguous; -1 = no expert in this slot
  ConstTensorView topk_weights;  ///< [T, K] f32, contiguous; optional
  ConstTensorView
      scales;  ///< [T, blocks] f32 or [T, ceil(blocks/4)] i32 (ue8m0); when the config has scales and no cast
  std::array<ConstTensorView, kMaxSideTensors> side;  ///< [T, side_bytes] u8
  /// Cached dispatch: rows go the way of that dispatch; topk_idx and topk_weights stay empty, T is what it was. Every
  /// rank gives a handle, or none does.
  DispatchHandle handle;
  DispatchOutput output;
};

/// What dispatch received. Row views are valid until release(); tables and counts while the handle lives.
class DispatchResult {
 public:
  DispatchResult() noexcept = default;
  DispatchResult(DispatchResult&&) noexcept = default;
  DispatchResult& operator=(DispatchResult&&) noexcept = default;
  DispatchResult(const DispatchResult&) = delete;
  DispatchResult& operator=(const DispatchResult&) = delete;

  /// rank_major [M, hidden]; expert_major [M, hidden], expert e in rows [offsets[e], offsets[e] + counts[e]);
  /// expert_padded [local experts, capacity, hidden], expert e in rows [0, counts[e]). Order: (source rank, source
  /// token).
  TensorView tokens;
  TensorView scales;  ///< as `tokens`, last dimension the scale blocks (f32) or packed words (i32)
  std::array<TensorView, kMaxSideTensors> side;  ///< as `tokens`, last dimension side_bytes

  std::int64_t num_rows = 0;  ///< M: rows of `tokens`, padding of expert_major included; expert_padded: sum of counts
  std::int64_t num_overflowed = 0;  ///< rows dropped because of the capacity

  ConstTensorView topk_idx;  ///< rank_major: [M, K] i32 local expert (with seats_per_rank: seat of this rank), -1
                             ///< elsewhere; expert layouts: not given
  ConstTensorView
      topk_weights;  ///< rank_major: [M, K] f32, +0 where topk_idx is -1; expert layouts: one f32 per row (its choices
                     ///< added in top-k order), +0 in padding; given if weights were dispatched
  ConstTensorView
      src_rank;  ///< per row, i32, -1 in padding (expert_padded: undefined past counts, as topk_weights there)
  ConstTensorView src_token;  ///< as src_rank
  ConstTensorView
      counts;  ///< [local experts] i32: rows kept per expert (a token that chose an expert twice is one row)
  ConstTensorView wanted;   ///< [local experts] i32: rows that would be there without a capacity
  ConstTensorView offsets;  ///< [local experts + 1] i64: first row of each group (expert_major), in rows
  ConstTensorView
      rank_counts;  ///< [ranks] i32: tokens from each source rank that have an expert here (before any drop)

  DispatchHandle handle;

  /// Gives the row memory back (tokens, scales, side). The destructor does the same.
  void release() noexcept { lease_.reset(); }

 private:
  friend class engine::ExchangeCore;
  ResultLease lease_;
};

/// What one rank hands to combine.
struct CombineInput {
  /// Experts' results, laid out as DispatchResult::tokens was. rank_major rows are already weighted and summed over the
  /// local experts.
  ConstTensorView rows;
  DispatchHandle handle;
  Weighting weighting = Weighting::none;  ///< expert layouts only; rank_major rows are never multiplied
  ConstTensorView topk_weights;           ///< [T, K] f32 of this rank's own tokens, with Weighting::given
  std::array<ConstTensorView, 2> bias;    ///< [T, hidden] of combine dtype each, optional
  ConstTensorView lane;                   ///< [rows of the layout, K] f32, optional; needs config.combine_lane
  TensorView output;                      ///< [T, hidden] of combine dtype; library memory when not given
};

/// What combine brought home. Views in library memory are valid until the next combine in the context.
struct CombineResult {
  TensorView tokens;     ///< [T, hidden]
  ConstTensorView lane;  ///< [T, K] f32: lane[n, k] from the owner of choice k, else +0
  ConstTensorView
      missing;  ///< [T] i64 bit masks: choice k was dropped for lack of capacity; given if the config can overflow
  std::int64_t num_incomplete = 0;  ///< tokens with a bit in `missing`
};

/// What one rank hands to combine_backward.
struct CombineGradInput {
  ConstTensorView grad_tokens{};  ///< [T, hidden] gradient of CombineResult::tokens; rows contiguous, any row stride
  DispatchHandle handle{};        ///< the one that combine was given
  Weighting weighting = Weighting::none;  ///< as combine was given it; `given` is refused: give weights to dispatch
  /// CombineInput::rows of that combine, for the gradient of the weights. Optional; expert layouts with
  /// config.combine_lane.
  ConstTensorView rows{};
  TensorView grad_rows{};  ///< receives the gradient, as DispatchOutput::tokens would; library memory when not given
  TensorView lane{};       ///< [rows of the layout, K] f32, receives the lane; library memory when not given
};

/// Gradient of what a rank handed to combine. grad_rows is valid until release(), the lane until the exchange's next
/// combine_backward.
class CombineGradients {
 public:
  /// Laid out as DispatchResult::tokens. Expert layouts with Weighting::dispatched: round(w * gradient of the token), w
  /// as DispatchResult::topk_weights. Padding is undefined unless config.zero_padding.
  TensorView grad_rows;
  std::int64_t num_rows = 0;  ///< as DispatchResult::num_rows
  /// Given if `rows` were: [rows of the layout, K] f32, <gradient of the token, row of the expert> for each choice that
  /// sits in this row, +0 elsewhere. What DispatchGradInput::lane wants.
  ConstTensorView lane;

  /// Gives the row memory back. The destructor does the same.
  void release() noexcept { lease_.reset(); }

 private:
  friend class engine::ExchangeCore;
  ResultLease lease_;
};

/// What one rank hands to dispatch_backward.
struct DispatchGradInput {
  ConstTensorView grad_rows{};  ///< gradient of DispatchResult::tokens, laid out as they were, in combine dtype
  DispatchHandle handle{};      ///< of that dispatch
  ConstTensorView lane{};    ///< CombineGradients::lane; rank_major: the caller's own, as CombineInput::lane. Optional
  TensorView grad_tokens{};  ///< [T, hidden] of combine dtype, receives the gradient; library memory when not given
};

/// Gradients of what a rank handed to dispatch. Views in library memory are valid until the next combine (or
/// dispatch_backward) in the context.
struct DispatchGradients {
  TensorView grad_tokens;        ///< [T, hidden]
  ConstTensorView grad_weights;  ///< [T, K] f32 gradient of topk_weights, +0 where nothing came back; with a lane
};

}  // namespace moebus
