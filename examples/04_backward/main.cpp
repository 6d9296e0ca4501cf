// A layer forward and backward: gradients of tokens, router weights and expert weights, checked against finite
// differences.
//
//   04_backward [RANKS [LAYOUT]]      4 ranks as threads, expert_major, unless told otherwise
//
// Expert e computes y = tanh(x A_e); a token's output is the sum of w_k y_k over its choices. The loss is the sum over
// all outputs times fixed numbers, so that the gradient of the outputs is just these numbers.

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "moebus/moebus.hpp"

namespace {

constexpr int kExpertsPerRank = 3;
constexpr int kTopk = 2;
constexpr int kHidden = 16;
constexpr int kMostTokens = 9;  // rank r has kMostTokens - 2 r, none below 0
constexpr float kStep = 1.0F / 64;
// What float32 and the third derivative can make of a central difference here, with room to spare: rounding 16 outputs
// of size 1 costs about 1e-6 of loss, so 3e-5 over 2 kStep; the step costs kStep^2 / 6 of a third derivative of size 4.
constexpr double kTolerance = 2e-4;

std::size_t idx(std::int64_t i) { return static_cast<std::size_t>(i); }

// Repeatable numbers in [-scale, scale).
std::vector<float> numbers(std::uint64_t seed, std::int64_t count, float scale) {
  std::uint64_t state = seed * 0x9E3779B97F4A7C15U + 1;
  std::vector<float> values(idx(count));
  for (float& value : values) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    value = scale * (static_cast<float>(state >> 40) / static_cast<float>(1 << 23) - 1.0F);
  }
  return values;
}

moebus::ConstTensorView rows_of(const std::vector<float>& values, std::int64_t rows, std::int64_t columns) {
  return moebus::tensor_2d(values.data(), moebus::DType::f32, rows, columns);
}

using Row = std::array<float, kHidden>;

// y = tanh(x A)
Row run_expert(const float* x, const float* a) {
  Row y{};
  for (int i = 0; i < kHidden; ++i) {
    for (int j = 0; j < kHidden; ++j) y[idx(j)] += x[i] * a[i * kHidden + j];
  }
  for (float& value : y) value = std::tanh(value);
  return y;
}

// Adds dL/dA and dL/dx to `grad_a` and `grad_x`, given y and dL/dy.
void run_expert_backward(
    const float* x, const float* a, const float* y, const float* grad_y, float* grad_a, float* grad_x) {
  for (int j = 0; j < kHidden; ++j) {
    const float grad = grad_y[j] * (1.0F - y[j] * y[j]);
    for (int i = 0; i < kHidden; ++i) {
      grad_a[i * kHidden + j] += x[i] * grad;
      grad_x[i] += a[i * kHidden + j] * grad;
    }
  }
}

// One rank's part of the parameters: what gradients are taken of.
struct Parameters {
  std::vector<float> tokens;   // [T, hidden]
  std::vector<float> router;   // [T, K] weights of the choices
  std::vector<float> experts;  // [local experts, hidden, hidden]
};

// One row of the result that an expert works on. In expert layouts a row belongs to one expert; in rank_major to all
// experts of its choices, and the caller weighs.
struct Visit {
  std::int64_t row = 0;
  int expert = 0;
  int choice = -1;     // rank_major only
  float weight = 1.0;  // rank_major only
};

class Layer {
 public:
  Layer(moebus::Exchange& exchange, const std::vector<std::int32_t>& choices, const Parameters& parameters)
      : exchange_(exchange), choices_(choices), parameters_(parameters), layout_(exchange.config().layout) {}

