// Gradients of combine and dispatch: every byte compared with the oracle, over layouts, paths, nodes, placements,
// drops. MOEBUS_TEST_SEED=N runs as many others.

#include "tests/multirank/backward_run.hpp"

namespace moebus::tests {
namespace {

using ::testing::HasSubstr;

class Backward : public ::testing::TestWithParam<Batch> {
 protected:
  static void run_cases(bool as_processes, int num_cases) {
    const auto run = [](ExchangeCase one) {
      fit_for_gradients(one, GetParam().route);
      const Prepared prepared(std::move(one), 2);
      const auto outcomes = run_group(prepared.one, [&](Group& group) {
        ExchangeRun forward(group, prepared.one);
        run_all(forward, forward.exchange(), prepared);
      });
      const auto result = all_ok(outcomes);
      return result ? result : ::testing::AssertionFailure() << describe(prepared.one) << "\n" << result.message();
    };
    run_batch(GetParam(), as_processes, num_cases, 500, [](auto... which) { return random_group_case(which...); }, run);
  }
};

TEST_P(Backward, GivesTheOraclesGradientsToThreads) { run_cases(false, 60 / kSlowdown); }

TEST_P(Backward, GivesTheOraclesGradientsToProcesses) { run_cases(true, kSlowdown > 1 ? 2 : 8); }

INSTANTIATE_TEST_SUITE_P(Random, Backward, ::testing::ValuesIn(batches_of({1, 2, 3, 4, 7})), name_of_batch);

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

}  // namespace
}  // namespace moebus::tests
