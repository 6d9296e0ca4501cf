// Compare: finds the first place where a result is not what the oracle expects, and says it so that a person can act.
// Room: oracle · host.

#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "moebus/tensor.hpp"
#include "oracle/combine.hpp"
#include "oracle/dispatch.hpp"

namespace moebus::oracle {

/// The first difference between expectation and result. Fields that make no sense for it are -1.
struct Difference {
  std::string field;      ///< member of the result, e.g. "tokens"
  int rank = -1;          ///< rank that holds the wrong result
  std::int64_t row = -1;  ///< row of the result (dispatch), own token (combine), or index of a table
  int src_rank = -1;      ///< where the expected row comes from
  std::int64_t src_token = -1;
  std::int64_t column = -1;
  std::string expected;
  std::string seen;
  const std::byte* seen_row =
      nullptr;  ///< the wrong row in the result, if contiguous: for decoding where its data came from

  /// Returns one line: "tokens on rank 1, row 17 (source rank 0, token 5), column 12: expected 0x3f80 (1), seen 0x0
  /// (0)".
  [[nodiscard]] std::string text() const;
};

/// The members of moebus::DispatchResult as views, so that this room needs no verb header.
struct DispatchSeen {
  ConstTensorView tokens;
  ConstTensorView scales;
  std::array<ConstTensorView, kMaxSideTensors> side;
  std::int64_t num_rows = 0;
  std::int64_t num_overflowed = 0;
  ConstTensorView topk_idx;
  ConstTensorView topk_weights;
  ConstTensorView src_rank;
  ConstTensorView src_token;
  ConstTensorView counts;
  ConstTensorView wanted;
  ConstTensorView offsets;
  ConstTensorView rank_counts;
};

/// The members of moebus::CombineResult.
struct CombineSeen {
  ConstTensorView tokens;
  ConstTensorView lane;
  ConstTensorView missing;
  std::int64_t num_incomplete = 0;
};

/// Returns the views of a moebus::DispatchResult.
template <class Result>
[[nodiscard]] DispatchSeen dispatch_seen(const Result& result) {
  return {result.tokens,
          result.scales,
          {result.side[0], result.side[1]},
          result.num_rows,
          result.num_overflowed,
          result.topk_idx,
          result.topk_weights,
          result.src_rank,
          result.src_token,
          result.counts,
          result.wanted,
          result.offsets,
          result.rank_counts};
}

/// Returns the views of a moebus::CombineResult.
template <class Result>
[[nodiscard]] CombineSeen combine_seen(const Result& result) {
  return {result.tokens, result.lane, result.missing, result.num_incomplete};
}

/// Returns the first difference, or nothing if every byte, table and count is as expected. Strides are honoured; with
/// config.zero_padding the padding must be zero, else it is not looked at.
[[nodiscard]] std::optional<Difference> compare(const DispatchExpectation& expected, const DispatchSeen& seen);

/// The same for combine. `lane` is looked at if one is expected; `missing` must be given if a bit is expected in it.
[[nodiscard]] std::optional<Difference> compare(const CombineExpectation& expected, const CombineSeen& seen);

}  // namespace moebus::oracle