  // [T, hidden] outputs of this rank's tokens. Keeps what backward needs.
  std::vector<float> forward() {
    const std::int64_t num_tokens = static_cast<std::int64_t>(parameters_.router.size()) / kTopk;
    moebus::DispatchInput input;
    input.tokens = rows_of(parameters_.tokens, num_tokens, kHidden);
    input.topk_idx = moebus::tensor_2d(choices_.data(), moebus::DType::i32, num_tokens, kTopk);
    input.topk_weights = rows_of(parameters_.router, num_tokens, kTopk);
    moebus::DispatchResult received = exchange_.dispatch(input);
    handle_ = received.handle;
    list_visits(received);
    // Backward needs x again, and the library's memory for gradients: keep a copy.
    const auto* x = reinterpret_cast<const float*>(received.tokens.data);
    x_.assign(x, x + received.tokens.num_elements());
    received.release();

    y_.assign(x_.size(), 0.0F);
    each_y_.clear();
    for (const Visit& visit : visits_) {
      const Row y = run_expert(&x_[idx(visit.row * kHidden)], expert(visit));
      each_y_.push_back(y);
      for (int c = 0; c < kHidden; ++c) y_[idx(visit.row * kHidden + c)] += visit.weight * y[idx(c)];
    }
    std::vector<float> outputs(idx(num_tokens * kHidden));
    moebus::CombineInput answer;
    answer.rows = as_received(y_);
    answer.handle = handle_;
    answer.weighting = weighting();
    answer.output = moebus::tensor_2d(outputs.data(), moebus::DType::f32, num_tokens, kHidden);
    exchange_.combine(answer);
    return outputs;
  }

  // Gradients of all parameters, given that of the outputs.
  Parameters backward(const std::vector<float>& grad_outputs) {
    const std::int64_t num_tokens = static_cast<std::int64_t>(parameters_.router.size()) / kTopk;
    moebus::CombineGradInput down;
    down.grad_tokens = rows_of(grad_outputs, num_tokens, kHidden);
    down.handle = handle_;
    down.weighting = weighting();
    if (layout_ != moebus::Layout::rank_major) down.rows = as_received(y_);
    moebus::CombineGradients arrived = exchange_.combine_backward(down);
    auto* grad_y = reinterpret_cast<float*>(arrived.grad_rows.data);

    Parameters gradients;
    gradients.experts.assign(parameters_.experts.size(), 0.0F);
    std::vector<float> grad_x(x_.size(), 0.0F);
    std::vector<float> own_lane(x_.size() / kHidden * kTopk, 0.0F);
    for (std::size_t v = 0; v < visits_.size(); ++v) {
      const Visit& visit = visits_[v];
      Row grad{};
      for (int c = 0; c < kHidden; ++c) {
        grad[idx(c)] = visit.weight * grad_y[visit.row * kHidden + c];
        // dL/dw of a choice is <gradient, y>; in expert layouts the library forms it.
        if (visit.choice >= 0) {
          own_lane[idx(visit.row * kTopk + visit.choice)] += grad_y[visit.row * kHidden + c] * each_y_[v][idx(c)];
        }
      }
      float* grad_a = &gradients.experts[idx(std::int64_t{visit.expert} * kHidden * kHidden)];
      const float* x = &x_[idx(visit.row * kHidden)];
      run_expert_backward(x, expert(visit), each_y_[v].data(), grad.data(), grad_a, &grad_x[idx(visit.row * kHidden)]);
    }
    moebus::DispatchGradInput up;
    up.grad_rows = as_received(grad_x);
    up.handle = handle_;
    up.lane = arrived.lane.is_given() ? arrived.lane : rows_of(own_lane, num_rows_, kTopk);
    const moebus::DispatchGradients home = exchange_.dispatch_backward(up);
    const auto* tokens = reinterpret_cast<const float*>(home.grad_tokens.data);
    const auto* router = reinterpret_cast<const float*>(home.grad_weights.data);
    gradients.tokens.assign(tokens, tokens + num_tokens * kHidden);
    gradients.router.assign(router, router + num_tokens * kTopk);
    return gradients;
  }

 private:
  moebus::Weighting weighting() const {
    return layout_ == moebus::Layout::rank_major ? moebus::Weighting::none : moebus::Weighting::dispatched;
  }

  const float* expert(const Visit& visit) const {
    return &parameters_.experts[idx(std::int64_t{visit.expert} * kHidden * kHidden)];
  }

