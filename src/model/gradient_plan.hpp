// GradientPlan: which result rows carry which choices of a token, and by what their gradients are multiplied.
// Room: model · host+device arithmetic.
// Source: [ours] design 4.6: combine's backward is a cached dispatch, dispatch's an unweighted combine with a lane.

#pragma once

#include <cstdint>
#include <span>

#include "model/combine_plan.hpp"
#include "model/receive_plan.hpp"

namespace moebus::model {

/// The kept result rows of some wire rows, each once (expert layouts). Storage, and what list_gradient_rows fills in.
struct GradientRows {
  std::span<std::int32_t> row;       // [most rows]
  std::span<std::uint64_t> choices;  // [most rows] bit k: choice k of the token names this row's expert
  std::span<float> dot;              // [most rows] of gradient and expert's row; the backend's to fill
  std::span<std::int32_t> scaled;    // [most rows] rows whose gradient is multiplied
  std::span<float> factor;           // [most rows] by what
  std::size_t num = 0;
  std::size_t num_scaled = 0;

  void carve(base::Carver& carver, std::size_t most_rows) noexcept;
};

/// Owner, expert layouts: lists what wire rows [first, last) have in the result; at most (last - first) * K. Factors
/// are the dispatched weights of the row's choices, added in top-k order from +0; unweighted: how many choices there
/// are, rows with one are not multiplied.
void list_gradient_rows(
    const Shape& shape, const ReceivePlan& plan, RowRange rows, bool is_weighted, GradientRows& gradients) noexcept;

/// Returns rows that the lane of this rank's result has: padding included, and with expert_padded the whole tensor.
[[nodiscard]] std::int64_t lane_rows(const Shape& shape, const ReceivePlan& plan) noexcept;

/// Writes `dot` to the lane [lane_rows, K] of the listed rows at their choices, +0 at the others.
void write_gradient_lane(const Shape& shape, const GradientRows& gradients, float* lane) noexcept;

/// Takes terms out (null) that an output has already: a row that several choices name was one row on the way out, so
/// its gradient is added once.
void drop_repeated_terms(SumTerms& terms, std::int64_t num_outputs) noexcept;

}  // namespace moebus::model
