// Moe: small stand-ins for experts, f_e(x) = (e + 1) x, so that a combine has something to bring home and everybody can
// recompute it. Room: workload · host.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "moebus/config.hpp"
#include "moebus/tensor.hpp"

namespace moebus::workload {

/// Computes (expert + 1) x of one received row: output column c from input column c mod hidden, one rounding.
///
/// Shape:  token: one row in received form; scales: its f32 scales or packed UE8M0 words in column order, empty if
/// there are none;
///         output: combine columns of config.combine_dtype.
/// Rules:  e4m3 rows are multiplied by their scale, integers are taken as numbers, e5m2 as its value; NaN comes out
/// canonical.
void apply_expert(const ExchangeConfig& config,
                  int expert,
                  std::span<const std::byte> token,
                  std::span<const std::byte> scales,
                  std::span<std::byte> output);

/// Computes what a rank_major row's owner hands to combine: its local experts' outputs (each rounded to combine_dtype)
/// in top-k order, acc = fma(w, y, acc), or acc + y without weights; one rounding.
///
/// Shape:  local_idx [K] local experts, -1 = none here; weights [K] or empty.
void apply_local_experts(const ExchangeConfig& config,
                         int first_expert,
                         std::span<const std::int32_t> local_idx,
                         std::span<const float> weights,
                         std::span<const std::byte> token,
                         std::span<const std::byte> scales,
                         std::span<std::byte> output);

/// The parts of a moebus::DispatchResult that experts look at.
struct ReceivedView {
  ConstTensorView tokens;
  ConstTensorView scales;
  ConstTensorView topk_idx;      ///< rank_major
  ConstTensorView topk_weights;  ///< rank_major; not given = unweighted
  ConstTensorView counts;        ///< expert layouts
  ConstTensorView offsets;       ///< expert_major
};

/// Returns the views of a moebus::DispatchResult.
template <class Result>
[[nodiscard]] ReceivedView received_view(const Result& result) {
  return {result.tokens, result.scales, result.topk_idx, result.topk_weights, result.counts, result.offsets};
}

/// Runs all local experts over a dispatch result and writes rows for combine. Padding rows of `output` are left as they
/// are.
///
/// Shape:  output: rows of the layout (rank_major, expert_major: [M, ..]; expert_padded: [local experts * capacity,
/// ..]) of
///         combine columns, contiguous.
void run_experts(const ExchangeConfig& config,
                 int first_expert,
                 const ReceivedView& received,
                 std::span<std::byte> output);

}  // namespace moebus::workload
