// Inputs: what every rank hands to dispatch, all ranks side by side, and who owns which expert.
// Room: oracle · host.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "moebus/config.hpp"
#include "moebus/types.hpp"

namespace moebus::oracle {

/// What one rank hands to dispatch; rows contiguous, row-major, in the order and element types of
/// moebus::DispatchInput.
struct RankInput {
  std::int64_t num_tokens = 0;
  std::vector<std::byte> tokens;  ///< [T, hidden] of config.dtype
  std::vector<std::byte> scales;  ///< [T, scale_row_bytes]; empty if the config has none or casts
  std::array<std::vector<std::byte>, kMaxSideTensors> side;  ///< [T, side_bytes]
  std::vector<std::int64_t> topk_idx;                        ///< [T, K], -1 = no expert
  std::vector<float> topk_weights;                           ///< [T, K]; empty unless has_weights
  bool has_weights = false;                                  ///< the same on all ranks
};

/// Index = rank. Shared, so that expectations can refer to rows instead of copying them.
using SharedInputs = std::shared_ptr<const std::vector<RankInput>>;

/// Contiguous blocks of experts in rank order; the first (num_experts mod num_ranks) ranks own one more.
[[nodiscard]] int num_local_experts(int num_experts, int num_ranks, int rank) noexcept;
[[nodiscard]] int first_local_expert(int num_experts, int num_ranks, int rank) noexcept;
[[nodiscard]] int owner_of(int num_experts, int num_ranks, int expert) noexcept;

/// Bytes of one row, as given to dispatch and as received.
[[nodiscard]] std::size_t given_row_bytes(const ExchangeConfig& config) noexcept;
[[nodiscard]] std::size_t received_row_bytes(const ExchangeConfig& config) noexcept;

/// Element type of received rows: e4m3 after a cast, else config.dtype.
[[nodiscard]] DType received_dtype(const ExchangeConfig& config) noexcept;

/// Columns of a combined row.
[[nodiscard]] int combine_columns(const ExchangeConfig& config) noexcept;

/// Throws Error{invalid_argument} unless sizes, ids and flags of all ranks fit `config`; the oracle computes nothing
/// from wrong inputs.
void check_inputs(const ExchangeConfig& config, const std::vector<RankInput>& inputs);

}  // namespace moebus::oracle
