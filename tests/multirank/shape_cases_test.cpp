// Shapes that broke other libraries, each with its values.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "base/math.hpp"
#include "oracle/numbers.hpp"
#include "tests/support/exchange_run.hpp"

namespace moebus::tests {
namespace {

using base::idx;
using ::testing::AllOf;
using ::testing::HasSubstr;

ExchangeCase shape_case(int num_ranks, Route route, Layout layout) {
  ExchangeCase one;
  one.num_ranks = num_ranks;
  one.config = small_config(route, num_ranks);
  one.config.num_experts = 8;
  one.config.num_topk = 2;
  one.config.layout = layout;
  return one;
}

/// Runs a case on every route and layout, after `change` made it what it is.
template <class Change>
void expect_everywhere(int num_ranks, const Change& change) {
  for (const Route route : kRoutes) {
    for (const Layout layout : kLayouts) {
      ExchangeCase one = shape_case(num_ranks, route, layout);
      change(one);
      set_route(one.config, route, num_ranks);
      if (layout != Layout::rank_major && one.has_weights) one.weighting = Weighting::dispatched;
      ASSERT_TRUE(matches_oracle(one));
    }
  }
}

float from_bf16_at(const TensorView& tensor, std::int64_t row, std::int64_t column) {
  std::uint16_t bits = 0;
  std::memcpy(&bits, tensor.data + (row * tensor.stride[0] + column) * 2, 2);
  return oracle::from_bf16(bits);
}

TEST(ZeroTokens, OnAllRanksButOneAreAnsweredByIdleRanks) {
  expect_everywhere(4, [](ExchangeCase& one) {
    one.config.num_topk = 8;
    one.num_tokens = {1, 0, 0, 0};
  });
}

TEST(ZeroTokens, OnAllRanksGiveEmptyResultsAndZeroCounts) {
  expect_everywhere(4, [](ExchangeCase& one) {
    one.num_calls = 2;
    one.num_tokens = {0, 0, 0, 0};
  });
}

TEST(ZeroTokens, MayHaveNullPointersAndGiveEmptyShapes) {
  const ExchangeConfig config = small_config();
  expect_ok(run_group(4, false, [&](Group& group) {
    Exchange exchange(group, config);
    exchange.prepare();
    DispatchInput input;
    const std::byte* const nothing = nullptr;
    input.tokens = tensor_2d(nothing, DType::bf16, 0, config.hidden);
    input.topk_idx = tensor_2d(nothing, DType::i64, 0, config.num_topk);
    const DispatchResult result = exchange.dispatch(input);
    EXPECT_EQ(result.num_rows, 0);
    EXPECT_EQ(result.tokens.shape[0], 0);
    EXPECT_EQ(result.tokens.shape[1], config.hidden);
    CombineInput back;
    back.handle = result.handle;
    back.rows = tensor_2d(nothing, DType::bf16, 0, config.hidden);
    const CombineResult combined = exchange.combine(back);
    EXPECT_EQ(combined.tokens.shape[0], 0);
    EXPECT_EQ(combined.tokens.shape[1], config.hidden);
  }));
}

TEST(RankThatReceivesNothing, HasNoRowsAndStillCombines) {
  expect_everywhere(4, [](ExchangeCase& one) {
    one.num_tokens = {8, 8, 8, 8};
    one.choose = [](int, std::int64_t token, int k) { return (token + k) % 2; };  // both are rank 0's
  });
}

TEST(RaggedTokens, NeedNoRoundingByTheCaller) {
  expect_everywhere(4, [](ExchangeCase& one) { one.num_tokens = {7, 3, 0, 5}; });
}

TEST(RaggedTokens, OfOneLessThanAPowerOfTwoOrOfOneOnly) {
  for (const Route route : kRoutes) {
    for (const auto& num_tokens : {std::vector<std::int64_t>{4095, 4095}, std::vector<std::int64_t>{4096, 1}}) {
      ExchangeCase one = shape_case(2, route, Layout::expert_major);
      one.config.hidden = 8;
      one.config.max_tokens_per_rank = 4096;
      one.config.stage_bytes = std::size_t{1} << 20;
      one.num_tokens = num_tokens;
      EXPECT_TRUE(matches_oracle(one));
    }
  }
}

TEST(Capacity, NeedNotBeAMultipleOfAnything) {
  expect_everywhere(2, [](ExchangeCase& one) {
    one.config.max_tokens_per_rank = 400;
    one.config.hidden = 16;
    one.config.capacity_rows = one.config.layout == Layout::expert_padded ? 171 : 672;
    one.num_tokens = {400, 399};
  });
}

TEST(MostTokens, AreAcceptedAndOneMoreIsRefusedOnEveryRank) {
  for (const Route route : kRoutes) {
    ExchangeCase one = shape_case(3, route, Layout::rank_major);
    one.num_tokens = {16, 16, 16};
    const DispatchTruth full = make_dispatch_truth(one, 0);
    const CombineTruth back = make_combine_truth(one, full, 0);
    expect_ok(run_group(3, true, [&](Group& group) {
      ExchangeRun run(group, one);
      run.exchange_once(full, back);
      std::vector<std::byte> rows(17 * 64 * 2);
      std::vector<std::int64_t> ids(17 * 2, 0);
      DispatchBuffers buffers;
      DispatchInput input = run.input(full, buffers);
      if (group.rank() == 1) {
        input = {};
        input.tokens = tensor_2d(rows.data(), DType::bf16, 17, 64);
        input.topk_idx = tensor_2d(ids.data(), DType::i64, 17, 2);
      }
      const std::string text = error_of(ErrorCode::invalid_argument, 1, [&] { run.exchange().dispatch(input); });
      EXPECT_THAT(text, AllOf(HasSubstr("17"), HasSubstr("16"), HasSubstr("max_tokens_per_rank")));
      run.exchange_once(full, back);
    }));
  }
}

TEST(MostTokens, ThatDifferAreNamedWithTheirRanksWhenPreparing) {
  expect_ok(run_group(2, true, [&](Group& group) {
    ExchangeConfig config = small_config();
    config.max_tokens_per_rank = group.rank() == 0 ? 128 : 64;
    Exchange exchange(group, config);
    const std::string text = error_of(ErrorCode::invalid_argument, -1, [&] { exchange.prepare(); });
    EXPECT_THAT(text, AllOf(HasSubstr("max_tokens_per_rank"), HasSubstr("128 on rank 0"), HasSubstr("64 on rank 1")));
  }));
}

TEST(MaskedChoices, OfOneSlotCarryNothing) {
  expect_everywhere(3, [](ExchangeCase& one) {
    one.choose = [](int, std::int64_t token, int k) { return token == 1 && k == 0 ? -1 : (token * 3 + k) % 8; };
  });
}

TEST(MaskedChoices, OfWholeTokensCarryNothing) {
  expect_everywhere(3, [](ExchangeCase& one) {
    one.choose = [](int rank, std::int64_t token, int k) { return (token + rank) % 2 == 0 ? -1 : (token * 3 + k) % 8; };
  });
}

TEST(MaskedChoices, OfOneRankInThirtyTwoLeaveItsTokenAlone) {
  ExchangeCase one;
  one.num_ranks = 32;
  one.config = small_config(Route::latency, 32);
  one.config.num_experts = 896;
  one.config.num_topk = 16;
  one.config.hidden = 3584;
  one.config.max_tokens_per_rank = 1;
  one.num_tokens.assign(32, 1);
  one.choose = [](int rank, std::int64_t, int k) { return rank == 0 ? (k * 57) % 896 : -1; };
  EXPECT_TRUE(matches_oracle(one));
}

/// One token of ones, given ids and weights, on two ranks with f_e(x) = (e + 1) x; returns rank 0's first element.
float combine_one_token(
    Route route, Layout layout, std::array<std::int64_t, 2> ids, std::array<float, 2> weights, int scale) {
  float seen = 0;
  ExchangeConfig config = small_config(route);
  config.num_experts = 8;
  config.num_topk = 2;
  config.hidden = 8;
  config.layout = layout;
  config.combine_rows = CombineRows::per_expert;
  set_route(config, route, 2);
  const std::vector<std::uint16_t> ones(8, oracle::to_bf16(1.0F));
  expect_ok(run_group(2, false, [&](Group& group) {
    Exchange exchange(group, config);
    exchange.prepare();
    const std::int64_t tokens = group.rank() == 0 ? 1 : 0;
    DispatchInput input;
    input.tokens = tensor_2d(ones.data(), DType::bf16, tokens, 8);
    input.topk_idx = tensor_2d(ids.data(), DType::i64, tokens, 2);
    input.topk_weights = tensor_2d(weights.data(), DType::f32, tokens, 2);
    const DispatchResult result = exchange.dispatch(input);
    // Experts 0 to 3 are rank 0's; the same expert twice is one row.
    EXPECT_EQ(result.num_rows, ids[0] >= 0 && ids[0] / 4 == group.rank() ? 1 : 0);
    const bool is_padded = layout == Layout::expert_padded;
    const std::int64_t rows = is_padded ? exchange.num_local_experts() * exchange.capacity_rows() : result.num_rows;
    // What an expert gives for a row of ones; padding is never read.
    const std::vector<std::uint16_t> answers(idx(rows) * 8 + 1, oracle::to_bf16(static_cast<float>(scale)));
    CombineInput back;
    back.handle = result.handle;
    back.weighting = Weighting::dispatched;
    back.rows = is_padded
                    ? tensor_3d(answers.data(), DType::bf16, exchange.num_local_experts(), exchange.capacity_rows(), 8)
                    : tensor_2d(answers.data(), DType::bf16, rows, 8);
    const CombineResult combined = exchange.combine(back);
    if (group.rank() == 0) seen = from_bf16_at(combined.tokens, 0, 0);
  }));
  return seen;
}

TEST(RepeatedExpert, CountsBothWeightsAndTravelsOnce) {
  for (const Route route : kRoutes) {
    // f(1) = 2, weights 0.25 and 0.5: 1.5. Once with an expert at home, once with one on the other rank.
    EXPECT_EQ(combine_one_token(route, Layout::expert_major, {3, 3}, {0.25F, 0.5F}, 2), 1.5F);
    EXPECT_EQ(combine_one_token(route, Layout::expert_padded, {6, 6}, {0.25F, 0.5F}, 2), 1.5F);
  }
}

TEST(MaskedChoices, WithANanWeightHaveNoEffect) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const Route route : kRoutes) {
    EXPECT_EQ(combine_one_token(route, Layout::expert_major, {6, -1}, {0.5F, nan}, 2), 1.0F);
    const float zero = combine_one_token(route, Layout::expert_major, {-1, -1}, {nan, nan}, 2);
    EXPECT_EQ(zero, 0.0F);
    EXPECT_FALSE(std::signbit(zero));
  }
}

