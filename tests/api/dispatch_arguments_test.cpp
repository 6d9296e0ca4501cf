// Each argument of dispatch given wrongly on one rank: every rank gets the same error, and the group goes on.

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
  std::function<void(DispatchInput&)> make;
  std::vector<std::string> words;  ///< what the message must contain
};

/// Makes each fault on one rank of three, in one group, with a right exchange after each.
void expect_refused(const ExchangeCase& one, const std::vector<Fault>& faults) {
  const DispatchTruth good = make_dispatch_truth(one, 0);
  const CombineTruth back = make_combine_truth(one, good, 0);
  expect_ok(run_group(3, false, [&](Group& group) {
    ExchangeRun run(group, one);
    int turn = 0;
    for (const Fault& fault : faults) {
      SCOPED_TRACE(fault.name);
      const int origin = turn++ % 3;
      DispatchBuffers buffers;
      DispatchInput input = run.input(good, buffers);
      if (group.rank() == origin) fault.make(input);
      const std::string text = error_of(ErrorCode::invalid_argument, origin, [&] { run.exchange().dispatch(input); });
      for (const std::string& word : fault.words) EXPECT_THAT(text, HasSubstr(word));
      EXPECT_THAT(text, HasSubstr("dispatch"));
      if (group.rank() != origin) {
        EXPECT_THAT(text, HasSubstr("rank " + std::to_string(origin)));
      }
      run.exchange_once(good, back);
    }
    EXPECT_EQ(run.exchange().stats().dispatch.refused, faults.size());
  }));
}

ExchangeCase plain_case(Route route) {
  ExchangeCase one;
  one.num_ranks = 3;
  one.config = small_config(route, 3);
  one.num_tokens = {5, 6, 7};
  return one;
}

class DispatchArguments : public ::testing::TestWithParam<Route> {};

TEST_P(DispatchArguments, AreRefusedForWrongTokens) {
  expect_refused(
      plain_case(GetParam()),
      {{"not given", [](DispatchInput& in) { in.tokens = {}; }, {"tokens", "not given"}},
       {"one dimension", [](DispatchInput& in) { in.tokens.num_dims = 1; }, {"tokens", "1 dimensions", "2"}},
       {"type", [](DispatchInput& in) { in.tokens.dtype = DType::f32; }, {"tokens", "f32", "bf16"}},
       {"device", [](DispatchInput& in) { in.tokens.memory = MemoryKind::device; }, {"tokens", "device", "host"}},
       {"hidden", [](DispatchInput& in) { in.tokens.shape[1] = 63; }, {"tokens", "63", "64"}},
       {"null", [](DispatchInput& in) { in.tokens.data = nullptr; }, {"tokens", "null"}},
       {"negative rows", [](DispatchInput& in) { in.tokens.shape[0] = -1; }, {"tokens", "-1"}},
       {"too many rows",
        [](DispatchInput& in) { in.tokens.shape[0] = 17; },
        {"tokens", "17", "16", "max_tokens_per_rank"}},
       {"overlapping rows", [](DispatchInput& in) { in.tokens.stride[0] = 10; }, {"tokens", "stride", "10", "64"}},
       {"gaps in rows", [](DispatchInput& in) { in.tokens.stride[1] = 2; }, {"tokens", "stride", "contiguous"}}});
}

TEST_P(DispatchArguments, AreRefusedForWrongIds) {
  static std::vector<std::int64_t> wrong(7 * 4, 3);
  wrong[2 * 4 + 1] = 16;
  const auto give = [](DispatchInput& in) {
    in.topk_idx = tensor_2d(std::as_const(wrong).data(), DType::i64, in.tokens.shape[0], 4);
  };
  expect_refused(
      plain_case(GetParam()),
      {{"not given", [](DispatchInput& in) { in.topk_idx = {}; }, {"topk_idx"}},
       {"type", [](DispatchInput& in) { in.topk_idx.dtype = DType::i16; }, {"topk_idx", "i16"}},
       {"rows", [](DispatchInput& in) { in.topk_idx.shape[0] += 1; }, {"topk_idx", "dimension 0"}},
       {"topk", [](DispatchInput& in) { in.topk_idx.shape[1] = 3; }, {"topk_idx", "3", "4"}},
       {"device", [](DispatchInput& in) { in.topk_idx.memory = MemoryKind::device; }, {"topk_idx", "device"}},
       {"null", [](DispatchInput& in) { in.topk_idx.data = nullptr; }, {"topk_idx", "null"}},
       {"stride", [](DispatchInput& in) { in.topk_idx.stride[0] = 8; }, {"topk_idx", "stride"}},
       {"alignment", [](DispatchInput& in) { in.topk_idx.data += 1; }, {"topk_idx", "multiple of 8"}},
       {"value", give, {"topk_idx", "token 2", "choice 1", "16", "0 to 15"}}});
}

