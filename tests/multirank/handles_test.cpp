// Handles used again: a cached dispatch goes the way of the first one, bit for bit, without tables; many are alive at
// once; those that do not fit are refused on every rank.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/math.hpp"
#include "tests/support/exchange_run.hpp"
#include "tests/support/test_names.hpp"
#include "workload/random.hpp"

namespace moebus::tests {
namespace {

using base::idx;
using ::testing::HasSubstr;

ExchangeCase plain_case(Route route, Layout layout) {
  ExchangeCase one;
  one.seed = 61;
  one.num_ranks = 3;
  one.config = small_config(route, one.num_ranks);
  one.config.layout = layout;
  one.config.max_handles = 4;
  return one;
}

/// Everything of a result that a caller can see, as bytes.
std::vector<std::byte> bytes_of(const DispatchResult& result) {
  std::vector<std::byte> bytes;
  const auto add = [&](const ConstTensorView& tensor) {
    const std::size_t size = idx(tensor.num_elements()) * size_of(tensor.dtype);
    bytes.insert(bytes.end(), tensor.data, tensor.data + size);
  };
  for (const ConstTensorView& tensor : {ConstTensorView(result.tokens),
                                        result.topk_idx,
                                        result.topk_weights,
                                        result.src_rank,
                                        result.src_token,
                                        result.counts,
                                        result.wanted,
                                        result.offsets,
                                        result.rank_counts}) {
    add(tensor);
  }
  return bytes;
}

DispatchInput cached(DispatchInput input, const DispatchHandle& handle) {
  input.topk_idx = {};
  input.topk_weights = {};
  input.handle = handle;
  return input;
}

struct Kind {
  Route route;
  Layout layout;
};

class Handles : public ::testing::TestWithParam<Kind> {
 protected:
  static ExchangeCase plain() { return plain_case(GetParam().route, GetParam().layout); }
};

TEST_P(Handles, SendRowsAgainBitForBitWithoutTables) {
  ExchangeCase one = plain();
  one.num_tokens = {5, 16, 9};
  one.config.zero_padding = true;  // so that whole results can be compared
  const DispatchTruth truth = make_dispatch_truth(one, 0);
  expect_ok(run_group(one, [&](Group& group) {
    ExchangeRun run(group, one);
    DispatchBuffers buffers;
    DispatchResult first = run.dispatch(truth, buffers);
    const std::vector<std::byte> expected = bytes_of(first);
    const std::uint64_t with_tables = run.exchange().stats().dispatch.bytes_control;
    for (int turn = 0; turn < 2; ++turn) {
      poison_rows(first);
      first.release();
      run.exchange().reset_stats();
      first = run.exchange().dispatch(cached(run.input(truth, buffers), first.handle));
      EXPECT_EQ(bytes_of(first), expected);
      EXPECT_LT(run.exchange().stats().dispatch.bytes_control, with_tables);
    }
  }));
}

TEST_P(Handles, StayApartWhenSeveralAreAliveAndUsedInAnyOrder) {
  constexpr int kNumHandles = 3;
  const ExchangeCase one = plain();
  std::vector<DispatchTruth> dispatched;
  std::vector<CombineTruth> combined;
  for (int call = 0; call < kNumHandles; ++call) {
    dispatched.push_back(make_dispatch_truth(one, call));
    combined.push_back(make_combine_truth(one, dispatched.back(), call));
  }
  expect_ok(run_group(one, [&](Group& group) {
    ExchangeRun run(group, one);
    std::vector<DispatchHandle> handles;
    DispatchBuffers buffers;
    for (const DispatchTruth& truth : dispatched) handles.push_back(run.dispatch(truth, buffers).handle);
    workload::Random random(9);  // the same order on all ranks
    for (int turn = 0; turn < 20; ++turn) {
      const std::size_t i = random.below(kNumHandles);
      if (random.below(2) == 0) {
        run.exchange().dispatch(cached(run.input(dispatched[i], buffers), handles[i]));
      } else {
        run.combine(dispatched[i], combined[i], handles[i]);
      }
    }
  }));
}

TEST_P(Handles, ServeAnotherExchangeWhosePlansAgree) {
  ExchangeCase one = plain();
  one.config.zero_padding = true;  // so that whole results can be compared
  ExchangeCase other = one;
  other.config.hidden = 200;
  other.config.dtype = DType::f32;
  other.config.context = 1;
  set_route(other.config, GetParam().route, other.num_ranks);
  const DispatchTruth truth = make_dispatch_truth(one, 0);
  const DispatchTruth wide = make_dispatch_truth(other, 0);
  // The same routing: both follow from the seed.
  ASSERT_EQ((*truth.inputs)[0].topk_idx, (*wide.inputs)[0].topk_idx);
  const CombineTruth answer = make_combine_truth(other, wide, 0);
  expect_ok(run_group(one, [&](Group& group) {
    ExchangeRun run(group, one);
    ExchangeRun wide_run(group, other);
    DispatchBuffers buffers;
    DispatchBuffers wide_buffers;
    const DispatchHandle handle = run.dispatch(truth, buffers).handle;
    std::vector<std::byte> expected;
    {
      DispatchResult result = wide_run.dispatch(wide, wide_buffers);
      expected = bytes_of(result);
      poison_rows(result);
    }
    EXPECT_EQ(bytes_of(wide_run.exchange().dispatch(cached(wide_run.input(wide, wide_buffers), handle))), expected);
    wide_run.combine(wide, answer, handle);
  }));
}

TEST_P(Handles, ThatDoNotFitAreRefusedOnAllRanks) {
  ExchangeCase one = plain();
  one.num_tokens = {4, 6, 3};
  ExchangeConfig strange = one.config;
  strange.num_experts = 17;
  const DispatchTruth truth = make_dispatch_truth(one, 0);
  const CombineTruth answer = make_combine_truth(one, truth, 0);
  expect_ok(run_group(one, [&](Group& group) {
    ExchangeRun run(group, one);
    Exchange stranger(group, strange);
    stranger.prepare();
    DispatchBuffers buffers;
    const DispatchHandle handle = run.dispatch(truth, buffers).handle;
    const DispatchHandle of_stranger = stranger.dispatch(run.input(truth, buffers)).handle;
    const auto refused = [&](const auto& spoil) {
      DispatchInput input = cached(run.input(truth, buffers), handle);
      if (group.rank() == 1) spoil(input);
      return error_of(ErrorCode::invalid_argument, 1, [&] { run.exchange().dispatch(input); });
    };
    EXPECT_THAT(refused([&](DispatchInput& input) { input.handle = of_stranger; }), HasSubstr("another plan"));
    EXPECT_THAT(refused([](DispatchInput& input) { input.tokens.shape[0] = 5; }),
                HasSubstr("tokens has 5 rows; the handle's dispatch had 6"));
    EXPECT_THAT(refused([&](DispatchInput& input) { input.topk_idx = run.input(truth, buffers).topk_idx; }),
                HasSubstr("both given"));
    run.exchange().dispatch(cached(run.input(truth, buffers), handle));
    run.combine(truth, answer, handle);
  }));
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

INSTANTIATE_TEST_SUITE_P(Every, Handles, ::testing::ValuesIn(all_kinds()), name_of_case);

}  // namespace
}  // namespace moebus::tests
