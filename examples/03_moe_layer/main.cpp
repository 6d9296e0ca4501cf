// A layer: router, dispatch, experts (two small GEMMs each), combine; equal to the same layer computed without any
// exchange.
//
//   03_moe_layer [RANKS [TOKENS]]      4 ranks as threads, 16 tokens on rank 0, unless told otherwise
//
// Rank r has TOKENS - r tokens (none below 0), so ranks differ and some may be empty, as in real decoding.

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "moebus/moebus.hpp"

namespace {

constexpr int kExpertsPerRank = 4;
constexpr int kTopk = 4;
constexpr int kHidden = 48;
constexpr int kInner = 32;     // columns between an expert's two GEMMs
constexpr int kAlignment = 8;  // rows: groups start at multiples, as grouped GEMMs want them

std::size_t idx(std::int64_t i) { return static_cast<std::size_t>(i); }

// Repeatable numbers in [-1, 1).
class Numbers {
 public:
  explicit Numbers(std::uint64_t seed) : state_(seed) {}

  float next() {
    state_ = state_ * 6364136223846793005U + 1442695040888963407U;
    return static_cast<float>(state_ >> 40) / static_cast<float>(1 << 23) - 1.0F;
  }

  std::vector<float> take(std::int64_t count, float scale = 1.0F) {
    std::vector<float> values(idx(count));
    for (float& value : values) value = scale * next();
    return values;
  }

 private:
  std::uint64_t state_;
};

// [rows, inner] x [inner, columns] -> [rows, columns], row-major. Each output has one order of additions, whatever the
// rows around it.
void multiply(const float* a, const float* b, float* out, std::int64_t rows, int inner, int columns) {
  for (std::int64_t row = 0; row < rows; ++row) {
    for (int column = 0; column < columns; ++column) {
      float sum = 0;
      for (int i = 0; i < inner; ++i) sum += a[row * inner + i] * b[i * columns + column];
      out[row * columns + column] = sum;
    }
  }
}

// One expert: y = relu(x W1) W2.
struct Expert {
  std::vector<float> w1;  // [hidden, inner]
  std::vector<float> w2;  // [inner, hidden]

  explicit Expert(int number) {
    Numbers numbers(1000 + static_cast<std::uint64_t>(number));
    w1 = numbers.take(kHidden * kInner, 0.25F);
    w2 = numbers.take(kInner * kHidden, 0.25F);
  }

