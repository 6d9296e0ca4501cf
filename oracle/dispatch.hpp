// Dispatch, the obvious way: for each destination walk over all tokens of all ranks and write down what must arrive
// where. Room: oracle · host.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "moebus/config.hpp"
#include "oracle/group_shape.hpp"
#include "oracle/inputs.hpp"
#include "oracle/seats.hpp"

namespace moebus::oracle {

/// One row that must be in a dispatch result. Its bytes are those of token (src_rank, src_token) as it travels.
struct ReceivedRow {
  std::int64_t position = 0;  ///< row of the result; expert_padded: local expert * capacity + index
  int local_expert = -1;      ///< the row's expert (its seat on the rank) in expert layouts, -1 in rank_major
  int src_rank = 0;
  std::int64_t src_token = 0;
  float weight = 0;  ///< expert layouts: this token's weights for this expert, added in top-k order
};

/// Everything that moebus::DispatchResult must say on one rank; "local experts" are the seats of the rank, empty ones
/// included. `rows` has kept rows only, ordered by position, which
/// is (src_rank, src_token) or (local expert, src_rank, src_token); every other row of the result is padding.
struct DispatchExpectation {
  ExchangeConfig config;
  int num_ranks = 0;
  int rank = 0;  ///< the destination
  bool has_weights = false;
  SharedInputs sent;  ///< rows as they travel: after the cast, scales filled in
  GroupShape group;
  std::shared_ptr<const SeatChoices> choices;  ///< where each choice of each token goes; the same for all ranks

  std::vector<ReceivedRow> rows;
  std::vector<std::int32_t> topk_idx;  ///< rank_major: [rows, K] local experts, -1 elsewhere
  std::vector<float> topk_weights;     ///< rank_major with weights: [rows, K], +0 where topk_idx is -1

  std::vector<std::int32_t> counts;       ///< [local experts] rows kept; rank_major: kept rows that list the expert
  std::vector<std::int32_t> wanted;       ///< [local experts] rows without a capacity
  std::vector<std::int64_t> offsets;      ///< [local experts + 1] from wanted counts; expert_major only, else empty
  std::vector<std::int32_t> rank_counts;  ///< [ranks] tokens from each rank with an expert here, before any drop
  std::int64_t num_rows = 0;
  std::int64_t num_overflowed = 0;

  /// Bytes of a row as it must arrive.
  [[nodiscard]] std::span<const std::byte> token_bytes(const ReceivedRow& row) const;
  [[nodiscard]] std::span<const std::byte> scale_bytes(const ReceivedRow& row) const;
  [[nodiscard]] std::span<const std::byte> side_bytes(const ReceivedRow& row, int side_idx) const;

  /// Returns the kept row of a token (in expert layouts: for a local expert), or null if it was dropped or never came.
  [[nodiscard]] const ReceivedRow* find(int local_expert, int src_rank, std::int64_t src_token) const;
};

/// Returns what each rank must receive; index = destination rank. Without a cast `inputs` is shared, not copied. The
/// group and its nodes change nothing here; they are kept for combine. `placement` and `rule`: see seats_of and
/// choose_seats.
///
/// Errors: Error{invalid_argument} if inputs, group or placement do not fit the configuration.
[[nodiscard]] std::vector<DispatchExpectation> dispatch(const ExchangeConfig& config,
                                                        const SharedInputs& inputs,
                                                        const GroupShape& group,
                                                        const Placement& placement = {},
                                                        const ReplicaRule& rule = {});

/// The same on one node, with one level.
[[nodiscard]] std::vector<DispatchExpectation> dispatch(const ExchangeConfig& config, const SharedInputs& inputs);

/// The same for inputs that are not shared (copies them).
[[nodiscard]] std::vector<DispatchExpectation> dispatch(const ExchangeConfig& config,
                                                        const std::vector<RankInput>& inputs);

/// Returns the inputs as they travel: cast, if the configuration says so, with the scales that the cast makes.
[[nodiscard]] SharedInputs as_sent(const ExchangeConfig& config, const SharedInputs& inputs);

/// Returns rows of the result (expert_padded: rows per expert) before anything is dropped; the largest int64 where
/// nothing ever is.
[[nodiscard]] std::int64_t capacity_of(const ExchangeConfig& config, int num_ranks) noexcept;

}  // namespace moebus::oracle
