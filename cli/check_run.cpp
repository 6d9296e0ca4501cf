#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <utility>

#include "cli/check_case.hpp"
#include "cli/feed.hpp"
#include "cli/launch.hpp"
#include "moebus/moebus.hpp"
#include "oracle/combine.hpp"
#include "oracle/compare.hpp"
#include "oracle/dispatch.hpp"
#include "oracle/numbers.hpp"
#include "workload/data.hpp"
#include "workload/random.hpp"

namespace moebus::cli {

namespace {

using workload::seed_from;

std::size_t idx(std::int64_t i) { return static_cast<std::size_t>(i); }

// One dispatch and combine of a case: what every rank gives, and what every rank must get.
struct CallTruth {
  oracle::SharedInputs inputs;
  std::vector<oracle::DispatchExpectation> dispatched;
  std::vector<oracle::HomeInput> homes;
  std::vector<oracle::CombineExpectation> combined;
};

std::vector<std::byte> random_bytes(std::size_t size, DType dtype, std::uint64_t seed) {
  std::vector<std::byte> bytes(size);
  workload::fill_random(bytes, dtype, seed);
  return bytes;
}

// Ids without a generator: any expert, repeated or not, for more choices than experts.
void choose_any(const ExchangeConfig& config, workload::Random& random, workload::RoutingTable& table) {
  for (std::int64_t& expert : table.topk_idx) {
    expert = static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(config.num_experts) + 1)) - 1;
  }
  for (float& weight : table.topk_weights) weight = random.unit();
}

workload::RoutingTable make_table(const CheckCase& one, int rank, std::int64_t tokens, std::uint64_t seed) {
  const ExchangeConfig& config = one.config;
  workload::Random random(seed_from(seed, 17, static_cast<std::uint64_t>(rank)));
  workload::RoutingTable table;
  if (config.num_topk > config.num_experts) {
    table = {tokens, config.num_topk, {}, {}};
    table.topk_idx.resize(idx(tokens * config.num_topk));
    table.topk_weights.resize(table.topk_idx.size());
    choose_any(config, random, table);
  } else {
    table = workload::RoutingGenerator(one.routing, {config.num_experts, config.num_topk, one.num_ranks})
                .make(rank, tokens, seed);
  }
  for (std::int64_t n = 0; n < tokens && one.has_repeats && config.num_topk > 1; ++n) {
    if (random.below(2) == 0) continue;
    const auto from = static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(config.num_topk)));
    const auto to = static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(config.num_topk)));
    table.topk_idx[idx(n * config.num_topk + to)] = table.topk_idx[idx(n * config.num_topk + from)];
  }
  workload::poison_masked_weights(table);
  return table;
}

oracle::RankInput make_rank_input(const CheckCase& one, int rank, std::uint64_t seed) {
  const ExchangeConfig& config = one.config;
  workload::Random random(seed_from(seed, 23, static_cast<std::uint64_t>(rank)));
  oracle::RankInput input;
  const auto most = static_cast<std::uint64_t>(config.max_tokens_per_rank);
  input.num_tokens = random.below(4) == 0 ? 0 : static_cast<std::int64_t>(1 + random.below(most));
  const std::size_t rows = idx(input.num_tokens);
  input.tokens = random_bytes(rows * oracle::given_row_bytes(config), config.dtype, random.next());
  if (config.cast == Cast::none) {
    const DType dtype = config.scale_format == ScaleFormat::f32 ? DType::f32 : DType::i32;
    input.scales =
        random_bytes(rows * oracle::scale_row_bytes(config.hidden, config.scale_format), dtype, random.next());
  }
  for (std::size_t s = 0; s < input.side.size(); ++s) {
    input.side[s] = random_bytes(rows * idx(config.side_bytes[s]), DType::u8, random.next());
  }
  workload::RoutingTable table = make_table(one, rank, input.num_tokens, seed);
  input.topk_idx = std::move(table.topk_idx);
  input.has_weights = one.has_weights;
  if (one.has_weights) input.topk_weights = std::move(table.topk_weights);
  return input;
}