TEST_P(DispatchArguments, AreRefusedForWrongWeights) {
  expect_refused(
      plain_case(GetParam()),
      {{"type", [](DispatchInput& in) { in.topk_weights.dtype = DType::bf16; }, {"topk_weights", "bf16", "f32"}},
       {"rows", [](DispatchInput& in) { in.topk_weights.shape[0] -= 1; }, {"topk_weights", "dimension 0"}},
       {"topk", [](DispatchInput& in) { in.topk_weights.shape[1] = 5; }, {"topk_weights", "5", "4"}},
       {"null", [](DispatchInput& in) { in.topk_weights.data = nullptr; }, {"topk_weights", "null"}},
       {"alignment", [](DispatchInput& in) { in.topk_weights.data += 2; }, {"topk_weights", "multiple of 4"}},
       {"device", [](DispatchInput& in) { in.topk_weights.memory = MemoryKind::device; }, {"topk_weights", "device"}}});
}

TEST_P(DispatchArguments, AreRefusedForWrongScales) {
  ExchangeCase one = plain_case(GetParam());
  one.config.dtype = DType::e4m3;
  one.config.hidden = 300;
  one.config.scale_format = ScaleFormat::f32;
  set_route(one.config, GetParam(), 3);
  expect_refused(one,
                 {{"not given", [](DispatchInput& in) { in.scales = {}; }, {"scales", "not given", "f32"}},
                  {"other format", [](DispatchInput& in) { in.scales.dtype = DType::i32; }, {"scales", "i32", "f32"}},
                  {"blocks", [](DispatchInput& in) { in.scales.shape[1] = 2; }, {"scales", "2", "3"}},
                  {"rows", [](DispatchInput& in) { in.scales.shape[0] += 1; }, {"scales", "dimension 0"}},
                  {"null", [](DispatchInput& in) { in.scales.data = nullptr; }, {"scales", "null"}},
                  {"dimensions", [](DispatchInput& in) { in.scales.num_dims = 1; }, {"scales", "1 dimensions"}}});
}

TEST_P(DispatchArguments, AreRefusedForScalesThatNobodyAskedFor) {
  static const std::vector<float> scales(64, 1.0F);
  const auto give = [](DispatchInput& in) { in.scales = tensor_2d(scales.data(), DType::f32, in.tokens.shape[0], 1); };
  expect_refused(plain_case(GetParam()), {{"given", give, {"scales", "given", "none"}}});
}

TEST_P(DispatchArguments, AreRefusedForWrongSides) {
  ExchangeCase one = plain_case(GetParam());
  one.config.side_bytes = {12, 0};
  set_route(one.config, GetParam(), 3);
  const auto swap = [](DispatchInput& in) { std::swap(in.side[0], in.side[1]); };
  const auto second = [](DispatchInput& in) { in.side[1] = in.side[0]; };
  expect_refused(one,
                 {{"not given", [](DispatchInput& in) { in.side[0] = {}; }, {"side[0]", "12"}},
                  {"in the wrong place", swap, {"side[0]"}},
                  {"one too many", second, {"side[1]", "0"}},
                  {"type", [](DispatchInput& in) { in.side[0].dtype = DType::i8; }, {"side[0]", "i8", "u8"}},
                  {"bytes", [](DispatchInput& in) { in.side[0].shape[1] = 11; }, {"side[0]", "11", "12"}},
                  {"rows", [](DispatchInput& in) { in.side[0].shape[0] = 1; }, {"side[0]", "dimension 0"}},
                  {"null", [](DispatchInput& in) { in.side[0].data = nullptr; }, {"side[0]", "null"}}});
}

