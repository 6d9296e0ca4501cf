// Backward run: gradients of a case, as the oracle says and as an exchange gives them.
// Room: tests · host.

#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/math.hpp"
#include "oracle/backward.hpp"
#include "oracle/compare.hpp"
#include "tests/support/exchange_run.hpp"
#include "tests/support/test_names.hpp"
#include "workload/data.hpp"
#include "workload/random.hpp"

namespace moebus::tests {

using base::idx;
using workload::seed_from;

inline std::size_t row_bytes_of(const ExchangeConfig& config) {
  return idx(oracle::combine_columns(config)) * size_of(config.combine_dtype);
}

/// Both gradients of one dispatch and combine, over all ranks.
struct GradientTruth {
  std::uint64_t seed = 0;                            ///< of the gradients of dispatched rows, as fill_answer makes them
  std::vector<std::vector<std::byte>> grad_tokens;   // [ranks]
  std::vector<oracle::CombineGradient> combine;      // [ranks] owners
  std::vector<oracle::CombineExpectation> dispatch;  // [ranks] homes
};

inline oracle::ExpertRowSource answers_of(const ExchangeConfig& config,
                                          std::uint64_t seed,
                                          std::vector<std::byte>& row) {
  return [&config, seed, &row](int owner, const oracle::ReceivedRow& received) -> std::span<const std::byte> {
    fill_answer(config, seed, owner, received.position, row);
    return row;
  };
}

inline GradientTruth make_gradient_truth(const ExchangeCase& one,
                                         const DispatchTruth& dispatched,
                                         const CombineTruth& combined) {
  const ExchangeConfig& config = one.config;
  GradientTruth truth;
  truth.seed = seed_from(combined.seed, 7);
  std::vector<std::byte> row(row_bytes_of(config));
  oracle::CombineGradientRequest request;
  for (int rank = 0; rank < one.num_ranks; ++rank) {
    truth.grad_tokens.emplace_back(idx((*dispatched.inputs)[idx(rank)].num_tokens) * row.size());
    workload::fill_random(
        truth.grad_tokens.back(), config.combine_dtype, seed_from(truth.seed, static_cast<std::uint64_t>(rank)));
  }
  request.grad_tokens = truth.grad_tokens;
  request.weighting = one.weighting;
  request.homes = combined.homes;
  if (config.layout != Layout::rank_major && config.combine_lane) {
    request.expert_rows = answers_of(config, combined.seed, row);
  }
  truth.combine = oracle::combine_gradient(dispatched.expected, request);
  oracle::LaneSource lane;
  if (config.combine_lane) {
    lane = config.layout != Layout::rank_major ? oracle::lane_of(truth.combine, config.num_topk)
                                               : [](int owner, const oracle::ReceivedRow& received, int choice) {
                                                   return answer_lane(owner, received.position, choice);
                                                 };
  }
  std::vector<std::byte> grad_x(row_bytes_of(config));
  truth.dispatch = oracle::dispatch_gradient(dispatched.expected, answers_of(config, truth.seed, grad_x), lane);
  return truth;
}

[[noreturn]] void fail(const std::string& what, int rank) {
  throw std::runtime_error(what + " on rank " + std::to_string(rank));
}

/// Compares gradients of rows at an owner: kept rows, and the whole lane.
inline void check(const ExchangeConfig& config,
                  const oracle::DispatchExpectation& rows,
                  const oracle::CombineGradient& expected,
                  const CombineGradients& seen) {
  const std::size_t row_bytes = row_bytes_of(config);
  if (seen.num_rows != rows.num_rows) fail("combine_backward: num_rows differs", rows.rank);
  for (const oracle::ReceivedRow& row : rows.rows) {
    const std::size_t at = idx(row.position) * row_bytes;
    if (std::memcmp(seen.grad_rows.data + at, expected.grad_rows.data() + at, row_bytes) != 0) {
      fail("combine_backward: row " + std::to_string(row.position) + " differs", rows.rank);
    }
  }
  const auto num_rows = static_cast<std::int64_t>(expected.grad_rows.size() / row_bytes);
  const std::size_t seen_rows = idx(seen.grad_rows.num_elements()) * size_of(config.combine_dtype);
  if (seen_rows != expected.grad_rows.size()) fail("combine_backward: grad_rows has another size", rows.rank);
  if (config.zero_padding && seen_rows > 0 &&
      std::memcmp(seen.grad_rows.data, expected.grad_rows.data(), seen_rows) != 0) {
    fail("combine_backward: padding is not zero", rows.rank);
  }
  if (seen.lane.is_given() != !expected.grad_weights.empty() && num_rows > 0) {
    fail("combine_backward: lane is given, or not, against the request", rows.rank);
  }
  if (!seen.lane.is_given()) return;
  if (seen.lane.shape[0] != num_rows || seen.lane.shape[1] != config.num_topk)
    fail("lane has another shape", rows.rank);
  if (expected.grad_weights.empty()) return;
  if (std::memcmp(seen.lane.data, expected.grad_weights.data(), expected.grad_weights.size() * sizeof(float)) != 0) {
    fail("combine_backward: lane differs", rows.rank);
  }
}

/// One rank's backward pass.
class BackwardRun {
 public:
  BackwardRun(ExchangeRun& run, Exchange& exchange, const ExchangeCase& one)
      : run_(run), exchange_(exchange), one_(one), config_(exchange.config()) {}

