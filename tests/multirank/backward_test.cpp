// Gradients of combine and dispatch: every byte compared with the oracle, over layouts, paths, nodes, placements,
// drops. MOEBUS_TEST_SEED=N runs as many others.

#include "oracle/backward.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/math.hpp"
#include "oracle/compare.hpp"
#include "tests/support/exchange_run.hpp"
#include "workload/data.hpp"
#include "workload/random.hpp"

namespace moebus::tests {
namespace {

using base::idx;
using ::testing::HasSubstr;
using workload::seed_from;

std::size_t row_bytes_of(const ExchangeConfig& config) {
  return idx(oracle::combine_columns(config)) * size_of(config.combine_dtype);
}

/// Both gradients of one dispatch and combine, over all ranks.
struct GradientTruth {
  std::uint64_t seed = 0;                            ///< of the gradients of dispatched rows, as fill_answer makes them
  std::vector<std::vector<std::byte>> grad_tokens;   // [ranks]
  std::vector<oracle::CombineGradient> combine;      // [ranks] owners
  std::vector<oracle::CombineExpectation> dispatch;  // [ranks] homes
};

oracle::ExpertRowSource answers_of(const ExchangeConfig& config, std::uint64_t seed, std::vector<std::byte>& row) {
  return [&config, seed, &row](int owner, const oracle::ReceivedRow& received) -> std::span<const std::byte> {
    fill_answer(config, seed, owner, received.position, row);
    return row;
  };
}

GradientTruth make_gradient_truth(const ExchangeCase& one,
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
void check(const ExchangeConfig& config,
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
void fit_for_gradients(ExchangeCase& one, Route route) {
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
void run_all(ExchangeRun& run, Exchange& gradients, const Prepared& prepared) {
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

struct Batch {
  int num_ranks;
  Route route;
};

std::string name_of(const ::testing::TestParamInfo<Batch>& info) {
  const char* const names[] = {"Latency", "Direct", "Staged"};
  return names[static_cast<int>(info.param.route)] + std::to_string(info.param.num_ranks) + "Ranks";
}

class Backward : public ::testing::TestWithParam<Batch> {
 protected:
  static void run_cases(bool as_processes, int num_cases) {
    const auto [num_ranks, route] = GetParam();
    const std::uint64_t base = seed_from(first_seed(),
                                         static_cast<std::uint64_t>(num_ranks) + 500,
                                         static_cast<std::uint64_t>(route) * 2 + (as_processes ? 1 : 0));
    for (int i = 0; i < num_cases; ++i) {
      ExchangeCase one = random_group_case(seed_from(base, static_cast<std::uint64_t>(i)), num_ranks, route);
      one.as_processes = as_processes;
      fit_for_gradients(one, route);
      const Prepared prepared(std::move(one), 2);
      const auto outcomes = run_group(prepared.one, [&](Group& group) {
        ExchangeRun run(group, prepared.one);
        run_all(run, run.exchange(), prepared);
      });
      ASSERT_TRUE(all_ok(outcomes)) << describe(prepared.one) << "\nMOEBUS_TEST_SEED=" << first_seed() << ", case "
                                    << i;
    }
  }
};

TEST_P(Backward, GivesTheOraclesGradientsToThreads) { run_cases(false, 60 / kSlowdown); }

TEST_P(Backward, GivesTheOraclesGradientsToProcesses) { run_cases(true, kSlowdown > 1 ? 2 : 8); }

std::vector<Batch> all_batches() {
  std::vector<Batch> batches;
  for (const int num_ranks : {1, 2, 3, 4, 7}) {
    for (const Route route : kRoutes) batches.push_back({num_ranks, route});
  }
  return batches;
}

INSTANTIATE_TEST_SUITE_P(Random, Backward, ::testing::ValuesIn(all_batches()), name_of);

/// Three ranks, experts' rows grouped, weights dispatched.
ExchangeCase plain_case(Layout layout = Layout::expert_major, Route route = Route::latency) {
  ExchangeCase one;
  one.seed = 31;
  one.num_ranks = 3;
  one.config = small_config(route, one.num_ranks);
  one.config.layout = layout;
  one.config.combine_lane = true;
  one.weighting = layout == Layout::rank_major ? Weighting::none : Weighting::dispatched;
  return one;
}

TEST(Gradients, AddARowOnceThatTwoChoicesName) {
  ExchangeCase one = plain_case();
  one.choose = [](int rank, std::int64_t token, int choice) { return (rank + token + choice / 2) % 16; };
  for (const CombineRows rows : {CombineRows::per_rank, CombineRows::per_expert}) {
    for (const Weighting weighting : {Weighting::none, Weighting::dispatched}) {
      one.config.combine_rows = rows;
      one.weighting = weighting;
      const Prepared prepared(one, 1);
      expect_ok(run_group(prepared.one, [&](Group& group) {
        ExchangeRun run(group, prepared.one);
        run_all(run, run.exchange(), prepared);
      }));
    }
  }
}

/// The exchange for gradients of a forward one that casts: another type, the same plans.
ExchangeConfig gradient_config(const ExchangeConfig& forward) {
  ExchangeConfig config = forward;
  config.cast = Cast::none;
  config.scale_format = ScaleFormat::none;
  config.context = 1;
  return config;
}

TEST(Gradients, GoThroughAnExchangeOfTheirOwnInAnotherContextWhenTheForwardOneCasts) {
  ExchangeCase one = plain_case();
  one.config.cast = Cast::fp8;
  one.config.scale_format = ScaleFormat::f32;
  const Prepared prepared(one, 2);
  expect_ok(run_group(prepared.one, [&](Group& group) {
    ExchangeRun run(group, prepared.one);
    Exchange gradients(group, gradient_config(prepared.one.config));
    gradients.prepare();
    BackwardRun backward(run, gradients, prepared.one);
    // All forward passes first, as layers do; backward in reverse, while the last result is still held.
    std::vector<DispatchResult> results(2);
    for (const std::size_t call : {0U, 1U}) {
      DispatchBuffers buffers;
      results[call] = run.dispatch(prepared.dispatched[call], buffers);
      run.combine(prepared.dispatched[call], prepared.combined[call], results[call].handle);
      if (call == 0) results[call].release();
    }
    for (const std::size_t call : {1U, 0U}) {
      backward.once(prepared.dispatched[call], prepared.combined[call], prepared.gradients[call], results[call].handle);
    }
    const std::string text = error_of(ErrorCode::invalid_argument, group.rank(), [&] {
      CombineGradInput input;
      input.handle = results[0].handle;
      run.exchange().combine_backward(input);
    });
    EXPECT_THAT(text, HasSubstr("second exchange"));
  }));
}

/// One dispatch, then wrong backward calls, each refused on every rank, then right ones.
class Refusals {
 public:
  Refusals(Group& group, ExchangeRun& run, const Prepared& prepared) : group_(group), run_(run), prepared_(prepared) {
    DispatchBuffers buffers;
    DispatchResult result = run.dispatch(prepared.dispatched[0], buffers);
    handle_ = result.handle;
    const int columns = prepared.one.config.hidden;
    const auto& given = prepared.gradients[0].grad_tokens[idx(group.rank())];
    input_.grad_tokens = tensor_2d(given.data(),
                                   prepared.one.config.combine_dtype,
                                   (*prepared.dispatched[0].inputs)[idx(group.rank())].num_tokens,
                                   columns);
    input_.handle = handle_;
    input_.weighting = prepared.one.weighting;
  }

  /// Only rank 1 is wrong; `spoil` makes it so. Returns what this rank is told.
  template <class Spoil>
  std::string of_combine(const Spoil& spoil, ErrorCode code = ErrorCode::invalid_argument) {
    CombineGradInput input = input_;
    if (group_.rank() == 1) spoil(input);
    return error_of(code, 1, [&] { run_.exchange().combine_backward(input); });
  }

  template <class Spoil>
  std::string of_dispatch(const Spoil& spoil) {
    std::vector<std::byte> rows(idx(run_.exchange().capacity_rows()) * row_bytes_of(prepared_.one.config));
    DispatchGradInput input;
    input.grad_rows = tensor_2d(static_cast<const std::byte*>(rows.data()),
                                prepared_.one.config.combine_dtype,
                                run_.exchange().capacity_rows(),
                                prepared_.one.config.hidden);
    input.handle = handle_;
    if (group_.rank() == 1) spoil(input);
    return error_of(ErrorCode::invalid_argument, 1, [&] { run_.exchange().dispatch_backward(input); });
  }

  void expect_whole() {
    BackwardRun backward(run_, run_.exchange(), prepared_.one);
    backward.once(prepared_.dispatched[0], prepared_.combined[0], prepared_.gradients[0], handle_);
  }

  [[nodiscard]] const DispatchHandle& handle() const noexcept { return handle_; }

 private:
  Group& group_;
  ExchangeRun& run_;
  const Prepared& prepared_;
  DispatchHandle handle_;
  CombineGradInput input_;
};

TEST(Gradients, AreRefusedOnAllRanksForArgumentsOfOne) {
  ExchangeCase one = plain_case();
  one.num_tokens = {5, 7, 0};
  const Prepared prepared(one, 1);
  expect_ok(run_group(prepared.one, [&](Group& group) {
    ExchangeRun run(group, prepared.one);
    Refusals refused(group, run, prepared);
    const float lane[4] = {};
    EXPECT_THAT(refused.of_combine([](CombineGradInput& input) { input.handle = {}; }), HasSubstr("handle is empty"));
    EXPECT_THAT(refused.of_combine([](CombineGradInput& input) { --input.grad_tokens.shape[0]; }),
                HasSubstr("grad_tokens has shape [6, 64]; dimension 0 must be 7"));
    EXPECT_THAT(refused.of_combine([](CombineGradInput& input) { input.weighting = Weighting::given; }),
                HasSubstr("give topk_weights to dispatch"));
    EXPECT_THAT(refused.of_combine([](CombineGradInput& input) {
      input.rows = tensor_2d(input.grad_tokens.data, DType::bf16, 0, 64);
    }),
                HasSubstr("rows has 0 rows"));
    EXPECT_THAT(refused.of_combine([](CombineGradInput& input) { input.grad_tokens.dtype = DType::f32; }),
                HasSubstr("configured for bf16"));
    EXPECT_THAT(refused.of_dispatch([](DispatchGradInput& input) { input.handle = {}; }), HasSubstr("handle is empty"));
    EXPECT_THAT(refused.of_dispatch([](DispatchGradInput& input) { input.grad_rows.shape[0] = 1; }),
                HasSubstr("grad_rows has 1 rows"));
    EXPECT_THAT(refused.of_dispatch([&](DispatchGradInput& input) { input.lane = tensor_2d(lane, DType::f32, 1, 4); }),
                HasSubstr("lane has 1 rows"));
    refused.expect_whole();
  }));
}

TEST(Gradients, NeedMemoryThatNobodyHolds) {
  const Prepared prepared(plain_case(Layout::expert_major, Route::direct), 2);
  expect_ok(run_group(prepared.one, [&](Group& group) {
    ExchangeRun run(group, prepared.one);
    Refusals refused(group, run, prepared);
    DispatchResult held;
    {
      DispatchBuffers buffers;
      held = run.dispatch(prepared.dispatched[1], buffers);
      if (group.rank() != 1) held.release();
    }
    EXPECT_THAT(refused.of_combine([](CombineGradInput&) {}, ErrorCode::resource_exhausted), HasSubstr("release()"));
    held.release();
    refused.expect_whole();
  }));
}

TEST(Gradients, OfRankMajorRowsLeaveWeightsToTheCaller) {
  const Prepared prepared(plain_case(Layout::rank_major), 1);
  expect_ok(run_group(prepared.one, [&](Group& group) {
    ExchangeRun run(group, prepared.one);
    Refusals refused(group, run, prepared);
    EXPECT_THAT(refused.of_combine([](CombineGradInput& input) { input.weighting = Weighting::dispatched; }),
                HasSubstr("rank_major"));
    refused.expect_whole();
  }));
}

TEST(Gradients, AreRefusedForAHandleOfAnotherPlan) {
  const Prepared prepared(plain_case(), 1);
  ExchangeConfig other = prepared.one.config;
  other.num_experts = 17;
  expect_ok(run_group(prepared.one, [&](Group& group) {
    ExchangeRun run(group, prepared.one);
    Exchange stranger(group, other);
    stranger.prepare();
    Refusals refused(group, run, prepared);
    DispatchBuffers buffers;
    const DispatchHandle strange = stranger.dispatch(run.input(prepared.dispatched[0], buffers)).handle;
    EXPECT_THAT(refused.of_combine([&](CombineGradInput& input) { input.handle = strange; }),
                HasSubstr("another plan"));
    EXPECT_THAT(refused.of_dispatch([&](DispatchGradInput& input) { input.handle = strange; }),
                HasSubstr("another plan"));
    refused.expect_whole();
  }));
}

TEST(Gradients, OfCombineAreRefusedAfterThePlacementChanged) {
  ExchangeCase one = plain_case();
  one.config.seats_per_rank = 6;
  const Prepared prepared(one, 1);
  Placement moved;
  for (int seat = 0; seat < 18; ++seat) moved.experts.push_back(seat < 16 ? 15 - seat : -1);
  expect_ok(run_group(prepared.one, [&](Group& group) {
    ExchangeRun run(group, prepared.one);
    Refusals refused(group, run, prepared);
    refused.expect_whole();
    run.exchange().set_placement(moved);
    // Found by every rank for itself.
    CombineGradInput input;
    input.handle = refused.handle();
    const std::string text =
        error_of(ErrorCode::invalid_argument, group.rank(), [&] { run.exchange().combine_backward(input); });
    EXPECT_THAT(text, HasSubstr("stale"));
  }));
}

TEST(Gradients, DoNotMatchAForwardCall) {
  const Prepared prepared(plain_case(), 1);
  const auto outcomes = run_group(prepared.one, [&](Group& group) {
    ExchangeRun run(group, prepared.one);
    Refusals refused(group, run, prepared);
    DispatchInput cached;
    CombineGradInput input;
    const auto& given = prepared.gradients[0].grad_tokens[idx(group.rank())];
    input.grad_tokens = cached.tokens =
        tensor_2d(given.data(), DType::bf16, (*prepared.dispatched[0].inputs)[idx(group.rank())].num_tokens, 64);
    input.handle = cached.handle = refused.handle();
    if (group.rank() == 1) {
      run.exchange().dispatch(cached);
    } else {
      run.exchange().combine_backward(input);
    }
  });
  for (const RankOutcome& outcome : outcomes) {
    EXPECT_FALSE(outcome.is_ok());
    EXPECT_THAT(outcome.message, HasSubstr("different"));
  }
}

}  // namespace
}  // namespace moebus::tests