TEST(WrongIds, AreRefusedOnEveryRankWithTokenChoiceAndValue) {
  for (const Route route : kRoutes) {
    for (const std::int64_t bad :
         {std::int64_t{8}, std::int64_t{-2}, std::int64_t{1} << 40, (std::int64_t{1} << 32) + 1}) {
      ExchangeCase one = shape_case(3, route, Layout::rank_major);
      one.num_tokens = {4, 4, 4};
      const DispatchTruth good = make_dispatch_truth(one, 0);
      const CombineTruth back = make_combine_truth(one, good, 0);
      expect_ok(run_group(3, false, [&](Group& group) {
        ExchangeRun run(group, one);
        DispatchBuffers buffers;
        DispatchInput input = run.input(good, buffers);
        std::vector<std::int64_t> ids((*good.inputs)[idx(group.rank())].topk_idx);
        if (group.rank() == 2) ids[3 * 2 + 1] = bad;
        input.topk_idx = tensor_2d(std::as_const(ids).data(), DType::i64, 4, 2);
        const std::string text = error_of(ErrorCode::invalid_argument, 2, [&] { run.exchange().dispatch(input); });
        EXPECT_THAT(text, AllOf(HasSubstr("token 3"), HasSubstr("choice 1"), HasSubstr(std::to_string(bad))));
        run.exchange_once(good, back);
      }));
    }
  }
}