  moebus::ConstTensorView as_received(const std::vector<float>& rows) const {
    moebus::ConstTensorView view = shape_;
    view.data = reinterpret_cast<const std::byte*>(rows.data());
    return view;
  }

  void list_visits(const moebus::DispatchResult& received) {
    visits_.clear();
    num_rows_ = received.num_rows;
    shape_ = received.tokens;
    if (layout_ == moebus::Layout::rank_major) {
      const auto* experts = reinterpret_cast<const std::int32_t*>(received.topk_idx.data);
      const auto* weights = reinterpret_cast<const float*>(received.topk_weights.data);
      for (std::int64_t row = 0; row < received.num_rows; ++row) {
        for (int k = 0; k < kTopk; ++k) {
          const std::int64_t at = row * kTopk + k;
          if (experts[at] >= 0) visits_.push_back({row, experts[at], k, weights[at]});
        }
      }
      return;
    }
    const auto* counts = reinterpret_cast<const std::int32_t*>(received.counts.data);
    const auto* offsets = reinterpret_cast<const std::int64_t*>(received.offsets.data);
    for (int local = 0; local < exchange_.num_local_experts(); ++local) {
      const bool is_padded = layout_ == moebus::Layout::expert_padded;
      const std::int64_t first = is_padded ? local * exchange_.capacity_rows() : offsets[local];
      for (std::int64_t row = first; row < first + counts[local]; ++row) visits_.push_back({row, local});
    }
  }

  moebus::Exchange& exchange_;
  const std::vector<std::int32_t>& choices_;
  const Parameters& parameters_;
  moebus::Layout layout_;
  moebus::DispatchHandle handle_;
  moebus::ConstTensorView shape_;  // of the result
  std::int64_t num_rows_ = 0;
  std::vector<Visit> visits_;
  std::vector<float> x_;     // rows as received
  std::vector<float> y_;     // what combine was given
  std::vector<Row> each_y_;  // each visit's own y
};

// What the ranks' threads share: the loss is a sum over all of them.
struct Losses {
  std::vector<double> of_rank;
};

double total_loss(moebus::Group& group, Losses& losses, Layer& layer, const std::vector<float>& factors) {
  const std::vector<float> outputs = layer.forward();
  double loss = 0;
  for (std::size_t i = 0; i < outputs.size(); ++i)
    loss += static_cast<double>(factors[i]) * static_cast<double>(outputs[i]);
  losses.of_rank[idx(group.rank())] = loss;
  group.barrier();
  double total = 0;
  for (const double part : losses.of_rank) total += part;
  group.barrier();
  return total;
}

// Compares some gradients of one kind, rank by rank, with central differences of the whole layer. Returns the largest
// difference.
double check(moebus::Group& group,
             Losses& losses,
             Layer& layer,
             const std::vector<float>& factors,
             std::vector<float>& values,
             const std::vector<float>& gradients,
             const char* name) {
  constexpr int kSamples = 10;
  double worst = 0;
  for (int rank = 0; rank < group.num_ranks(); ++rank) {
    for (int sample = 0; sample < kSamples; ++sample) {
      // All ranks run the layer; one of them changes one number.
      float* value = nullptr;
      const std::size_t at = values.empty() ? 0 : idx(sample) * 7919 % values.size();
      if (rank == group.rank() && !values.empty()) value = &values[at];
      const float before = value != nullptr ? *value : 0.0F;
      if (value != nullptr) *value = before + kStep;
      const double above = total_loss(group, losses, layer, factors);
      if (value != nullptr) *value = before - kStep;
      const double below = total_loss(group, losses, layer, factors);
      if (value == nullptr) continue;
      *value = before;
      const double expected = (above - below) / (2 * static_cast<double>(kStep));
      const double difference = std::abs(expected - static_cast<double>(gradients[at]));
      if (!(difference <= kTolerance)) {
        throw std::runtime_error(std::string(name) + " " + std::to_string(at) + ": gradient " +
                                 std::to_string(gradients[at]) + ", finite difference " + std::to_string(expected));
      }
      worst = std::max(worst, difference);
    }
  }
  return worst;
}