  /// Both gradients, compared with the truth. `answers` are the rows that combine was given.
  void once(const DispatchTruth& dispatched,
            const CombineTruth& combined,
            const GradientTruth& truth,
            const DispatchHandle& handle) {
    const oracle::DispatchExpectation& rows = dispatched.expected[idx(run_.rank())];
    CombineBuffers answers;
    CombineInput answered = run_.answers(dispatched, combined, handle, answers);
    CombineGradInput input = combine_input(rows, truth, handle);
    const bool has_weights = config_.layout != Layout::rank_major && config_.combine_lane;
    if (has_weights) input.rows = answered.rows;
    if (has_weights && one_.has_output) {
      const std::size_t size = truth.combine[idx(run_.rank())].grad_weights.size();
      lane_.assign(size, -5.0F);
      input.lane =
          tensor_2d(lane_.data(), DType::f32, static_cast<std::int64_t>(size) / config_.num_topk, config_.num_topk);
    }
    CombineGradients gradients = exchange_.combine_backward(input);
    check(config_, rows, truth.combine[idx(run_.rank())], gradients);
    send_home(dispatched, truth, handle, gradients, answered.lane);
    // Nothing stale may pass for right in the next call.
    workload::fill_poison(
        {gradients.grad_rows.data, idx(gradients.grad_rows.num_elements()) * size_of(config_.combine_dtype)});
  }

 private:
  CombineGradInput combine_input(const oracle::DispatchExpectation& rows,
                                 const GradientTruth& truth,
                                 const DispatchHandle& handle) {
    const std::vector<std::byte>& given = truth.grad_tokens[idx(run_.rank())];
    const std::int64_t num_tokens = (*rows.sent)[idx(run_.rank())].num_tokens;
    const std::size_t gap = one_.has_row_gaps ? 2 * size_of(config_.dtype) : 0;
    const std::size_t row = row_bytes_of(config_);
    grad_tokens_.assign(idx(num_tokens) * (row + gap), std::byte{0xEE});
    for (std::size_t n = 0; n < idx(num_tokens); ++n) {
      std::memcpy(grad_tokens_.data() + n * (row + gap), given.data() + n * row, row);
    }
    CombineGradInput input;
    input.grad_tokens = tensor_2d(
        static_cast<const std::byte*>(grad_tokens_.data()), config_.combine_dtype, num_tokens, config_.hidden);
    input.grad_tokens.stride[0] = static_cast<std::int64_t>((row + gap) / size_of(config_.dtype));
    input.handle = handle;
    input.weighting = one_.weighting;
    if (one_.has_output) input.grad_rows = rows_tensor(grad_rows_);
    return input;
  }

  TensorView rows_tensor(std::vector<std::byte>& memory) {
    const std::int64_t rows = exchange_.capacity_rows();
    const bool is_padded = config_.layout == Layout::expert_padded;
    const std::int64_t experts = is_padded ? exchange_.num_local_experts() : 1;
    memory.assign(std::max<std::size_t>(1, idx(experts * rows) * row_bytes_of(config_)), std::byte{0xEE});
    if (is_padded) return tensor_3d(memory.data(), config_.dtype, experts, rows, config_.hidden);
    return tensor_2d(memory.data(), config_.dtype, rows, config_.hidden);
  }