oracle::HomeInput make_home(const CheckCase& one, const oracle::RankInput& input, std::uint64_t seed) {
  oracle::HomeInput home;
  workload::Random random(seed);
  const std::size_t bytes = idx(input.num_tokens) * answer_bytes(one.config);
  for (int b = 0; b < one.num_bias; ++b) {
    home.bias[idx(b)] = random_bytes(bytes, one.config.combine_dtype, random.next());
  }
  if (one.weighting == Weighting::given) {
    home.topk_weights.resize(input.topk_idx.size());
    for (std::size_t i = 0; i < home.topk_weights.size(); ++i) {
      // The weight of no choice must have no effect.
      const bool is_masked = input.topk_idx[i] < 0;
      home.topk_weights[i] = is_masked ? std::numeric_limits<float>::quiet_NaN() : random.unit() - 0.25F;
    }
  }
  return home;
}

// What an owner answers for a row; any rank can make it again.
void make_answer(const CheckCase& one, std::uint64_t seed, int owner, std::int64_t position, std::span<std::byte> row) {
  workload::fill_random(row,
                        one.config.combine_dtype,
                        seed_from(seed, static_cast<std::uint64_t>(owner), static_cast<std::uint64_t>(position)));
}

float make_lane(int owner, std::int64_t position, int choice) {
  return static_cast<float>(owner + 1) * 0.5F + static_cast<float>(position) + static_cast<float>(choice) * 1024.0F;
}

std::uint64_t seed_of_call(const CheckCase& one, int call) {
  return seed_from(one.seed, 101, static_cast<std::uint64_t>(call));
}

CallTruth make_call_truth(const CheckCase& one, int call) {
  const std::uint64_t seed = seed_of_call(one, call);
  CallTruth truth;
  auto inputs = std::make_shared<std::vector<oracle::RankInput>>();
  for (int rank = 0; rank < one.num_ranks; ++rank) {
    inputs->push_back(make_rank_input(one, rank, seed));
    truth.homes.push_back(make_home(one, inputs->back(), seed_from(seed, 31, static_cast<std::uint64_t>(rank))));
  }
  truth.inputs = inputs;
  truth.dispatched = oracle::dispatch(one.config, truth.inputs);
  oracle::CombineRequest request;
  std::vector<std::byte> row(answer_bytes(one.config));
  request.weighting = one.weighting;
  request.homes = truth.homes;
  request.expert_rows = [&](int owner, const oracle::ReceivedRow& received) -> std::span<const std::byte> {
    make_answer(one, seed, owner, received.position, row);
    return row;
  };
  if (one.config.combine_lane) {
    request.lane = [](int owner, const oracle::ReceivedRow& received, int choice) {
      return make_lane(owner, received.position, choice);
    };
  }
  truth.combined = oracle::combine(truth.dispatched, request);
  return truth;
}

// One rank's buffers for one call, and the call itself.
class CaseRank {
 public:
  CaseRank(const CheckCase& one, Exchange& exchange, int rank, Mutant mutant)
      : one_(one), config_(one.config), exchange_(exchange), rank_(rank), mutant_(mutant) {}

  // Returns what differs first, or nothing. The call is always made whole, so that no other rank is left waiting.
  std::optional<std::string> run(const CallTruth& truth, int call) {
    const std::size_t own = idx(rank_);
    const oracle::DispatchExpectation& expected = truth.dispatched[own];
    DispatchResult result = exchange_.dispatch(input_of((*truth.inputs)[own]));
    mutate(expected, result);
    std::optional<oracle::Difference> difference;
    // The choices were handed over in another order: what dispatch says of them is another thing, and right.
    if (mutant_ != Mutant::order) difference = oracle::compare(expected, oracle::dispatch_seen(result));
    const std::int64_t tokens = (*truth.inputs)[own].num_tokens;
    const CombineResult combined = exchange_.combine(answers_of(expected, result, truth.homes[own], tokens, call));
    if (!difference) difference = oracle::compare(truth.combined[own], oracle::combine_seen(combined));
    if (!difference) return std::nullopt;
    return "call " + std::to_string(call) + ": " + difference->text();
  }

 private:
  DispatchInput input_of(const oracle::RankInput& given) {
    DispatchInput input = dispatch_input(config_, given);
    if (mutant_ == Mutant::order) reverse_choices(given, input);
    if (one_.has_short_ids) {
      const auto* const ids = mutant_ == Mutant::order ? reversed_idx_.data() : given.topk_idx.data();
      short_ids_.assign(ids, ids + given.topk_idx.size());
      input.topk_idx = tensor_2d(std::as_const(short_ids_).data(), DType::i32, given.num_tokens, config_.num_topk);
    }
    if (one_.has_row_gaps) leave_gaps(given, input);
    if (one_.has_output) give_output(input);
    return input;
  }

