// Each argument of combine given wrongly on one rank: every rank gets the same error, and the group goes on.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "base/math.hpp"
#include "tests/support/exchange_run.hpp"
#include "tests/support/test_names.hpp"

namespace moebus::tests {
namespace {

using base::idx;
using ::testing::HasSubstr;

struct Fault {
  const char* name;
  std::function<void(CombineInput&)> make;
  std::vector<std::string> words;  ///< what the message must contain
};

/// Makes each fault on one rank of three, in one group; the same handle serves a right combine after each.
void expect_refused(const ExchangeCase& one, const std::vector<Fault>& faults) {
  const DispatchTruth good = make_dispatch_truth(one, 0);
  const CombineTruth back = make_combine_truth(one, good, 0);
  expect_ok(run_group(3, false, [&](Group& group) {
    ExchangeRun run(group, one);
    DispatchBuffers buffers;
    const DispatchResult result = run.dispatch(good, buffers);
    int turn = 0;
    for (const Fault& fault : faults) {
      SCOPED_TRACE(fault.name);
      const int origin = turn++ % 3;
      CombineBuffers answers;
      CombineInput input = run.answers(good, back, result.handle, answers);
      if (group.rank() == origin) fault.make(input);
      const std::string text = error_of(ErrorCode::invalid_argument, origin, [&] { run.exchange().combine(input); });
      for (const std::string& word : fault.words) EXPECT_THAT(text, HasSubstr(word));
      EXPECT_THAT(text, HasSubstr("combine"));
      if (group.rank() != origin) {
        EXPECT_THAT(text, HasSubstr("rank " + std::to_string(origin)));
      }
      run.combine(good, back, result.handle);
    }
    EXPECT_EQ(run.exchange().stats().combine.refused, faults.size());
  }));
}

struct Kind {
  Route route;
  Layout layout;
};

class CombineArguments : public ::testing::TestWithParam<Kind> {
 protected:
  static ExchangeCase make_case() {
    ExchangeCase one;
    one.num_ranks = 3;
    one.config = small_config(GetParam().route, 3);
    one.config.layout = GetParam().layout;
    one.config.combine_lane = true;
    one.config.combine_hidden = 40;
    set_route(one.config, GetParam().route, 3);
    one.num_tokens = {6, 7, 8};
    one.choose = [](int rank, std::int64_t token, int k) { return (rank + token * 5 + k * 3) % 16; };
    one.num_bias = 2;
    one.weighting = GetParam().layout == Layout::rank_major ? Weighting::none : Weighting::given;
    return one;
  }
};

TEST_P(CombineArguments, AreRefusedForWrongRows) {
  const auto rows = [](CombineInput& in) -> std::int64_t& { return in.rows.shape[idx(in.rows.num_dims - 2)]; };
  expect_refused(
      make_case(),
      {{"not given", [](CombineInput& in) { in.rows = {}; }, {"rows", "0 dimensions"}},
       {"dimensions", [](CombineInput& in) { in.rows.num_dims = 1; }, {"rows", "1 dimensions"}},
       {"type", [](CombineInput& in) { in.rows.dtype = DType::f16; }, {"rows", "f16", "bf16"}},
       {"device", [](CombineInput& in) { in.rows.memory = MemoryKind::device; }, {"rows", "device"}},
       {"columns", [](CombineInput& in) { in.rows.shape[idx(in.rows.num_dims - 1)] = 64; }, {"rows", "64", "40"}},
       {"too few", [&](CombineInput& in) { rows(in) -= 1; }, {"rows"}},
       {"null", [](CombineInput& in) { in.rows.data = nullptr; }, {"rows", "null"}},
       {"gaps", [](CombineInput& in) { in.rows.stride[idx(in.rows.num_dims - 1)] = 2; }, {"rows", "stride"}}});
}

TEST_P(CombineArguments, AreRefusedForAWrongHandle) {
  expect_refused(make_case(), {{"empty", [](CombineInput& in) { in.handle = {}; }, {"handle", "empty"}}});
}

TEST_P(CombineArguments, AreRefusedForAWrongWeighting) {
  if (GetParam().layout == Layout::rank_major) {
    static const std::vector<float> weights(64, 1.0F);
    expect_refused(
        make_case(),
        {{"given", [](CombineInput& in) { in.weighting = Weighting::given; }, {"weighting", "rank_major"}},
         {"dispatched", [](CombineInput& in) { in.weighting = Weighting::dispatched; }, {"weighting", "rank_major"}},
         {"weights",
          [](CombineInput& in) { in.topk_weights = tensor_2d(weights.data(), DType::f32, 6, 4); },
          {"topk_weights"}}});
    return;
  }
  expect_refused(
      make_case(),
      {{"not given", [](CombineInput& in) { in.topk_weights = {}; }, {"topk_weights", "given"}},
       {"none", [](CombineInput& in) { in.weighting = Weighting::none; }, {"topk_weights", "none"}},
       {"type", [](CombineInput& in) { in.topk_weights.dtype = DType::f16; }, {"topk_weights", "f16"}},
       {"rows", [](CombineInput& in) { in.topk_weights.shape[0] -= 1; }, {"topk_weights", "dimension 0"}},
       {"topk", [](CombineInput& in) { in.topk_weights.shape[1] = 1; }, {"topk_weights", "1", "4"}},
       {"null", [](CombineInput& in) { in.topk_weights.data = nullptr; }, {"topk_weights", "null"}},
       {"alignment", [](CombineInput& in) { in.topk_weights.data += 1; }, {"topk_weights", "multiple of 4"}}});
}

TEST_P(CombineArguments, AreRefusedForAWrongBias) {
  expect_refused(make_case(),
                 {{"second only", [](CombineInput& in) { in.bias[0] = {}; }, {"bias[1]", "bias[0]"}},
                  {"type", [](CombineInput& in) { in.bias[0].dtype = DType::f32; }, {"bias", "f32"}},
                  {"rows", [](CombineInput& in) { in.bias[1].shape[0] += 1; }, {"bias", "dimension 0"}},
                  {"columns", [](CombineInput& in) { in.bias[1].shape[1] = 39; }, {"bias", "39", "40"}},
                  {"null", [](CombineInput& in) { in.bias[0].data = nullptr; }, {"bias", "null"}},
                  {"stride", [](CombineInput& in) { in.bias[0].stride[0] = 4; }, {"bias", "stride"}}});
}

TEST_P(CombineArguments, AreRefusedForAWrongLane) {
  expect_refused(make_case(),
                 {{"type", [](CombineInput& in) { in.lane.dtype = DType::i32; }, {"lane", "i32"}},
                  {"rows", [](CombineInput& in) { in.lane.shape[0] = 0; }, {"lane", "0 rows"}},
                  {"topk", [](CombineInput& in) { in.lane.shape[1] = 3; }, {"lane", "3", "4"}},
                  {"null", [](CombineInput& in) { in.lane.data = nullptr; }, {"lane", "null"}}});
}

TEST_P(CombineArguments, AreRefusedForAWrongOutput) {
  ExchangeCase one = make_case();
  one.config.caller_results = GetParam().route != Route::direct;
  one.has_output = GetParam().route != Route::direct;
  static std::vector<std::byte> memory(16 * 40 * 2);
  const auto give = [](CombineInput& in) {
    const std::int64_t tokens = in.bias[0].shape[0];
    in.output = tensor_2d(memory.data(), DType::bf16, tokens, 40);
  };
  std::vector<Fault> faults{{"type",
                             [&](CombineInput& in) {
                               give(in);
                               in.output.dtype = DType::f32;
                             },
                             {"output", "f32"}},
                            {"rows",
                             [&](CombineInput& in) {
                               give(in);
                               in.output.shape[0] += 1;
                             },
                             {"output", "dimension 0"}},
                            {"columns",
                             [&](CombineInput& in) {
                               give(in);
                               in.output.shape[1] = 41;
                             },
                             {"output", "41", "40"}},
                            {"null",
                             [&](CombineInput& in) {
                               give(in);
                               in.output.data = nullptr;
                             },
                             {"output", "null"}}};
  if (one.config.caller_results) {
    faults.push_back({"not given", [](CombineInput& in) { in.output = {}; }, {"output", "caller_results"}});
  }
  expect_refused(one, faults);
}

std::string name_of_case(const ::testing::TestParamInfo<Kind>& info) {
  return name_of(info.param.route) + name_of(info.param.layout);
}

std::vector<Kind> all_kinds() {
  std::vector<Kind> kinds;
  for (const Route route : kRoutes) {
    for (const Layout layout : kLayouts) kinds.push_back({route, layout});
  }
  return kinds;
}

INSTANTIATE_TEST_SUITE_P(Every, CombineArguments, ::testing::ValuesIn(all_kinds()), name_of_case);

TEST(Combine, RefusesWeightsThatWereNotDispatched) {
  ExchangeCase one;
  one.num_ranks = 2;
  one.config = small_config();
  one.config.layout = Layout::expert_major;
  one.has_weights = false;
  one.num_tokens = {8, 8};
  const DispatchTruth good = make_dispatch_truth(one, 0);
  const CombineTruth back = make_combine_truth(one, good, 0);
  expect_ok(run_group(2, false, [&](Group& group) {
    ExchangeRun run(group, one);
    DispatchBuffers buffers;
    const DispatchResult result = run.dispatch(good, buffers);
    CombineBuffers answers;
    CombineInput input = run.answers(good, back, result.handle, answers);
    input.weighting = Weighting::dispatched;
    const std::string text =
        error_of(ErrorCode::invalid_argument, group.rank(), [&] { run.exchange().combine(input); });
    EXPECT_THAT(text, ::testing::AllOf(HasSubstr("weighting"), HasSubstr("topk_weights")));
    run.combine(good, back, result.handle);
  }));
}

TEST(Combine, RefusesTheHandleOfAnotherExchange) {
  ExchangeCase one;
  one.num_ranks = 2;
  one.config = small_config();
  ExchangeCase other = one;
  other.config.num_topk = 2;
  const DispatchTruth good = make_dispatch_truth(one, 0);
  const DispatchTruth strange = make_dispatch_truth(other, 0);
  const CombineTruth back = make_combine_truth(one, good, 0);
  expect_ok(run_group(2, false, [&](Group& group) {
    ExchangeRun run(group, one);
    ExchangeRun stranger(group, other);
    DispatchBuffers buffers;
    DispatchResult theirs = stranger.dispatch(strange, buffers);
    theirs.release();
    DispatchResult ours = run.dispatch(good, buffers);
    CombineBuffers answers;
    CombineInput input = run.answers(good, back, ours.handle, answers);
    if (group.rank() == 1) input.handle = theirs.handle;
    const std::string text = error_of(ErrorCode::invalid_argument, 1, [&] { run.exchange().combine(input); });
    EXPECT_THAT(text, ::testing::AllOf(HasSubstr("handle"), HasSubstr("another exchange")));
    run.combine(good, back, ours.handle);
  }));
}

TEST(Combine, EndsWithAnErrorOnEveryRankIfRanksGiveHandlesOfDifferentDispatches) {
  ExchangeCase one;
  one.num_ranks = 2;
  one.config = small_config();
  one.num_tokens = {4, 4};
  const DispatchTruth good = make_dispatch_truth(one, 0);
  const CombineTruth back = make_combine_truth(one, good, 0);
  expect_ok(run_group(2, false, [&](Group& group) {
    ExchangeRun run(group, one);
    DispatchBuffers buffers;
    DispatchResult first = run.dispatch(good, buffers);
    first.release();
    DispatchResult second = run.dispatch(good, buffers);
    CombineBuffers answers;
    const CombineInput input = run.answers(good, back, group.rank() == 0 ? first.handle : second.handle, answers);
    EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { run.exchange().combine(input); }),
                HasSubstr("handles of different dispatches"));
  }));
}

TEST(Combine, RefusesALaneThatTheConfigurationLacks) {
  ExchangeCase one;
  one.num_ranks = 2;
  one.config = small_config();
  one.num_tokens = {4, 4};
  const DispatchTruth good = make_dispatch_truth(one, 0);
  const CombineTruth back = make_combine_truth(one, good, 0);
  expect_ok(run_group(2, false, [&](Group& group) {
    ExchangeRun run(group, one);
    DispatchBuffers buffers;
    const DispatchResult result = run.dispatch(good, buffers);
    CombineBuffers answers;
    CombineInput input = run.answers(good, back, result.handle, answers);
    const std::vector<float> lane(64 * 4, 0.0F);
    if (group.rank() == 0) input.lane = tensor_2d(lane.data(), DType::f32, 64, 4);
    const std::string text = error_of(ErrorCode::invalid_argument, 0, [&] { run.exchange().combine(input); });
    EXPECT_THAT(text, HasSubstr("combine_lane"));
    run.combine(good, back, result.handle);
  }));
}

}  // namespace
}  // namespace moebus::tests