  void send_home(const DispatchTruth& dispatched,
                 const GradientTruth& truth,
                 const DispatchHandle& handle,
                 const CombineGradients& gradients,
                 const ConstTensorView& own_lane) {
    const int rank = run_.rank();
    const oracle::DispatchExpectation& rows = dispatched.expected[idx(rank)];
    DispatchGradInput input;
    input.handle = handle;
    TensorView grad_x = rows_tensor(grad_x_);
    for (const oracle::ReceivedRow& row : rows.rows) {
      const std::size_t bytes = row_bytes_of(config_);
      fill_answer(config_, truth.seed, rank, row.position, {grad_x_.data() + idx(row.position) * bytes, bytes});
    }
    input.grad_rows = grad_x;
    input.lane = config_.layout == Layout::rank_major ? own_lane : gradients.lane;
    std::vector<std::byte> home;
    const std::int64_t num_tokens = (*dispatched.inputs)[idx(rank)].num_tokens;
    if (one_.has_output) {
      home.resize(std::max<std::size_t>(1, idx(num_tokens) * row_bytes_of(config_)), std::byte{0xEE});
      input.grad_tokens = tensor_2d(home.data(), config_.combine_dtype, num_tokens, config_.hidden);
    }
    const DispatchGradients seen = exchange_.dispatch_backward(input);
    oracle::CombineExpectation expected = truth.dispatch[idx(rank)];
    // A dropped choice has no gradient; nothing is said of it.
    std::fill(expected.missing.begin(), expected.missing.end(), 0);
    expected.num_incomplete = 0;
    const auto difference = oracle::compare(expected, {seen.grad_tokens, seen.grad_weights, {}, 0});
    if (difference)
      throw std::runtime_error("dispatch_backward on rank " + std::to_string(rank) + ": " + difference->text());
  }

  ExchangeRun& run_;
  Exchange& exchange_;
  const ExchangeCase& one_;
  const ExchangeConfig& config_;
  std::vector<std::byte> grad_tokens_;
  std::vector<std::byte> grad_rows_;
  std::vector<std::byte> grad_x_;
  std::vector<float> lane_;
};

/// Makes a case fit for gradients: rows of one type there and back, nothing beside them.
inline void fit_for_gradients(ExchangeCase& one, Route route) {
  ExchangeConfig& config = one.config;
  config.cast = Cast::none;
  config.scale_format = ScaleFormat::none;
  config.scale_order = ScaleOrder::row_major;
  config.side_bytes = {};
  config.dtype = config.combine_dtype;
  config.combine_hidden = 0;
  config.combine_lane = one.seed % 4 != 0;
  config.caller_results = false;
  one.has_output = one.has_output && route != Route::direct;
  one.num_bias = 0;
  if (one.weighting == Weighting::given) one.weighting = Weighting::dispatched;
  if (one.weighting == Weighting::dispatched) one.has_weights = true;
  set_route(config, route, one.num_ranks);
  // Rows of gateways lie beside those of rounds.
  const std::size_t row = base::align_up(row_bytes_of(config) + 4 * idx(config.num_topk) + 80, std::size_t{64});
  if (!one.nodes.empty()) config.stage_bytes += 6 * idx(one.num_ranks) * idx(one.num_ranks) * row;
}

/// A case with all its truths.
struct Prepared {
  ExchangeCase one;
  std::vector<DispatchTruth> dispatched;
  std::vector<CombineTruth> combined;
  std::vector<GradientTruth> gradients;

  Prepared(ExchangeCase given, int num_calls) : one(std::move(given)) {
    for (int call = 0; call < num_calls; ++call) {
      dispatched.push_back(make_dispatch_truth(one, call));
      combined.push_back(make_combine_truth(one, dispatched.back(), call));
      gradients.push_back(make_gradient_truth(one, dispatched.back(), combined.back()));
    }
  }
};

/// Forward and backward of every call of a case.
inline void run_all(ExchangeRun& run, Exchange& gradients, const Prepared& prepared) {
  BackwardRun backward(run, gradients, prepared.one);
  for (std::size_t call = 0; call < prepared.dispatched.size(); ++call) {
    DispatchBuffers buffers;
    DispatchResult result = run.dispatch(prepared.dispatched[call], buffers);
    run.combine(prepared.dispatched[call], prepared.combined[call], result.handle);
    poison_rows(result);
    result.release();
    backward.once(prepared.dispatched[call], prepared.combined[call], prepared.gradients[call], result.handle);
  }
}

/// Three ranks, experts' rows grouped, weights dispatched.
inline ExchangeCase plain_case(Layout layout = Layout::expert_major, Route route = Route::latency) {
  ExchangeCase one;
  one.seed = 31;
  one.num_ranks = 3;
  one.config = small_config(route, one.num_ranks);
  one.config.layout = layout;
  one.config.combine_lane = true;
  one.weighting = layout == Layout::rank_major ? Weighting::none : Weighting::dispatched;
  return one;
}

}  // namespace moebus::tests