TEST(IdTypes, OfThirtyTwoAndSixtyFourBitsGiveTheSame) {
  expect_everywhere(3, [](ExchangeCase& one) { one.has_short_ids = false; });
  expect_everywhere(3, [](ExchangeCase& one) { one.has_short_ids = true; });
}

TEST(Hidden, OfEveryUsualSizeWorksInBf16AndFp8) {
  for (const int hidden : {8, 64, 1536, 2048, 2560, 2880, 3072, 3584, 4096, 5120, 6144, 7168, 8192}) {
    for (const Cast cast : {Cast::none, Cast::fp8}) {
      ExchangeCase one = shape_case(2, kRoutes[hidden / 8 % 3], kLayouts[hidden / 64 % 3]);
      one.config.hidden = hidden;
      one.config.cast = cast;
      one.config.scale_format = cast == Cast::none ? ScaleFormat::none : ScaleFormat::f32;
      one.config.max_tokens_per_rank = 4;
      set_route(one.config, kRoutes[hidden / 8 % 3], 2);
      EXPECT_TRUE(matches_oracle(one));
    }
  }
}

TEST(Topk, OfEveryUsualSizeAndOfAllExpertsWorks) {
  for (const int topk : {1, 6, 9, 10, 16, 32}) {
    expect_everywhere(3, [&](ExchangeCase& one) {
      one.config.num_topk = topk;
      one.config.num_experts = topk == 9 ? 9 : 34;
    });
  }
}

