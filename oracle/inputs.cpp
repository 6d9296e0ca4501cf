#include "oracle/inputs.hpp"

#include <algorithm>
#include <string>

#include "moebus/error.hpp"
#include "oracle/numbers.hpp"

namespace moebus::oracle {

namespace {

[[noreturn]] void reject(int rank, const std::string& what) {
  throw Error(ErrorCode::invalid_argument, "oracle: rank " + std::to_string(rank) + ": " + what, rank);
}

void check_size(int rank, const char* name, std::size_t seen, std::size_t expected) {
  if (seen == expected) return;
  reject(rank,
         std::string(name) + " has " + std::to_string(seen) + " elements or bytes, the configuration asks for " +
             std::to_string(expected));
}

void check_ids(const ExchangeConfig& config, int rank, const RankInput& input) {
  for (std::size_t i = 0; i < input.topk_idx.size(); ++i) {
    const std::int64_t expert = input.topk_idx[i];
    if (expert >= -1 && expert < config.num_experts) continue;
    const auto topk = static_cast<std::size_t>(config.num_topk);
    reject(rank,
           "topk_idx[" + std::to_string(i / topk) + "][" + std::to_string(i % topk) + "] is " + std::to_string(expert) +
               ", allowed are -1 (no expert) to " + std::to_string(config.num_experts - 1));
  }
}

void check_rank(const ExchangeConfig& config, int rank, const RankInput& input) {
  if (input.num_tokens < 0 || input.num_tokens > config.max_tokens_per_rank) {
    reject(rank,
           "num_tokens is " + std::to_string(input.num_tokens) +
               ", allowed are 0 to max_tokens_per_rank = " + std::to_string(config.max_tokens_per_rank));
  }
  const auto num_tokens = static_cast<std::size_t>(input.num_tokens);
  const auto num_choices = num_tokens * static_cast<std::size_t>(config.num_topk);
  const auto given_scales = config.cast == Cast::none ? scale_row_bytes(config.hidden, config.scale_format) : 0;
  check_size(rank, "tokens", input.tokens.size(), num_tokens * given_row_bytes(config));
  check_size(rank, "scales", input.scales.size(), num_tokens * given_scales);
  for (std::size_t s = 0; s < input.side.size(); ++s) {
    check_size(rank, "side", input.side[s].size(), num_tokens * static_cast<std::size_t>(config.side_bytes[s]));
  }
  check_size(rank, "topk_idx", input.topk_idx.size(), num_choices);
  check_size(rank, "topk_weights", input.topk_weights.size(), input.has_weights ? num_choices : 0);
  check_ids(config, rank, input);
}

void check_config(const ExchangeConfig& config) {
  const bool is_cast_right =
      config.cast == Cast::none || (config.dtype == DType::bf16 && config.scale_format != ScaleFormat::none);
  if (config.num_experts < 1 || config.num_topk < 1 || config.num_topk > kMaxTopk || config.hidden < 1 ||
      config.expert_alignment < 1 || config.capacity_rows < 0 || config.seats_per_rank < 0 || !is_cast_right ||
      !is_summable(config.combine_dtype)) {
    throw Error(
        ErrorCode::invalid_argument,
        "oracle: the configuration is not valid: experts, top-k, hidden and alignment are at least 1, top-k at "
        "most 64, capacity and seats at least 0, a cast takes bf16 and a scale format, combine adds bf16, f16 or f32");
  }
}

}  // namespace

int num_local_experts(int num_experts, int num_ranks, int rank) noexcept {
  return num_experts / num_ranks + (rank < num_experts % num_ranks ? 1 : 0);
}

int first_local_expert(int num_experts, int num_ranks, int rank) noexcept {
  return rank * (num_experts / num_ranks) + std::min(rank, num_experts % num_ranks);
}

int owner_of(int num_experts, int num_ranks, int expert) noexcept {
  int rank = num_ranks - 1;
  while (first_local_expert(num_experts, num_ranks, rank) > expert) --rank;
  return rank;
}

std::size_t given_row_bytes(const ExchangeConfig& config) noexcept {
  return static_cast<std::size_t>(config.hidden) * size_of(config.dtype);
}

std::size_t received_row_bytes(const ExchangeConfig& config) noexcept {
  return static_cast<std::size_t>(config.hidden) * size_of(received_dtype(config));
}

DType received_dtype(const ExchangeConfig& config) noexcept {
  return config.cast == Cast::fp8 ? DType::e4m3 : config.dtype;
}

int combine_columns(const ExchangeConfig& config) noexcept {
  return config.combine_hidden > 0 ? config.combine_hidden : config.hidden;
}

void check_inputs(const ExchangeConfig& config, const std::vector<RankInput>& inputs) {
  check_config(config);
  if (inputs.empty() || inputs.size() > static_cast<std::size_t>(kMaxRanks)) {
    throw Error(
        ErrorCode::invalid_argument,
        "oracle: inputs of " + std::to_string(inputs.size()) + " ranks, allowed are 1 to " + std::to_string(kMaxRanks));
  }
  for (std::size_t rank = 0; rank < inputs.size(); ++rank) {
    check_rank(config, static_cast<int>(rank), inputs[rank]);
    if (inputs[rank].has_weights != inputs[0].has_weights) {
      reject(static_cast<int>(rank), "has_weights differs from rank 0; all ranks give weights, or none");
    }
  }
}

}  // namespace moebus::oracle