  void reverse_choices(const oracle::RankInput& given, DispatchInput& input) {
    reversed_idx_ = given.topk_idx;
    reversed_weights_ = given.topk_weights;
    const auto topk = static_cast<std::ptrdiff_t>(config_.num_topk);
    for (std::ptrdiff_t n = 0; n < given.num_tokens; ++n) {
      std::reverse(reversed_idx_.begin() + n * topk, reversed_idx_.begin() + (n + 1) * topk);
      if (given.has_weights)
        std::reverse(reversed_weights_.begin() + n * topk, reversed_weights_.begin() + (n + 1) * topk);
    }
    input.topk_idx.data = std::as_bytes(std::span(reversed_idx_)).data();
    if (given.has_weights) input.topk_weights.data = std::as_bytes(std::span(reversed_weights_)).data();
  }

  void leave_gaps(const oracle::RankInput& given, DispatchInput& input) {
    constexpr std::int64_t kGap = 3;  // elements
    const std::size_t row = oracle::given_row_bytes(config_);
    const std::size_t stride = row + idx(kGap) * size_of(config_.dtype);
    gapped_.assign(stride * idx(given.num_tokens), std::byte{0xEE});
    for (std::size_t n = 0; n < idx(given.num_tokens); ++n) {
      std::memcpy(gapped_.data() + n * stride, given.tokens.data() + n * row, row);
    }
    input.tokens.data = gapped_.data();
    input.tokens.stride[0] = config_.hidden + kGap;
  }

  TensorView output(std::vector<std::byte>& memory, DType dtype, std::int64_t columns) {
    const std::int64_t rows = exchange_.capacity_rows();
    const std::int64_t experts = config_.layout == Layout::expert_padded ? exchange_.num_local_experts() : 1;
    memory.resize(std::max<std::size_t>(1, idx(experts * rows * columns) * size_of(dtype)));
    workload::fill_poison(memory);
    if (config_.layout == Layout::expert_padded) return tensor_3d(memory.data(), dtype, experts, rows, columns);
    return tensor_2d(memory.data(), dtype, rows, columns);
  }

  void give_output(DispatchInput& input) {
    input.output.tokens = output(out_tokens_, oracle::received_dtype(config_), config_.hidden);
    if (config_.scale_format != ScaleFormat::none) {
      const DType dtype = config_.scale_format == ScaleFormat::f32 ? DType::f32 : DType::i32;
      const auto items =
          static_cast<std::int64_t>(oracle::scale_row_bytes(config_.hidden, config_.scale_format) / size_of(dtype));
      input.output.scales = output(out_scales_, dtype, items);
    }
    for (std::size_t s = 0; s < kMaxSideTensors; ++s) {
      if (config_.side_bytes[s] > 0) input.output.side[s] = output(out_side_[s], DType::u8, config_.side_bytes[s]);
    }
  }

  void mutate(const oracle::DispatchExpectation& expected, DispatchResult& result) const {
    const std::size_t bytes = oracle::received_row_bytes(config_);
    if (expected.rows.empty()) return;
    std::byte* const first = result.tokens.data + idx(expected.rows.front().position) * bytes;
    if (mutant_ == Mutant::dropped_row) std::memset(first, 0, bytes);
    if (mutant_ == Mutant::swapped_rows && expected.rows.size() > 1) {
      std::swap_ranges(first, first + bytes, result.tokens.data + idx(expected.rows.back().position) * bytes);
    }
  }

