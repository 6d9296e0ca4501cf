// Gradients of combine and dispatch: what is refused, on every rank and with which words.

#include "tests/multirank/backward_run.hpp"

namespace moebus::tests {
namespace {

using ::testing::HasSubstr;

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