TEST(Experts, OfManyOnARankWork) {
  expect_everywhere(3, [](ExchangeCase& one) {
    one.config.num_experts = 99;
    one.config.num_topk = 6;
  });
}

TEST(Experts, NeedNotDivideByTheRanks) {
  expect_everywhere(4, [](ExchangeCase& one) { one.config.num_experts = 10; });
  expect_everywhere(4, [](ExchangeCase& one) {
    one.config.num_experts = 3;  // the last rank has none
    one.config.num_topk = 2;
  });
}

TEST(Skew, OfAllTokensToTwoExpertsGivesOneRowPerToken) {
  for (const Route route : kRoutes) {
    ExchangeCase one = shape_case(4, route, Layout::rank_major);
    one.config.max_tokens_per_rank = 64;
    one.num_tokens = {64, 64, 64, 64};
    one.choose = [](int, std::int64_t, int k) { return k; };
    const DispatchTruth sent = make_dispatch_truth(one, 0);
    const CombineTruth back = make_combine_truth(one, sent, 0);
    expect_ok(run_group(4, false, [&](Group& group) {
      ExchangeRun run(group, one);
      DispatchBuffers buffers;
      const DispatchResult result = run.dispatch(sent, buffers);
      EXPECT_EQ(result.num_rows, group.rank() == 0 ? 256 : 0);
      std::array<std::int32_t, 2> counts{};
      std::memcpy(counts.data(), result.counts.data, sizeof counts);
      const std::int32_t expected = group.rank() == 0 ? 256 : 0;
      EXPECT_THAT(counts, ::testing::ElementsAre(expected, expected));
      run.combine(sent, back, result.handle);
    }));
  }
}

}  // namespace
}  // namespace moebus::tests
