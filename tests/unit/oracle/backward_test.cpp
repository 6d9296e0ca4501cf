#include "oracle/backward.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <limits>
#include <random>

#include "cases.hpp"
#include "moebus/error.hpp"

namespace moebus::oracle {
namespace {

using cases::bytes_of;
using cases::floats_of;
using cases::rank_input;
using cases::SameForAll;
using cases::small_config;
using testing::Each;
using testing::ElementsAre;
using testing::IsEmpty;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(OrderedDot, AddsSixteenLanesAndThenTheirHalves) {
  // 2^24 + 1 is 2^24 in float32: what meets whom shows in the sum.
  const auto dot = [](const std::vector<std::pair<std::size_t, float>>& columns) {
    std::vector<float> a(64, 0.0F);
    const std::vector<float> ones(64, 1.0F);
    for (const auto& [column, value] : columns) a[column] = value;
    return ordered_dot(a, ones);
  };
  EXPECT_EQ(dot({{0, 0x1p24F}, {16, -0x1p24F}, {8, 1}}), 1.0F);          // 16 joins 0 before 8 does
  EXPECT_EQ(dot({{0, 0x1p24F}, {16, 1}, {32, -0x1p24F}}), 0.0F);         // ascending within the lane
  EXPECT_EQ(dot({{0, 0x1p24F}, {8, -0x1p24F}, {4, 1}, {12, 0}}), 1.0F);  // 8 before 4
  EXPECT_EQ(dot({{0, 0x1p24F}, {8, 1}, {4, -0x1p24F}, {12, 0}}), 0.0F);  // 0 + 8 first
  EXPECT_EQ(dot({{0, 0x1p24F}, {4, -0x1p24F}, {2, 1}}), 1.0F);           // 4 before 2
  EXPECT_EQ(dot({{0, 0x1p24F}, {2, -0x1p24F}, {1, 1}}), 1.0F);           // 2 before 1
  EXPECT_EQ(dot({{0, 0x1p24F}, {1, -0x1p24F}, {2, 1}}), 0.0F);           // 1 last
  EXPECT_EQ(ordered_dot(std::vector<float>{}, std::vector<float>{}), 0.0F);
}

TEST(OrderedDot, MultipliesAndAddsWithOneRounding) {
  std::vector<float> a(17, 0.0F);
  std::vector<float> b(17, 0.0F);
  a[0] = -1.0F;
  b[0] = 1.0F + 0x1p-11F;
  a[16] = b[16] = 1.0F + 0x1p-12F;
  EXPECT_EQ(ordered_dot(a, b), 0x1p-24F);  // 0 with two roundings
}

// Two ranks with two experts each; only rank 0 has tokens.
struct Layer {
  ExchangeConfig config = small_config(4, 2);
  std::vector<DispatchExpectation> dispatched;
  CombineGradientRequest request;