INSTANTIATE_TEST_SUITE_P(Every, DispatchArguments, ::testing::ValuesIn(kRoutes), name_of_route_case);

ExchangeCase output_case(Layout layout, Route route) {
  ExchangeCase one = plain_case(route);
  one.config.layout = layout;
  one.config.cast = Cast::fp8;
  one.config.scale_format = ScaleFormat::f32;
  one.config.side_bytes = {4, 0};
  one.config.caller_results = true;
  set_route(one.config, route, 3);
  one.has_output = true;
  return one;
}

TEST(DispatchOutputs, AreRefusedIfTheyDoNotFit) {
  for (const Route route : {Route::latency, Route::staged}) {
    for (const Layout layout : kLayouts) {
      const auto outer = [](TensorView& view) { view.shape[idx(view.num_dims - 2)] -= 1; };
      const auto inner = [](TensorView& view) { view.shape[idx(view.num_dims - 1)] += 1; };
      expect_refused(
          output_case(layout, route),
          {{"not given", [](DispatchInput& in) { in.output = {}; }, {"output.tokens", "caller_results"}},
           {"rows", [&](DispatchInput& in) { outer(in.output.tokens); }, {"output.tokens", "dimension"}},
           {"columns", [&](DispatchInput& in) { inner(in.output.tokens); }, {"output.tokens", "65", "64"}},
           {"type", [](DispatchInput& in) { in.output.tokens.dtype = DType::bf16; }, {"output.tokens", "bf16", "e4m3"}},
           {"null", [](DispatchInput& in) { in.output.tokens.data = nullptr; }, {"output.tokens", "null"}},
           {"dimensions", [](DispatchInput& in) { in.output.tokens.num_dims = 1; }, {"output.tokens", "1 dimensions"}},
           {"device",
            [](DispatchInput& in) { in.output.tokens.memory = MemoryKind::device; },
            {"output.tokens", "device"}},
           {"no scales", [](DispatchInput& in) { in.output.scales = {}; }, {"output.scales"}},
           {"scale type", [](DispatchInput& in) { in.output.scales.dtype = DType::i32; }, {"output.scales", "i32"}},
           {"scale rows", [&](DispatchInput& in) { outer(in.output.scales); }, {"output.scales", "dimension"}},
           {"no side", [](DispatchInput& in) { in.output.side[0] = {}; }, {"output.side"}},
           {"side bytes", [&](DispatchInput& in) { inner(in.output.side[0]); }, {"output.side", "5", "4"}}});
    }
  }
}

TEST(DispatchOutputs, AreRefusedWithDirectDelivery) {
  static std::vector<std::byte> memory(3 * 16 * 64 * 2);
  const auto give = [](DispatchInput& in) { in.output.tokens = tensor_2d(memory.data(), DType::bf16, 48, 64); };
  expect_refused(plain_case(Route::direct), {{"given", give, {"output.tokens", "direct", "staged"}}});
}

TEST(Dispatch, SaysThatPrepareIsMissing) {
  expect_ok(run_group(2, false, [](Group& group) {
    Exchange exchange(group, small_config());
    const std::string text = error_of(ErrorCode::invalid_argument, group.rank(), [&] { exchange.dispatch({}); });
    EXPECT_THAT(text, HasSubstr("prepare()"));
  }));
}

TEST(Refusals, OfSeveralRanksAtOnceLeaveTheGroupWhole) {
  const ExchangeCase one = plain_case(Route::latency);
  const DispatchTruth good = make_dispatch_truth(one, 0);
  const CombineTruth back = make_combine_truth(one, good, 0);
  expect_ok(run_group(3, true, [&](Group& group) {
    ExchangeRun run(group, one);
    for (int turn = 0; turn < 5; ++turn) {
      DispatchBuffers buffers;
      DispatchInput input = run.input(good, buffers);
      if (group.rank() != 1) input.tokens = {};
      EXPECT_THROW(run.exchange().dispatch(input), Error);
      run.exchange_once(good, back);
    }
  }));
}

}  // namespace
}  // namespace moebus::tests
