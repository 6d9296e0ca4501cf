#include <chrono>
#include <cstring>

#include "cli/bench.hpp"
#include "oracle/compare.hpp"
#include "workload/data.hpp"
#include "workload/moe.hpp"

namespace moebus::cli {

namespace {

using Clock = std::chrono::steady_clock;

double microseconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double, std::micro>(to - from).count();
}

template <class T>
const T* values(const ConstTensorView& view) {
  return reinterpret_cast<const T*>(view.data);  // the view's dtype says what is there
}

// Calls `visit` with the position of each row that a token fills.
template <class Visit>
void for_each_row(const ExchangeConfig& config,
                  std::int64_t capacity,
                  const DispatchResult& result,
                  const Visit& visit) {
  if (config.layout == Layout::rank_major) {
    for (std::int64_t row = 0; row < result.num_rows; ++row) visit(row);
    return;
  }
  const std::int32_t* const counts = values<std::int32_t>(result.counts);
  for (std::int64_t expert = 0; expert < result.counts.shape[0]; ++expert) {
    const std::int64_t first =
        config.layout == Layout::expert_major ? values<std::int64_t>(result.offsets)[expert] : expert * capacity;
    for (std::int64_t i = 0; i < counts[expert]; ++i) visit(first + i);
  }
}

// The row that an owner hands to combine in a layer: its experts' answer to the token, made anew from the oracle's row.
std::span<const std::byte> layer_row(const oracle::DispatchExpectation& owner,
                                     const oracle::ReceivedRow& row,
                                     std::vector<std::byte>& buffer) {
  const ExchangeConfig& config = owner.config;
  const int first = oracle::first_local_expert(config.num_experts, owner.num_ranks, owner.rank);
  const auto scales = owner.scale_bytes(row);
  if (config.layout == Layout::rank_major) {
    const auto topk = static_cast<std::size_t>(config.num_topk);
    const std::size_t at = static_cast<std::size_t>(row.position) * topk;
    workload::apply_local_experts(config,
                                  first,
                                  std::span(owner.topk_idx).subspan(at, topk),
                                  std::span(owner.topk_weights).subspan(at, topk),
                                  owner.token_bytes(row),
                                  scales,
                                  buffer);
  } else {
    workload::apply_expert(config, first + row.local_expert, owner.token_bytes(row), scales, buffer);
  }
  return buffer;
}

std::string with_origin(const BenchSetup& setup, const oracle::Difference& difference) {
  std::string text = difference.text();
  const ExchangeConfig& config = setup.config;
  if (difference.seen_row == nullptr || difference.field != "tokens" || config.cast != Cast::none) return text;
  const auto row_bytes = static_cast<std::size_t>(config.hidden) * size_of(config.dtype);
  const auto origin = workload::origin_of({difference.seen_row, row_bytes}, config.dtype, difference.column);
  if (origin) text += "; what is there was made for " + origin->text();
  return text;
}

}  // namespace

Weighting weighting_of(const ExchangeConfig& config) noexcept {
  return config.layout == Layout::rank_major ? Weighting::none : Weighting::dispatched;
}

ConstTensorView rows_for_combine(const ExchangeConfig& config,
                                 const Exchange& exchange,
                                 const DispatchResult& dispatched,
                                 const std::byte* rows) noexcept {
  const int columns = oracle::combine_columns(config);
  if (config.layout == Layout::expert_padded) {
    return tensor_3d(rows, config.combine_dtype, exchange.num_local_experts(), exchange.capacity_rows(), columns);
  }
  return tensor_2d(rows, config.combine_dtype, dispatched.num_rows, columns);
}

BenchTruth make_truth(const BenchSetup& setup) {
  BenchTruth truth;
  truth.inputs = first_inputs(setup);
  truth.dispatched = oracle::dispatch(setup.config, truth.inputs, setup.group);
  truth.least = least_traffic(setup, truth.dispatched);
  truth.hash = input_hash(setup, truth.inputs);
  return truth;
}

BenchRank::BenchRank(const BenchSetup& setup, const Group& group)
    : setup_(setup), rank_(group.rank()), exchange_(group, setup.config) {
  prepared_ = exchange_.prepare();
  const PrepareReport warm = exchange_.warm_up();
  prepared_.warm_up_us = warm.warm_up_us;
}

bool BenchRank::has_combine() const noexcept { return setup_.options.kind != BenchKind::dispatch; }

bool BenchRank::makes_rows_in_call() const noexcept { return setup_.options.kind == BenchKind::layer; }