  Layer(Layout layout, const cases::Ids& ids, const cases::Weights& weights, const std::vector<float>& grad) {
    config.layout = layout;
    std::vector<RankInput> inputs(2, rank_input(config, {}));
    inputs[0] = rank_input(config, ids, weights);
    inputs[1].has_weights = inputs[0].has_weights;
    dispatched = dispatch(config, inputs);
    request.grad_tokens = {bytes_of(DType::bf16, grad), {}};
    if (!weights.empty()) request.weighting = Weighting::dispatched;
  }
};

TEST(CombineGradient, MultipliesEachExpertsRowWithItsWeight) {
  const Layer layer(Layout::expert_major, {{0, 3}, {3, -1}}, {{0.5F, 2.0F}, {3.0F, kNan}}, {10, 7});
  const auto results = combine_gradient(layer.dispatched, layer.request);
  EXPECT_EQ(results[0].grad_tokens, bytes_of(DType::bf16, {10}));
  EXPECT_EQ(results[0].grad_rows, bytes_of(DType::bf16, {5}));
  EXPECT_EQ(results[1].grad_tokens, bytes_of(DType::bf16, {10, 7}));
  EXPECT_EQ(results[1].grad_rows, bytes_of(DType::bf16, {20, 21}));
  EXPECT_THAT(results[1].grad_weights, IsEmpty());  // the forward rows were not given
}

TEST(CombineGradient, RoundsTheProductToFloatAndThenToTheType) {
  // 1.5078125 * 1.5 = 2.26171875, between bf16 2.25 and 2.265625 (even mantissa: 2.265625 nearer).
  const Layer layer(Layout::expert_major, {{0, -1}}, {{1.5F, 0.0F}}, {1.5078125F});
  EXPECT_EQ(combine_gradient(layer.dispatched, layer.request)[0].grad_rows, bytes_of(DType::bf16, {2.265625F}));
}

TEST(CombineGradient, AddsTheWeightsOfAnExpertThatIsNamedTwice) {
  const Layer weighted(Layout::expert_major, {{2, 2}}, {{0.25F, 0.5F}}, {4});
  EXPECT_EQ(combine_gradient(weighted.dispatched, weighted.request)[1].grad_rows, bytes_of(DType::bf16, {3}));
  const Layer plain(Layout::expert_major, {{2, 2}}, {}, {4});
  EXPECT_EQ(combine_gradient(plain.dispatched, plain.request)[1].grad_rows, bytes_of(DType::bf16, {8}));
}

TEST(CombineGradient, LeavesRowsAloneWithoutWeights) {
  for (const Layout layout : {Layout::rank_major, Layout::expert_major}) {
    Layer layer(layout, {{0, 1}}, {}, {0});
    layer.request.grad_tokens[0] = {std::byte{0x81}, std::byte{0xFF}};  // a NaN that no rounding would leave
    const auto results = combine_gradient(layer.dispatched, layer.request);
    EXPECT_EQ(results[0].grad_rows, results[0].grad_tokens);
    EXPECT_EQ(results[0].grad_rows[0], std::byte{0x81});
    EXPECT_EQ(results[0].grad_rows.size(), layout == Layout::rank_major ? 2U : 4U);
  }
}

TEST(CombineGradient, NeverMultipliesRankMajorRows) {
  const Layer layer(Layout::rank_major, {{0, 1}}, {{0.5F, 0.25F}}, {8});
  EXPECT_EQ(combine_gradient(layer.dispatched, layer.request)[0].grad_rows, bytes_of(DType::bf16, {8}));
}

TEST(CombineGradient, TakesWeightsThatWereGivenAtHome) {
  Layer layer(Layout::expert_major, {{1, 2}}, {{9, 9}}, {2});
  layer.request.weighting = Weighting::given;
  EXPECT_THROW((void)combine_gradient(layer.dispatched, layer.request), Error);
  layer.request.homes.resize(2);
  layer.request.homes[0].topk_weights = {3, 5};
  const auto results = combine_gradient(layer.dispatched, layer.request);
  EXPECT_EQ(results[0].grad_rows, bytes_of(DType::bf16, {6}));
  EXPECT_EQ(results[1].grad_rows, bytes_of(DType::bf16, {10}));
}

TEST(CombineGradient, SendsTheWeightsGradientHomeInTheLane) {
  Layer layer(Layout::expert_major, {{3, 0}, {-1, 3}}, {{1, 2}, {3, 4}}, {2, -1});
  SameForAll experts(DType::bf16, {{10}, {20}, {30}, {40}});
  layer.request.expert_rows = experts.by_expert({0, 2});
  const auto gradients = combine_gradient(layer.dispatched, layer.request);
  EXPECT_THAT(gradients[0].grad_weights, ElementsAre(0, 20));
  EXPECT_THAT(gradients[1].grad_weights, ElementsAre(80, 0, 0, -40));
  const auto homes = dispatch_gradient(layer.dispatched, experts.by_expert({0, 2}), lane_of(gradients, 2));
  EXPECT_THAT(homes[0].lane, ElementsAre(80, 20, 0, -40));
  EXPECT_EQ(homes[0].tokens, bytes_of(DType::bf16, {50, 40}));
}

TEST(CombineGradient, GivesOneNan) {
  Layer layer(Layout::expert_major, {{3, 3}}, {{1, 1}}, {kNan});
  SameForAll experts(DType::bf16, {{0}, {0}, {0}, {1}});
  layer.request.expert_rows = experts.by_expert({0, 2});
  const std::vector<float> lane = combine_gradient(layer.dispatched, layer.request)[1].grad_weights;
  ASSERT_EQ(lane.size(), 2U);
  for (const float value : lane) EXPECT_EQ(std::bit_cast<std::uint32_t>(value), kCanonicalNanF32);
}

TEST(CombineGradient, PutsRowsWhereTheResultHasThem) {
  ExchangeConfig config = small_config(2, 1);
  config.layout = Layout::expert_padded;
  config.capacity_rows = 2;
  const auto dispatched = dispatch(config, {rank_input(config, {{1}, {0}, {1}, {1}})});  // the last one is dropped
  CombineGradientRequest request;
  request.grad_tokens = {bytes_of(DType::bf16, {1, 2, 3, 4})};
  const auto results = combine_gradient(dispatched, request);
  EXPECT_EQ(results[0].grad_tokens, bytes_of(DType::bf16, {2, 0, 1, 3}));
  EXPECT_EQ(results[0].grad_rows, results[0].grad_tokens);
}

TEST(CombineGradient, RefusesARequestThatDoesNotFit) {
  Layer layer(Layout::expert_major, {{0, 1}}, {{1, 1}}, {1});
  layer.request.grad_tokens[0].push_back(std::byte{0});
  EXPECT_THROW((void)combine_gradient(layer.dispatched, layer.request), Error);
  layer.request.grad_tokens.pop_back();
  EXPECT_THROW((void)combine_gradient(layer.dispatched, layer.request), Error);
  EXPECT_THROW((void)combine_gradient({}, {}), Error);
}

TEST(DispatchGradient, AddsARowOnceHoweverManyChoicesNameIt) {
  for (const CombineRows rows : {CombineRows::per_rank, CombineRows::per_expert}) {
    ExchangeConfig config = small_config(2, 3);
    config.layout = Layout::expert_major;
    config.combine_rows = rows;
    const auto dispatched = dispatch(config, {rank_input(config, {{1, 0, 1}})});
    SameForAll experts(DType::bf16, {{1}, {10}});
    EXPECT_EQ(dispatch_gradient(dispatched, experts.by_expert({0}))[0].tokens, bytes_of(DType::bf16, {11}));
  }
}

// A layer whose expert e multiplies with a factor: out = sum of w_k * f[e_k] * x. All in float32; its derivatives are
// checked against differences of the forward pass of the oracle itself.
class LinearLayer {
 public:
  LinearLayer(Layout layout, const GroupShape& group) : group_(group) {
    config_ = small_config(kExperts, 3, kHidden);
    config_.layout = layout;
    config_.dtype = config_.combine_dtype = DType::f32;
  }