  void run(const float* x, float* y, std::int64_t rows) const {
    std::vector<float> inner(idx(rows * kInner));
    multiply(x, w1.data(), inner.data(), rows, kHidden, kInner);
    for (float& value : inner) value = std::max(value, 0.0F);
    multiply(inner.data(), w2.data(), y, rows, kInner, kHidden);
  }
};

struct Routing {
  std::vector<std::int32_t> ids;  // [tokens, K]
  std::vector<float> weights;     // [tokens, K] softmax over the chosen
};

// The router is the same on every rank: scores = x R, the K best experts, softmax over their scores.
Routing route(const std::vector<float>& rows, std::int64_t num_tokens, int num_experts) {
  const std::vector<float> router = Numbers(7).take(std::int64_t{kHidden} * num_experts);
  std::vector<float> scores(idx(num_tokens * num_experts));
  multiply(rows.data(), router.data(), scores.data(), num_tokens, kHidden, num_experts);
  Routing routing;
  for (std::int64_t token = 0; token < num_tokens; ++token) {
    const float* score = scores.data() + token * num_experts;
    std::vector<std::int32_t> best(idx(num_experts));
    std::iota(best.begin(), best.end(), 0);
    std::partial_sort(best.begin(), best.begin() + kTopk, best.end(), [&](std::int32_t a, std::int32_t b) {
      return score[a] != score[b] ? score[a] > score[b] : a < b;
    });
    float total = 0;
    for (int k = 0; k < kTopk; ++k) total += std::exp(score[best[idx(k)]] - score[best[0]]);
    for (int k = 0; k < kTopk; ++k) {
      routing.ids.push_back(best[idx(k)]);
      routing.weights.push_back(std::exp(score[best[idx(k)]] - score[best[0]]) / total);
    }
  }
  return routing;
}

// The layer as a framework would write it: this rank holds only its own experts.
std::vector<float> layer_with_exchange(moebus::Exchange& exchange,
                                       const std::vector<float>& rows,
                                       const Routing& routing,
                                       std::int64_t num_tokens) {
  moebus::DispatchInput input;
  input.tokens = moebus::tensor_2d(rows.data(), moebus::DType::f32, num_tokens, kHidden);
  input.topk_idx = moebus::tensor_2d(routing.ids.data(), moebus::DType::i32, num_tokens, kTopk);
  input.topk_weights = moebus::tensor_2d(routing.weights.data(), moebus::DType::f32, num_tokens, kTopk);
  const moebus::DispatchResult received = exchange.dispatch(input);

  // A grouped GEMM: expert e of this rank has the rows [offsets[e], offsets[e] + counts[e]).
  const auto* x = reinterpret_cast<const float*>(received.tokens.data);
  const auto* counts = reinterpret_cast<const std::int32_t*>(received.counts.data);
  const auto* offsets = reinterpret_cast<const std::int64_t*>(received.offsets.data);
  std::vector<float> y(idx(received.num_rows * kHidden),
                       std::numeric_limits<float>::quiet_NaN());  // padding is never read
  for (int local = 0; local < exchange.num_local_experts(); ++local) {
    const Expert expert(exchange.first_local_expert() + local);
    expert.run(x + offsets[local] * kHidden, y.data() + offsets[local] * kHidden, counts[local]);
  }

  std::vector<float> home(idx(num_tokens * kHidden));
  moebus::CombineInput back;
  back.rows = moebus::tensor_2d(y.data(), moebus::DType::f32, received.num_rows, kHidden);
  back.handle = received.handle;
  back.weighting = moebus::Weighting::dispatched;
  back.output = moebus::tensor_2d(home.data(), moebus::DType::f32, num_tokens, kHidden);
  exchange.combine(back);
  return home;
}

// One element of a token's result, added up in the order that combine promises: each owner its choices in top-k order,
// home the owners by their last choice.
float sum_in_order(const float* weights,
                   const std::int32_t* ids,
                   const std::array<std::array<float, kHidden>, kTopk>& y,
                   std::size_t column) {
  float home = 0;
  for (int last = 0; last < kTopk; ++last) {
    const int owner = ids[last] / kExpertsPerRank;
    const auto is_owners = [&](std::int32_t id) { return id / kExpertsPerRank == owner; };
    if (std::any_of(ids + last + 1, ids + kTopk, is_owners)) continue;
    float sum = 0;
    for (int k = 0; k <= last; ++k) {
      if (is_owners(ids[k])) sum = std::fma(weights[k], y[idx(k)][column], sum);
    }
    home += sum;
  }
  return home;
}

void throw_different(std::int64_t token, std::size_t column, const char* what, double expected, float seen) {
  throw std::runtime_error("token " + std::to_string(token) + ", column " + std::to_string(column) + ": " + what + " " +
                           std::to_string(expected) + ", seen " + std::to_string(seen));
}

// The same layer on one rank that holds all experts. Throws unless the exchange gave the same: bit for bit with the
// contract's order of additions, and within rounding of the exact sum. The tolerance is what float32 can cost and no
// more: at most 2 K roundings (an fma per choice at the owners, an addition per owner at home), each half a unit in the
// last place of a partial sum, which is never larger than the sum of |w_k y_k|.
void compare_with_dense(const std::vector<float>& home,
                        const std::vector<float>& rows,
                        const Routing& routing,
                        std::int64_t num_tokens) {
  constexpr double kRounding = 1.0 / (1 << 24);
  for (std::int64_t token = 0; token < num_tokens; ++token) {
    const std::int32_t* ids = routing.ids.data() + token * kTopk;
    const float* weights = routing.weights.data() + token * kTopk;
    std::array<std::array<float, kHidden>, kTopk> y{};
    for (int k = 0; k < kTopk; ++k) Expert(ids[k]).run(rows.data() + token * kHidden, y[idx(k)].data(), 1);
    for (std::size_t c = 0; c < kHidden; ++c) {
      double exact = 0;
      double size = 0;
      for (int k = 0; k < kTopk; ++k) {
        const double term = static_cast<double>(weights[k]) * static_cast<double>(y[idx(k)][c]);
        exact += term;
        size += std::abs(term);
      }
      const float seen = home[idx(token * kHidden) + c];
      const float expected = sum_in_order(weights, ids, y, c);
      if (seen != expected)
        throw_different(
            token, c, "the dense layer, added in the same order, gives", static_cast<double>(expected), seen);
      const bool is_near = std::abs(static_cast<double>(seen) - exact) <= 2.01 * kTopk * kRounding * size;
      if (!is_near) throw_different(token, c, "the dense layer gives", exact, seen);
    }
  }
}

std::string run_rank(int rank, int num_ranks, int most_tokens) {
  moebus::Group group = moebus::Group::join("inproc://moe-layer", rank, num_ranks);
  moebus::ExchangeConfig config;
  config.num_experts = kExpertsPerRank * num_ranks;
  config.num_topk = kTopk;
  config.hidden = kHidden;
  config.max_tokens_per_rank = std::max(most_tokens, 1);
  config.dtype = moebus::DType::f32;
  config.combine_dtype = moebus::DType::f32;
  config.layout = moebus::Layout::expert_major;
  config.expert_alignment = kAlignment;
  moebus::Exchange exchange(group, config);
  exchange.warm_up();

  const std::int64_t num_tokens = std::max(most_tokens - rank, 0);
  const std::vector<float> rows = Numbers(100 + static_cast<std::uint64_t>(rank)).take(num_tokens * kHidden);
  const Routing routing = route(rows, num_tokens, config.num_experts);
  const std::vector<float> home = layer_with_exchange(exchange, rows, routing, num_tokens);
  if (layer_with_exchange(exchange, rows, routing, num_tokens) != home) {
    throw std::runtime_error("the second call gave other bits than the first");
  }
  compare_with_dense(home, rows, routing, num_tokens);
  return "rank " + std::to_string(rank) + ": " + std::to_string(num_tokens) + " tokens, " +
         std::to_string(num_tokens * kHidden) + " elements, all as the dense layer has them";
}

}  // namespace

int main(int argc, char** argv) {
  const int num_ranks = argc > 1 ? std::atoi(argv[1]) : 4;
  const int most_tokens = argc > 2 ? std::atoi(argv[2]) : 16;
  if (num_ranks < 1 || num_ranks > moebus::kMaxRanks || most_tokens < 0) {
    std::fprintf(stderr, "usage: 03_moe_layer [RANKS 1-%d [TOKENS]]\n", moebus::kMaxRanks);
    return 2;
  }
  std::vector<std::string> reports(idx(num_ranks));
  std::vector<std::thread> ranks;
  std::atomic<int> num_failed{0};
  for (int rank = 0; rank < num_ranks; ++rank) {
    ranks.emplace_back([&, rank] {
      try {
        reports[idx(rank)] = run_rank(rank, num_ranks, most_tokens);
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
      "the layer over %d ranks equals the dense layer on one, to the last bit where the order of additions is the "
      "same\n",
      num_ranks);
  return EXIT_SUCCESS;
}
