// Cases: small inputs for the oracle's tests, written as people would write them on paper.
// Room: tests · host.

#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "moebus/config.hpp"
#include "oracle/combine.hpp"
#include "oracle/dispatch.hpp"
#include "oracle/numbers.hpp"

namespace moebus::oracle::cases {

using Ids = std::vector<std::vector<std::int64_t>>;  // [tokens][choices]
using Weights = std::vector<std::vector<float>>;     // [tokens][choices]

inline ExchangeConfig small_config(int num_experts, int num_topk, int hidden = 1) {
  ExchangeConfig config;
  config.num_experts = num_experts;
  config.num_topk = num_topk;
  config.hidden = hidden;
  config.max_tokens_per_rank = 64;
  return config;
}

inline std::vector<std::byte> bytes_of(DType dtype, const std::vector<float>& values) {
  std::vector<std::byte> bytes(values.size() * size_of(dtype));
  narrow(dtype, values, bytes.data());
  return bytes;
}

inline std::vector<float> floats_of(DType dtype, const std::vector<std::byte>& bytes) {
  std::vector<float> values(bytes.size() / size_of(dtype));
  widen(dtype, bytes.data(), values);
  return values;
}

/// Makes one rank's input with zero bytes in its rows; every token's choices are listed.
inline RankInput rank_input(const ExchangeConfig& config, const Ids& ids, const Weights& weights = {}) {
  RankInput input;
  input.num_tokens = static_cast<std::int64_t>(ids.size());
  input.tokens.resize(ids.size() * given_row_bytes(config));
  if (config.cast == Cast::none) input.scales.resize(ids.size() * scale_row_bytes(config.hidden, config.scale_format));
  for (std::size_t s = 0; s < input.side.size(); ++s) {
    input.side[s].resize(ids.size() * static_cast<std::size_t>(config.side_bytes[s]));
  }
  for (const auto& token : ids) input.topk_idx.insert(input.topk_idx.end(), token.begin(), token.end());
  for (const auto& token : weights) input.topk_weights.insert(input.topk_weights.end(), token.begin(), token.end());
  input.has_weights = !weights.empty();
  return input;
}

/// Names where kept rows come from: (source rank, source token), in order of position.
inline std::vector<std::pair<int, std::int64_t>> sources(const DispatchExpectation& result) {
  std::vector<std::pair<int, std::int64_t>> list;
  for (const ReceivedRow& row : result.rows) list.emplace_back(row.src_rank, row.src_token);
  return list;
}

inline std::vector<std::int64_t> positions(const DispatchExpectation& result) {
  std::vector<std::int64_t> list;
  for (const ReceivedRow& row : result.rows) list.push_back(row.position);
  return list;
}

/// Gives every row of an expert (expert layouts) or a rank (rank_major) the same values, one per column.
class SameForAll {
 public:
  SameForAll(DType dtype, std::vector<std::vector<float>> values) : dtype_(dtype), values_(std::move(values)) {}

  /// Index of `values` = first_expert[owner] + local expert.
  [[nodiscard]] ExpertRowSource by_expert(std::vector<int> first_expert) {
    return [this, first_expert = std::move(first_expert)](int owner, const ReceivedRow& row) {
      const int expert = first_expert[static_cast<std::size_t>(owner)] + row.local_expert;
      return give(static_cast<std::size_t>(expert));
    };
  }

  /// Index of `values` = owner.
  [[nodiscard]] ExpertRowSource by_rank() {
    return [this](int owner, const ReceivedRow&) { return give(static_cast<std::size_t>(owner)); };
  }

 private:
  std::span<const std::byte> give(std::size_t index) {
    row_ = bytes_of(dtype_, values_.at(index));
    return row_;
  }

  DType dtype_;
  std::vector<std::vector<float>> values_;
  std::vector<std::byte> row_;
};

}  // namespace moebus::oracle::cases