  // Loss: sum over ranks, tokens and columns of out * (column + 1 + rank).
  [[nodiscard]] double loss(const std::vector<RankInput>& inputs) const {
    double sum = 0;
    for (const CombineExpectation& home : forward(inputs)) {
      const std::vector<float> values = floats_of(DType::f32, home.tokens);
      for (std::size_t i = 0; i < values.size(); ++i) {
        sum += static_cast<double>(values[i]) * grad_at(home.rank, i);
      }
    }
    return sum;
  }

  // Gradients of the loss by x and by the weights, per home.
  [[nodiscard]] std::vector<CombineExpectation> backward(const std::vector<RankInput>& inputs) const {
    const auto dispatched = dispatch_all(inputs);
    const auto y = outputs(dispatched);
    CombineGradientRequest request;
    request.weighting = Weighting::dispatched;
    request.expert_rows = rows_in(y, kHidden * sizeof(float));
    for (std::size_t rank = 0; rank < inputs.size(); ++rank) {
      std::vector<float> grad(static_cast<std::size_t>(inputs[rank].num_tokens) * kHidden);
      for (std::size_t i = 0; i < grad.size(); ++i) grad[i] = static_cast<float>(grad_at(static_cast<int>(rank), i));
      request.grad_tokens.push_back(bytes_of(DType::f32, grad));
    }
    const auto gradients = combine_gradient(dispatched, request);
    std::vector<std::byte> row;
    const auto grad_x = [&](int owner, const ReceivedRow& received) -> std::span<const std::byte> {
      const auto& all = gradients[static_cast<std::size_t>(owner)].grad_rows;
      row.assign(all.begin() + received.position * kRowBytes, all.begin() + (received.position + 1) * kRowBytes);
      std::vector<float> values = floats_of(DType::f32, row);
      for (float& value : values) value *= factor(owner, received);
      row = bytes_of(DType::f32, values);
      return row;
    };
    return dispatch_gradient(dispatched, grad_x, lane_of(gradients, config_.num_topk));
  }