void BenchRank::load_first(const BenchTruth& truth) {
  inputs_.push_back((*truth.inputs)[static_cast<std::size_t>(rank_)]);
  if (!has_combine()) return;
  const ExchangeConfig& config = setup_.config;
  row_bytes_ = answer_bytes(config);
  std::int64_t rows = exchange_.capacity_rows();
  if (config.layout == Layout::expert_padded) rows *= exchange_.num_local_experts();
  rows_bytes_ = static_cast<std::size_t>(rows) * row_bytes_;
  rows_ = Pages(rows_bytes_ * static_cast<std::size_t>(makes_rows_in_call() ? 1 : setup_.num_sets), false);
  if (makes_rows_in_call()) return;
  for (const oracle::ReceivedRow& row : truth.dispatched[static_cast<std::size_t>(rank_)].rows) {
    fill_answer(
        config, rank_, row.position, rows_of(0) + static_cast<std::size_t>(row.position) * row_bytes_, row_bytes_);
  }
}

void BenchRank::load_others() {
  const workload::RoutingGenerator routing = routing_of(setup_);
  for (int set = 1; set < setup_.num_sets; ++set) inputs_.push_back(make_input(setup_, routing, rank_, set));
  if (!has_combine() || makes_rows_in_call()) return;
  for (int set = 1; set < setup_.num_sets; ++set) {
    dispatched_ = exchange_.dispatch(dispatch_input(setup_.config, inputs_[static_cast<std::size_t>(set)]));
    std::byte* const rows = rows_of(set);
    for_each_row(setup_.config, exchange_.capacity_rows(), dispatched_, [&](std::int64_t position) {
      fill_answer(setup_.config, rank_, position, rows + static_cast<std::size_t>(position) * row_bytes_, row_bytes_);
    });
    finish();
  }
}

std::byte* BenchRank::rows_of(int set) noexcept {
  return rows_.data() + (makes_rows_in_call() ? 0 : static_cast<std::size_t>(set) * rows_bytes_);
}

CallTimes BenchRank::call(int set) {
  CallTimes times;
  const DispatchInput input = dispatch_input(setup_.config, inputs_[static_cast<std::size_t>(set)]);
  const Clock::time_point start = Clock::now();
  dispatched_ = exchange_.dispatch(input);
  const Clock::time_point arrived = Clock::now();
  times.dispatch = microseconds(start, arrived);
  if (!has_combine()) return times;
  if (makes_rows_in_call()) {
    workload::run_experts(setup_.config,
                          exchange_.first_local_expert(),
                          workload::received_view(dispatched_),
                          {rows_.data(), rows_.size()});
  }
  const Clock::time_point answered = Clock::now();
  CombineInput answers;
  answers.rows = rows_for_combine(setup_.config, exchange_, dispatched_, rows_of(set));
  answers.handle = dispatched_.handle;
  answers.weighting = weighting_of(setup_.config);
  combined_ = exchange_.combine(answers);
  times.experts = microseconds(arrived, answered);
  times.combine = microseconds(answered, Clock::now());
  return times;
}

void BenchRank::finish() noexcept {
  dispatched_ = DispatchResult();
  combined_ = CombineResult();
}

oracle::CombineExpectation BenchRank::combine_expectation(const BenchTruth& truth) const {
  std::vector<std::byte> buffer(row_bytes_);
  oracle::CombineRequest request;
  request.weighting = weighting_of(setup_.config);
  request.expert_rows = [&](int owner, const oracle::ReceivedRow& row) -> std::span<const std::byte> {
    if (makes_rows_in_call()) return layer_row(truth.dispatched[static_cast<std::size_t>(owner)], row, buffer);
    fill_answer(setup_.config, owner, row.position, buffer.data(), buffer.size());
    return buffer;
  };
  return oracle::combine_at(rank_, truth.dispatched, request);
}

std::optional<std::string> BenchRank::difference(const BenchTruth& truth) const {
  const auto& expected = truth.dispatched[static_cast<std::size_t>(rank_)];
  if (const auto found = oracle::compare(expected, oracle::dispatch_seen(dispatched_))) {
    return "dispatch: " + with_origin(setup_, *found);
  }
  if (!has_combine()) return std::nullopt;
  const oracle::CombineExpectation home = combine_expectation(truth);
  if (const auto found = oracle::compare(home, oracle::combine_seen(combined_))) return "combine: " + found->text();
  return std::nullopt;
}

double BenchRank::time_of(const CallTimes& times) const noexcept {
  switch (setup_.options.kind) {
    case BenchKind::dispatch:
      return times.dispatch;
    case BenchKind::combine:
      return times.combine;
    case BenchKind::exchange:
    case BenchKind::layer:
      return times.dispatch + times.experts + times.combine;
  }
  return 0;
}

}  // namespace moebus::cli
