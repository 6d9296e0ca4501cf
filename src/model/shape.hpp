// Shape: a configuration with everything that follows from it for a given number of ranks. Made once, then only read.
// Room: model · host+device arithmetic.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/placement.hpp"
#include "model/wire.hpp"
#include "moebus/config.hpp"

namespace moebus::model {

struct Shape {
  ExchangeConfig config;
  int num_ranks = 1;
  ExpertPlacement placement;
  std::vector<std::uint64_t> rank_bit;  ///< [num_experts + 1]: bit of the owner of expert e at e + 1; no bit for -1
  std::vector<std::uint8_t> owner;      ///< [num_experts + 1]: owner of expert e at e + 1; 0 for -1
  DispatchRowFormat dispatch_row;
  CombineRowFormat combine_row;
  int max_local_experts = 0;        ///< over ranks
  std::int64_t max_recv_rows = 0;   ///< most rows (token copies) a rank can receive: ranks x max tokens
  std::int64_t capacity_rows = 0;   ///< rows of the result (expert_padded: per expert)
  std::int64_t result_rows = 0;     ///< rows of result memory: capacity_rows, x max_local_experts for expert_padded
  int combine_slots_per_token = 0;  ///< slots a token has at home: min(ranks, K) rows, or K with per_expert
  bool can_overflow = false;
  std::uint64_t digest = 0;  ///< of the configuration and the number of ranks; equal on all ranks of a group
};

/// Returns what is wrong with a configuration (field, value, limit, remedy), or nothing.
[[nodiscard]] std::optional<std::string> find_config_error(const ExchangeConfig& config, int num_ranks);

/// Derives the shape; `config` must be free of errors.
[[nodiscard]] Shape make_shape(const ExchangeConfig& config, int num_ranks);

/// Returns "name=value" lines of every field, for comparison over ranks.
[[nodiscard]] std::string describe(const ExchangeConfig& config);

}  // namespace moebus::model
