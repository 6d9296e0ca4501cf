#include "cli/overlap.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "oracle/compare.hpp"
#include "workload/data.hpp"
#include "workload/moe.hpp"

namespace moebus::cli {

namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

double microseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

// Rows [first, first + count) of a tensor.
ConstTensorView part_of(const ConstTensorView& whole, std::int64_t first, std::int64_t count) {
  ConstTensorView part = whole;
  if (!whole.is_given()) return part;
  part.data += static_cast<std::size_t>(first * whole.stride[0]) * size_of(whole.dtype);
  part.shape[0] = count;
  return part;
}

Json summary_json(const Summary& summary) {
  return Json{{"median_us", summary.median}, {"p99_us", summary.p99}, {"min_us", summary.min}, {"max_us", summary.max}};
}

std::string remark_of(const BenchSetup& setup) {
  if (setup.ranks_per_core > 1) {
    return "ranks exceed cores: whoever waits gives its core to a rank that computes, with or without overlap, so "
           "these "
           "figures say little of ranks with cores of their own";
  }
  return "the cores that compute also copy and add: only waiting can be hidden here";
}

}  // namespace

double hidden_part(double compute_us, double exchange_us, double overlapped_us) noexcept {
  if (exchange_us <= 0) return 0;
  return std::clamp((compute_us + exchange_us - overlapped_us) / exchange_us, 0.0, 1.0);
}

bool can_tell_hidden(const Summary& compute, const Summary& overlapped, double exchange_us) noexcept {
  const double noise_us = std::max(compute.median - compute.min, overlapped.median - overlapped.min);
  return noise_us * 2 <= exchange_us;
}

Overlap::Overlap(const BenchSetup& setup, const Group& group, const BenchRank& whole)
    : setup_(setup), whole_(whole), halves_{make_half(group, 0), make_half(group, 1)} {
  for (Half& half : halves_) {
    half.exchange.warm_up();
    std::int64_t rows = half.exchange.capacity_rows();
    if (setup.config.layout == Layout::expert_padded) rows *= half.exchange.num_local_experts();
    half.rows = Pages(static_cast<std::size_t>(rows) * answer_bytes(setup.config), false);
  }
  output_.resize(static_cast<std::size_t>(setup.options.tokens) * answer_bytes(setup.config));
}

Overlap::Half Overlap::make_half(const Group& group, int context) const {
  const std::int64_t larger = (setup_.options.tokens + 1) / 2;
  ExchangeConfig config = setup_.config;
  config.context = context;
  config.max_tokens_per_rank = std::max(1, static_cast<int>(larger));
  Half half{Exchange(group, config), Pages()};
  half.first = context == 0 ? 0 : larger;
  half.num_tokens = context == 0 ? larger : setup_.options.tokens - larger;
  return half;
}

DispatchInput Overlap::input_of(const Half& half, int set) const {
  DispatchInput input = dispatch_input(setup_.config, whole_.input(set));
  input.tokens = part_of(input.tokens, half.first, half.num_tokens);
  input.topk_idx = part_of(input.topk_idx, half.first, half.num_tokens);
  input.topk_weights = part_of(input.topk_weights, half.first, half.num_tokens);
  input.scales = part_of(input.scales, half.first, half.num_tokens);
  return input;
}

CombineInput Overlap::answers_of(Half& half) {
  const std::size_t row_bytes = answer_bytes(setup_.config);
  CombineInput answers;
  answers.rows = rows_for_combine(setup_.config, half.exchange, half.dispatched, half.rows.data());
  answers.handle = half.dispatched.handle;
  answers.weighting = weighting_of(setup_.config);
  answers.output = tensor_2d(output_.data() + static_cast<std::size_t>(half.first) * row_bytes,
                             setup_.config.combine_dtype,
                             half.num_tokens,
                             oracle::combine_columns(setup_.config));
  return answers;
}

void Overlap::run_experts(Half& half) const {
  workload::run_experts(half.exchange.config(),
                        half.exchange.first_local_expert(),
                        workload::received_view(half.dispatched),
                        {half.rows.data(), half.rows.size()});
}

double Overlap::one_by_one(int set, bool has_experts) {
  double experts_us = 0;
  for (Half& half : halves_) {
    half.dispatched = half.exchange.dispatch(input_of(half, set));
    const Clock::time_point start = Clock::now();
    if (has_experts) run_experts(half);
    experts_us += microseconds_since(start);
    half.exchange.combine(answers_of(half));
  }
  finish();
  return experts_us;
}

void Overlap::in_overlap(int set) {
  Half& a = halves_[0];
  Half& b = halves_[1];
  const DispatchInput input_a = input_of(a, set);
  const DispatchInput input_b = input_of(b, set);
  a.dispatch = a.exchange.post_dispatch(input_a);
  b.dispatch = b.exchange.post_dispatch(input_b);
  a.dispatched = a.dispatch.wait();
  run_experts(a);  // beside b's dispatch
  a.combine = a.exchange.post_combine(answers_of(a));
  b.dispatched = b.dispatch.wait();
  run_experts(b);  // beside a's combine
  b.combine = b.exchange.post_combine(answers_of(b));
  a.combine.wait();
  b.combine.wait();
  finish();
}

void Overlap::finish() noexcept {
  for (Half& half : halves_) half.dispatched = DispatchResult();
}

std::optional<std::string> Overlap::wrong(const oracle::CombineExpectation& expected, const char* way) const {
  oracle::CombineSeen seen;
  seen.tokens = tensor_2d(
      output_.data(), setup_.config.combine_dtype, setup_.options.tokens, oracle::combine_columns(setup_.config));
  const auto found = oracle::compare(expected, seen);
  if (!found) return std::nullopt;
  return std::string("two half batches ") + way + ": " + found->text();
}

std::optional<std::string> Overlap::difference(const BenchTruth& truth) {
  // A token's answer does not depend on what else is in its batch: halves must bring home what the whole does.
  const oracle::CombineExpectation expected = whole_.combine_expectation(truth);
  workload::fill_poison(output_);
  one_by_one(0, true);
  std::optional<std::string> found = wrong(expected, "one by one");
  workload::fill_poison(output_);
  in_overlap(0);
  if (!found) found = wrong(expected, "in overlap");
  return found;
}

void Overlap::measure(int rounds, Gather& gather) {
  for (int i = 0; i < rounds; ++i) {
    const int set = i % setup_.num_sets;
    gather.barrier();
    Clock::time_point start = Clock::now();
    compute_us_.push_back(one_by_one(set, true));
    without_us_.push_back(microseconds_since(start));
    gather.barrier();
    start = Clock::now();
    in_overlap(set);
    with_us_.push_back(microseconds_since(start));
    gather.barrier();
    start = Clock::now();
    one_by_one(set, false);
    exchange_us_.push_back(microseconds_since(start));
  }
}

Json Overlap::report(Gather& gather) {
  for (std::vector<double>* samples : {&without_us_, &with_us_, &compute_us_, &exchange_us_}) gather.maximum(*samples);
  const Summary with = summarise(with_us_);
  const Summary compute = summarise(compute_us_);
  const Summary exchange = summarise(exchange_us_);
  return Json{{"rounds", with_us_.size()},
              {"without", summary_json(summarise(without_us_))},
              {"with", summary_json(with)},
              {"compute", summary_json(compute)},
              {"exchange", summary_json(exchange)},
              {"hidden", hidden_part(compute.median, exchange.median, with.median)},
              {"is_trusted", can_tell_hidden(compute, with, exchange.median)},
              {"remark", remark_of(setup_)}};
}

}  // namespace moebus::cli