  CombineInput answers_of(const oracle::DispatchExpectation& expected,
                          const DispatchResult& result,
                          const oracle::HomeInput& home,
                          std::int64_t tokens,
                          int call) {
    const bool is_padded = config_.layout == Layout::expert_padded;
    const std::int64_t rows = is_padded ? exchange_.capacity_rows() * exchange_.num_local_experts() : result.num_rows;
    const int columns = oracle::combine_columns(config_);
    const std::size_t row_bytes = answer_bytes(config_);
    rows_.resize(std::max<std::size_t>(1, idx(rows) * row_bytes));
    workload::fill_poison(rows_);  // padding must never be read
    lane_.assign(std::max<std::size_t>(1, idx(rows * config_.num_topk)), -1.0F);
    for (const oracle::ReceivedRow& row : expected.rows) {
      make_answer(one_,
                  seed_of_call(one_, call),
                  rank_,
                  row.position,
                  {rows_.data() + idx(row.position) * row_bytes, row_bytes});
      for (int k = 0; k < config_.num_topk; ++k) {
        lane_[idx(row.position * config_.num_topk + k)] = make_lane(rank_, row.position, k);
      }
    }
    CombineInput input;
    input.handle = result.handle;
    input.weighting = one_.weighting;
    input.rows = is_padded ? tensor_3d(std::as_const(rows_).data(),
                                       config_.combine_dtype,
                                       exchange_.num_local_experts(),
                                       exchange_.capacity_rows(),
                                       columns)
                           : tensor_2d(std::as_const(rows_).data(), config_.combine_dtype, rows, columns);
    if (one_.weighting == Weighting::given) give_weights(home, tokens, input);
    for (int b = 0; b < one_.num_bias; ++b) {
      input.bias[idx(b)] = tensor_2d(home.bias[idx(b)].data(), config_.combine_dtype, tokens, columns);
    }
    if (config_.combine_lane) input.lane = tensor_2d(std::as_const(lane_).data(), DType::f32, rows, config_.num_topk);
    if (one_.has_output) {
      out_combined_.resize(std::max<std::size_t>(1, idx(tokens) * row_bytes));
      workload::fill_poison(out_combined_);
      input.output = tensor_2d(out_combined_.data(), config_.combine_dtype, tokens, columns);
    }
    return input;
  }

  void give_weights(const oracle::HomeInput& home, std::int64_t tokens, CombineInput& input) {
    given_weights_ = home.topk_weights;
    const auto topk = static_cast<std::ptrdiff_t>(config_.num_topk);
    for (std::ptrdiff_t n = 0; mutant_ == Mutant::order && n < tokens; ++n) {
      std::reverse(given_weights_.begin() + n * topk, given_weights_.begin() + (n + 1) * topk);
    }
    input.topk_weights = tensor_2d(std::as_const(given_weights_).data(), DType::f32, tokens, config_.num_topk);
  }

  const CheckCase& one_;
  const ExchangeConfig& config_;
  Exchange& exchange_;
  int rank_;
  Mutant mutant_;
  std::vector<std::int64_t> reversed_idx_;
  std::vector<float> reversed_weights_;
  std::vector<float> given_weights_;
  std::vector<std::int32_t> short_ids_;
  std::vector<std::byte> gapped_;
  std::vector<std::byte> out_tokens_;
  std::vector<std::byte> out_scales_;
  std::array<std::vector<std::byte>, kMaxSideTensors> out_side_;
  std::vector<std::byte> out_combined_;
  std::vector<std::byte> rows_;
  std::vector<float> lane_;
};

// A check waits for nobody long: all ranks are here and have little to do.
GroupOptions check_group_options() {
  GroupOptions options;
  options.join_limit = std::chrono::seconds(30);
  options.arrival_limit = std::chrono::seconds(15);
  options.progress_limit = std::chrono::seconds(10);
  options.show_progress = false;
  return options;
}

std::string run_rank(const CheckCase& one, const std::vector<CallTruth>& truths, Mutant mutant, const Seat& seat) {
  const Group group = Group::join(seat.uri, seat.rank, seat.num_ranks, check_group_options());
  Exchange exchange(group, one.config);
  exchange.prepare();
  std::string first;
  for (int call = 0; call < one.num_calls; ++call) {
    CaseRank rank(one, exchange, seat.rank, mutant);
    const std::optional<std::string> difference = rank.run(truths[idx(call)], call);
    if (difference && first.empty()) first = *difference;
  }
  return first;
}

}  // namespace

std::optional<std::string> run_case(const CheckCase& given, Mutant mutant) {
  CheckCase one = given;
  if (mutant == Mutant::order) {
    // What else the order of choices shows in (lane, missing) would give the fault away too cheaply.
    one.config.combine_lane = false;
    one.config.capacity_rows = 0;
  }
  std::vector<CallTruth> truths;
  for (int call = 0; call < one.num_calls; ++call) truths.push_back(make_call_truth(one, call));
  const RankBody body = [&](const Seat& seat) { return run_rank(one, truths, mutant, seat); };
  const std::vector<std::string> texts =
      one.as_processes ? run_as_processes(one.num_ranks, body) : run_as_threads(one.num_ranks, body);
  for (const std::string& text : texts) {
    if (!text.empty()) return text;
  }
  return std::nullopt;
}

}  // namespace moebus::cli