moebus::ExchangeConfig make_config(int num_ranks, moebus::Layout layout) {
  moebus::ExchangeConfig config;
  config.num_experts = kExpertsPerRank * num_ranks;
  config.num_topk = kTopk;
  config.hidden = kHidden;
  config.max_tokens_per_rank = kMostTokens;
  config.dtype = moebus::DType::f32;
  config.combine_dtype = moebus::DType::f32;
  config.layout = layout;
  config.combine_lane = true;  // brings the gradient of the router's weights home
  return config;
}

std::string run_rank(int rank, int num_ranks, moebus::Layout layout, Losses& losses) {
  moebus::Group group = moebus::Group::join("inproc://backward", rank, num_ranks);
  moebus::Exchange exchange(group, make_config(num_ranks, layout));
  exchange.warm_up();

  const std::int64_t num_tokens = std::max(kMostTokens - 2 * rank, 0);
  const auto seed = static_cast<std::uint64_t>(rank);
  Parameters parameters{numbers(seed + 1, num_tokens * kHidden, 1.0F),
                        numbers(seed + 101, num_tokens * kTopk, 1.0F),
                        numbers(seed + 201, std::int64_t{kExpertsPerRank} * kHidden * kHidden, 0.3F)};
  std::vector<std::int32_t> choices;
  for (std::int64_t token = 0; token < num_tokens; ++token) {
    const auto first = static_cast<std::int32_t>((5 * token + rank) % (kExpertsPerRank * num_ranks));
    choices.push_back(first);
    choices.push_back((first + 2) % (kExpertsPerRank * num_ranks));
  }
  const std::vector<float> factors = numbers(seed + 301, num_tokens * kHidden, 0.5F);

  Layer layer(exchange, choices, parameters);
  layer.forward();
  const Parameters gradients = layer.backward(factors);
  const double tokens = check(group, losses, layer, factors, parameters.tokens, gradients.tokens, "token element");
  const double router = check(group, losses, layer, factors, parameters.router, gradients.router, "router weight");
  const double experts = check(group, losses, layer, factors, parameters.experts, gradients.experts, "expert weight");
  std::array<char, 160> text{};
  std::snprintf(text.data(),
                text.size(),
                "rank %d: %d tokens; farthest from finite differences: tokens %.1e, router weights %.1e, experts %.1e",
                rank,
                static_cast<int>(num_tokens),
                tokens,
                router,
                experts);
  return text.data();
}

}  // namespace

int main(int argc, char** argv) {
  const int num_ranks = argc > 1 ? std::atoi(argv[1]) : 4;
  const std::string_view name = argc > 2 ? argv[2] : "expert_major";
  moebus::Layout layout = moebus::Layout::rank_major;
  if (name == "expert_major") layout = moebus::Layout::expert_major;
  if (name == "expert_padded") layout = moebus::Layout::expert_padded;
  if (num_ranks < 1 || num_ranks > moebus::kMaxRanks || moebus::to_string(layout) != name) {
    std::fprintf(
        stderr, "usage: 04_backward [RANKS 1-%d [rank_major|expert_major|expert_padded]]\n", moebus::kMaxRanks);
    return 2;
  }
  Losses losses{std::vector<double>(idx(num_ranks))};
  std::vector<std::string> reports(idx(num_ranks));
  std::vector<std::thread> ranks;
  std::atomic<int> num_failed{0};
  for (int rank = 0; rank < num_ranks; ++rank) {
    ranks.emplace_back([&, rank] {
      try {
        reports[idx(rank)] = run_rank(rank, num_ranks, layout, losses);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
        ++num_failed;
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  if (num_failed > 0) return EXIT_FAILURE;
  for (const std::string& report : reports) std::printf("%s\n", report.c_str());
  std::printf(
      "layout %s: every gradient is within %.0e of a central difference\n", std::string(name).c_str(), kTolerance);
  return EXIT_SUCCESS;
}
