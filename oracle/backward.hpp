// Backward: the gradients of combine and of dispatch, in the order in which the library must form them.
// Room: oracle · host.

#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "oracle/combine.hpp"

namespace moebus::oracle {

/// The backward pass of one combine over all ranks.
struct CombineGradientRequest {
  std::vector<std::vector<std::byte>>
      grad_tokens;                        ///< [ranks] gradient of combine's output, as CombineExpectation::tokens
  ExpertRowSource expert_rows;            ///< what the forward combine was given; empty: no weights' gradient
  Weighting weighting = Weighting::none;  ///< of the forward combine
  std::vector<HomeInput> homes;           ///< of the forward combine; topk_weights with Weighting::given
};

/// What one owner gets. Rows stand where those of its dispatch result stand; rows of no token are +0.
struct CombineGradient {
  int rank = 0;                        ///< the owner
  std::vector<std::byte> grad_tokens;  ///< [positions, combine columns] of combine_dtype: the homes' rows, bit for bit
  std::vector<std::byte> grad_rows;    ///< the same shape: gradient of the rows that combine was given
  std::vector<float> grad_weights;     ///< expert layouts with expert_rows: [positions, K], the lane to send home
};

/// Returns the gradients of combine; index = owner.
///
/// grad_tokens: dispatch of the gradient on the same routing: one row per kept row of the result.
/// grad_rows:   weighted: fl(w * grad), rounded once to combine_dtype; w = the weights of all choices that the row
///              carries, added in top-k order from +0. Unweighted or rank_major: the row itself (named n times: n *
///              grad).
/// grad_weights: for each choice that the row carries ordered_dot(grad, y), a NaN being 0x7FC00000; +0 elsewhere.
/// Errors:      Error{invalid_argument} if the request does not fit.
[[nodiscard]] std::vector<CombineGradient> combine_gradient(const std::vector<DispatchExpectation>& dispatched,
                                                            const CombineGradientRequest& request);

/// Returns the gradients of dispatch; index = home: an unweighted combine of `grad_x`, the gradients of the rows that
/// dispatch delivered, in combine_dtype. Each row is added once, also if two choices of a token name it: it was one row
/// on the way out. `lane` (optional) brings the weights' gradient home.
[[nodiscard]] std::vector<CombineExpectation> dispatch_gradient(const std::vector<DispatchExpectation>& dispatched,
                                                                const ExpertRowSource& grad_x,
                                                                const LaneSource& lane = {});

/// Returns a lane that hands out CombineGradient::grad_weights; `gradients` must outlive it.
[[nodiscard]] LaneSource lane_of(const std::vector<CombineGradient>& gradients, int num_topk);

/// Returns the dot product of two rows in float32: 16 partial sums from +0, sum j over columns j, j + 16, j + 32, ...
/// by fma, ascending; then sum j += sum j + 8 for j < 8, the same with 4, 2 and 1.
[[nodiscard]] float ordered_dot(std::span<const float> a, std::span<const float> b) noexcept;

}  // namespace moebus::oracle