  [[nodiscard]] std::vector<RankInput> random_inputs(std::uint32_t seed) const {
    std::mt19937 random(seed);
    std::vector<RankInput> inputs;
    for (int rank = 0; rank < group_.num_ranks; ++rank) {
      cases::Ids ids(3);
      cases::Weights weights(3);
      for (std::size_t n = 0; n < 3; ++n) {
        for (int k = 0; k < config_.num_topk; ++k) {
          ids[n].push_back(static_cast<std::int64_t>(random() % (kExperts + 1)) - 1);
          weights[n].push_back(static_cast<float>(random() % 16) / 16);
        }
      }
      ids[0][2] = ids[0][0];  // named twice
      inputs.push_back(rank_input(config_, ids, weights));
      std::vector<float> x(3 * kHidden);
      for (float& value : x) value = static_cast<float>(random() % 32) / 16 - 1;
      inputs.back().tokens = bytes_of(DType::f32, x);
    }
    return inputs;
  }

 private:
  static constexpr int kExperts = 5;
  static constexpr int kHidden = 18;
  static constexpr std::int64_t kRowBytes = kHidden * 4;

  static double grad_at(int rank, std::size_t i) { return static_cast<double>(i % kHidden) + 1.0 + rank; }

  [[nodiscard]] float factor(int owner, const ReceivedRow& row) const {
    const int first = first_local_expert(kExperts, group_.num_ranks, owner);
    return static_cast<float>(first + row.local_expert + 1) * 0.5F;
  }

  [[nodiscard]] std::vector<DispatchExpectation> dispatch_all(const std::vector<RankInput>& inputs) const {
    return dispatch(config_, std::make_shared<const std::vector<RankInput>>(inputs), group_);
  }

  [[nodiscard]] std::vector<std::vector<std::byte>> outputs(const std::vector<DispatchExpectation>& dispatched) const {
    std::vector<std::vector<std::byte>> buffers;
    for (const DispatchExpectation& owner : dispatched) {
      const std::int64_t end = owner.rows.empty() ? 0 : owner.rows.back().position + 1;
      std::vector<float> all(static_cast<std::size_t>(end) * kHidden);
      for (const ReceivedRow& row : owner.rows) {
        const std::span<const std::byte> x = owner.token_bytes(row);
        std::vector<float> values = floats_of(DType::f32, {x.begin(), x.end()});
        for (std::size_t c = 0; c < kHidden; ++c) {
          all[static_cast<std::size_t>(row.position) * kHidden + c] = values[c] * factor(owner.rank, row);
        }
      }
      buffers.push_back(bytes_of(DType::f32, all));
    }
    return buffers;
  }

  [[nodiscard]] std::vector<CombineExpectation> forward(const std::vector<RankInput>& inputs) const {
    const auto dispatched = dispatch_all(inputs);
    const auto y = outputs(dispatched);
    CombineRequest request;
    request.weighting = Weighting::dispatched;
    request.expert_rows = rows_in(y, kHidden * sizeof(float));
    return combine(dispatched, request);
  }

  ExchangeConfig config_;
  GroupShape group_;
};

TEST(Gradients, AreThoseOfTheForwardPass) {
  constexpr float kStep = 0.25F;  // everything is linear in each variable: any step is right
  for (const Layout layout : {Layout::expert_major, Layout::expert_padded}) {
    for (const int levels : {1, 2}) {
      const LinearLayer layer(layout, {3, {0, 1, 0}, levels});
      std::vector<RankInput> inputs = layer.random_inputs(7);
      const double before = layer.loss(inputs);
      const auto gradients = layer.backward(inputs);
      for (std::size_t rank = 0; rank < inputs.size(); ++rank) {
        const std::vector<float> grad_x = floats_of(DType::f32, gradients[rank].tokens);
        std::vector<float> x = floats_of(DType::f32, inputs[rank].tokens);
        for (std::size_t i = 0; i < x.size(); i += 5) {
          std::vector<float> moved = x;
          moved[i] += kStep;
          inputs[rank].tokens = bytes_of(DType::f32, moved);
          EXPECT_NEAR((layer.loss(inputs) - before) / kStep, grad_x[i], 1e-2) << "rank " << rank << ", x " << i;
        }
        inputs[rank].tokens = bytes_of(DType::f32, x);
        for (std::size_t i = 0; i < inputs[rank].topk_weights.size(); ++i) {
          inputs[rank].topk_weights[i] += kStep;
          EXPECT_NEAR((layer.loss(inputs) - before) / kStep, gradients[rank].lane[i], 1e-2)
              << "rank " << rank << ", weight " << i;
          inputs[rank].topk_weights[i] -= kStep;
        }
      }
    }
  }
}

}  // namespace
}  // namespace moebus::oracle
