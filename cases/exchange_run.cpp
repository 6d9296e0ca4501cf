#include "cases/exchange_run.hpp"

#include <algorithm>
#include <cstring>
#include <span>
#include <stdexcept>
#include <utility>

#include "oracle/compare.hpp"
#include "oracle/numbers.hpp"
#include "workload/data.hpp"

namespace moebus::cases {
namespace {

std::size_t idx(std::int64_t i) noexcept { return static_cast<std::size_t>(i); }

DType scale_dtype(const ExchangeConfig& config) {
  return config.scale_format == ScaleFormat::ue8m0 ? DType::i32 : DType::f32;
}

std::int64_t scale_items(const ExchangeConfig& config) {
  return static_cast<std::int64_t>(oracle::scale_row_bytes(config.hidden, config.scale_format) / 4);
}

std::optional<std::string> text_of(const std::optional<oracle::Difference>& difference, const char* call, int rank) {
  if (!difference) return std::nullopt;
  return std::string(call) + " on rank " + std::to_string(rank) + ": " + difference->text();
}

void throw_if(const std::optional<std::string>& difference) {
  if (difference) throw std::runtime_error(*difference);
}

// Reverses the choices of each token.
template <class T>
void reverse_rows(std::vector<T>& values, int num_topk) {
  for (auto row = values.begin(); row != values.end(); row += num_topk) std::reverse(row, row + num_topk);
}

}  // namespace

ExchangeRun::ExchangeRun(const Group& group, const ExchangeCase& one, Mutant mutant)
    : one_(one), config_(one.config), rank_(group.rank()), mutant_(mutant), exchange_(group, one.config) {
  exchange_.prepare();
  if (!one.placement.experts.empty()) exchange_.set_placement(one.placement, one.rule);
}

DispatchInput ExchangeRun::input(const DispatchTruth& truth, DispatchBuffers& buffers) {
  const oracle::RankInput& given = (*truth.inputs)[idx(rank_)];
  DispatchInput input;
  input.tokens = tensor_2d(given.tokens.data(), config_.dtype, given.num_tokens, config_.hidden);
  input.topk_idx = tensor_2d(given.topk_idx.data(), DType::i64, given.num_tokens, config_.num_topk);
  if (given.has_weights) {
    input.topk_weights = tensor_2d(given.topk_weights.data(), DType::f32, given.num_tokens, config_.num_topk);
  }
  if (config_.cast == Cast::none && config_.scale_format != ScaleFormat::none) {
    input.scales = tensor_2d(given.scales.data(), scale_dtype(config_), given.num_tokens, scale_items(config_));
  }
  for (std::size_t s = 0; s < kMaxSideTensors; ++s) {
    if (config_.side_bytes[s] == 0) continue;
    input.side[s] = tensor_2d(given.side[s].data(), DType::u8, given.num_tokens, config_.side_bytes[s]);
  }
  if (mutant_ == Mutant::order) reverse_choices(given, input, buffers);
  if (one_.has_short_ids) {
    const std::vector<std::int64_t>& ids = mutant_ == Mutant::order ? buffers.ids : given.topk_idx;
    buffers.short_ids.assign(ids.begin(), ids.end());
    input.topk_idx = tensor_2d(std::as_const(buffers.short_ids).data(), DType::i32, given.num_tokens, config_.num_topk);
  }
  if (one_.has_row_gaps) leave_gaps(given, input, buffers);
  if (one_.has_output) give_outputs(input, buffers);
  return input;
}

void ExchangeRun::reverse_choices(const oracle::RankInput& given,
                                  DispatchInput& input,
                                  DispatchBuffers& buffers) const {
  buffers.ids = given.topk_idx;
  buffers.weights = given.topk_weights;
  reverse_rows(buffers.ids, config_.num_topk);
  reverse_rows(buffers.weights, config_.num_topk);
  input.topk_idx.data = std::as_bytes(std::span(buffers.ids)).data();
  if (given.has_weights) input.topk_weights.data = std::as_bytes(std::span(buffers.weights)).data();
}

void ExchangeRun::leave_gaps(const oracle::RankInput& given, DispatchInput& input, DispatchBuffers& buffers) const {
  constexpr std::int64_t kGap = 3;  // elements
  const std::size_t row = oracle::given_row_bytes(config_);
  const std::size_t stride = row + idx(kGap) * size_of(config_.dtype);
  buffers.gapped.assign(stride * idx(given.num_tokens), std::byte{0xEE});
  for (std::size_t n = 0; n < idx(given.num_tokens); ++n) {
    std::memcpy(buffers.gapped.data() + n * stride, given.tokens.data() + n * row, row);
  }
  input.tokens.data = buffers.gapped.data();
  input.tokens.stride[0] = config_.hidden + kGap;
}

TensorView ExchangeRun::output(std::vector<std::byte>& memory, DType dtype, std::int64_t columns) {
  const std::int64_t rows = exchange_.capacity_rows();
  const bool is_padded = config_.layout == Layout::expert_padded;
  const std::int64_t experts = is_padded ? exchange_.num_local_experts() : 1;
  memory.resize(std::max<std::size_t>(1, idx(experts * rows * columns) * size_of(dtype)));
  workload::fill_poison(memory);
  if (is_padded) return tensor_3d(memory.data(), dtype, experts, rows, columns);
  return tensor_2d(memory.data(), dtype, rows, columns);
}

void ExchangeRun::give_outputs(DispatchInput& input, DispatchBuffers& buffers) {
  input.output.tokens = output(buffers.tokens, oracle::received_dtype(config_), config_.hidden);
  if (config_.scale_format != ScaleFormat::none) {
    input.output.scales = output(buffers.scales, scale_dtype(config_), scale_items(config_));
  }
  for (std::size_t s = 0; s < kMaxSideTensors; ++s) {
    if (config_.side_bytes[s] > 0) input.output.side[s] = output(buffers.side[s], DType::u8, config_.side_bytes[s]);
  }
}

DispatchResult ExchangeRun::dispatch(const DispatchTruth& truth, DispatchBuffers& buffers) {
  DispatchResult result = exchange_.dispatch(input(truth, buffers));
  check(truth, result);
  return result;
}

std::optional<std::string> ExchangeRun::difference(const DispatchTruth& truth, const DispatchResult& result) const {
  // Choices in another order: what dispatch says of them is another thing, and right.
  if (mutant_ == Mutant::order) return std::nullopt;
  return text_of(oracle::compare(truth.expected[idx(rank_)], oracle::dispatch_seen(result)), "dispatch", rank_);
}

std::optional<std::string> ExchangeRun::difference(const CombineTruth& truth, const CombineResult& result) const {
  return text_of(oracle::compare(truth.expected[idx(rank_)], oracle::combine_seen(result)), "combine", rank_);
}

void ExchangeRun::check(const DispatchTruth& truth, const DispatchResult& result) const {
  throw_if(difference(truth, result));
}

void ExchangeRun::check(const CombineTruth& truth, const CombineResult& result) const {
  throw_if(difference(truth, result));
}

void ExchangeRun::spoil(const DispatchTruth& truth, DispatchResult& result) const {
  const std::vector<oracle::ReceivedRow>& rows = truth.expected[idx(rank_)].rows;
  if (rows.empty()) return;
  const std::size_t bytes = oracle::received_row_bytes(config_);
  std::byte* const first = result.tokens.data + idx(rows.front().position) * bytes;
  if (mutant_ == Mutant::dropped_row) std::memset(first, 0, bytes);
  if (mutant_ == Mutant::swapped_rows && rows.size() > 1) {
    std::swap_ranges(first, first + bytes, result.tokens.data + idx(rows.back().position) * bytes);
  }
}

CombineInput ExchangeRun::answers(const DispatchTruth& dispatched,
                                  const CombineTruth& truth,
                                  const DispatchHandle& handle,
                                  CombineBuffers& buffers) {
  const oracle::DispatchExpectation& expected = dispatched.expected[idx(rank_)];
  const oracle::HomeInput& home = truth.homes[idx(rank_)];
  const std::int64_t tokens = (*dispatched.inputs)[idx(rank_)].num_tokens;
  const bool is_padded = config_.layout == Layout::expert_padded;
  const std::int64_t experts = exchange_.num_local_experts();
  const std::int64_t rows = is_padded ? exchange_.capacity_rows() * experts : expected.num_rows;
  const int columns = oracle::combine_columns(config_);
  const DType dtype = config_.combine_dtype;
  const std::size_t row_bytes = idx(columns) * size_of(dtype);
  buffers.rows.resize(std::max<std::size_t>(1, idx(rows) * row_bytes));
  workload::fill_poison(buffers.rows);  // padding must never be read
  buffers.lane.assign(std::max<std::size_t>(1, idx(rows * config_.num_topk)), -1.0F);
  for (const oracle::ReceivedRow& row : expected.rows) {
    const std::span bytes(buffers.rows.data() + idx(row.position) * row_bytes, row_bytes);
    fill_answer(config_, truth.seed, rank_, row.position, bytes);
    for (int k = 0; k < config_.num_topk; ++k) {
      buffers.lane[idx(row.position * config_.num_topk + k)] = answer_lane(rank_, row.position, k);
    }
  }
  const std::byte* const data = buffers.rows.data();
  CombineInput input;
  input.handle = handle;
  input.weighting = truth.weighting;
  input.rows = is_padded ? tensor_3d(data, dtype, experts, exchange_.capacity_rows(), columns)
                         : tensor_2d(data, dtype, rows, columns);
  if (truth.weighting == Weighting::given) give_weights(home, tokens, input, buffers);
  for (std::size_t b = 0; b < home.bias.size() && b < idx(one_.num_bias); ++b) {
    input.bias[b] = tensor_2d(home.bias[b].data(), dtype, tokens, columns);
  }
  if (config_.combine_lane) {
    input.lane = tensor_2d(std::as_const(buffers.lane).data(), DType::f32, rows, config_.num_topk);
  }
  if (one_.has_output) {
    buffers.output.resize(std::max<std::size_t>(1, idx(tokens) * row_bytes));
    workload::fill_poison(buffers.output);
    input.output = tensor_2d(buffers.output.data(), dtype, tokens, columns);
  }
  return input;
}

void ExchangeRun::give_weights(const oracle::HomeInput& home,
                               std::int64_t tokens,
                               CombineInput& input,
                               CombineBuffers& buffers) const {
  buffers.weights = home.topk_weights;
  if (mutant_ == Mutant::order) reverse_rows(buffers.weights, config_.num_topk);
  input.topk_weights = tensor_2d(std::as_const(buffers.weights).data(), DType::f32, tokens, config_.num_topk);
}

void ExchangeRun::combine(const DispatchTruth& dispatched, const CombineTruth& truth, const DispatchHandle& handle) {
  CombineBuffers buffers;
  check(truth, exchange_.combine(answers(dispatched, truth, handle, buffers)));
}

void ExchangeRun::exchange_once(const DispatchTruth& dispatched, const CombineTruth& combined) {
  DispatchBuffers buffers;
  DispatchResult result = dispatch(dispatched, buffers);
  combine(dispatched, combined, result.handle);
  poison_rows(result);
}

void poison_rows(DispatchResult& result) {
  const TensorView& tokens = result.tokens;
  workload::fill_poison({tokens.data, idx(tokens.num_elements()) * size_of(tokens.dtype)});
}

}  // namespace moebus::cases
