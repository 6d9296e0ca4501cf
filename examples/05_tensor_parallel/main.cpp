// Tensor parallelism and expert parallelism together: tokens that several ranks hold alike are dispatched once.
//
//   05_tensor_parallel [PAIRS [TOKENS]]      2 pairs of ranks as threads, 6 tokens in each, unless told otherwise
//
// Ranks 2 p and 2 p + 1 share the attention of a layer (tensor parallelism), so both hold the same tokens before the
// experts and both need all of them after. The experts are spread over all ranks. Each rank is in two groups:
// `experts`, all ranks, and `pair`, the two that hold the same tokens.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "moebus/moebus.hpp"

namespace {

constexpr int kPair = 2;  // ranks that hold the same tokens
constexpr int kExpertsPerRank = 2;
constexpr int kTopk = 3;
constexpr int kHidden = 8;

std::size_t idx(std::int64_t i) { return static_cast<std::size_t>(i); }

// What both ranks of a pair hold alike.
struct Tokens {
  std::vector<float> rows;            // [T, hidden]
  std::vector<std::int32_t> choices;  // [T, K]
  std::vector<float> weights;         // [T, K]

  Tokens(int pair, std::int64_t num_tokens, int num_experts) {
    for (std::int64_t token = 0; token < num_tokens; ++token) {
      for (int c = 0; c < kHidden; ++c) rows.push_back(static_cast<float>(100 * pair + 10 * token + c) / 64.0F);
      for (int k = 0; k < kTopk; ++k) {
        choices.push_back(static_cast<std::int32_t>((pair + 3 * token + 5 * k) % num_experts));
        weights.push_back(1.0F / static_cast<float>(k + 2));
      }
    }
  }
};

// Experts over `group`: expert e multiplies by e + 1.
moebus::Exchange make_experts(const moebus::Group& group, std::int64_t most_tokens) {
  moebus::ExchangeConfig config;
  config.num_experts = kExpertsPerRank * group.num_ranks();
  config.num_topk = kTopk;
  config.hidden = kHidden;
  config.max_tokens_per_rank = static_cast<int>(std::max<std::int64_t>(most_tokens, 1));
  config.dtype = moebus::DType::f32;
  config.combine_dtype = moebus::DType::f32;
  config.layout = moebus::Layout::expert_major;
  moebus::Exchange exchange(group, config);
  exchange.prepare();
  return exchange;
}

// The experts' outputs for tokens [first, last) of `tokens`.
std::vector<float> run_experts(moebus::Exchange& exchange,
                               const Tokens& tokens,
                               std::int64_t first,
                               std::int64_t last) {
  const std::int64_t num = last - first;
  moebus::DispatchInput input;
  input.tokens = moebus::tensor_2d(tokens.rows.data() + first * kHidden, moebus::DType::f32, num, kHidden);
  input.topk_idx = moebus::tensor_2d(tokens.choices.data() + first * kTopk, moebus::DType::i32, num, kTopk);
  input.topk_weights = moebus::tensor_2d(tokens.weights.data() + first * kTopk, moebus::DType::f32, num, kTopk);
  moebus::DispatchResult received = exchange.dispatch(input);
  auto* rows = reinterpret_cast<float*>(received.tokens.data);
  const auto* counts = reinterpret_cast<const std::int32_t*>(received.counts.data);
  const auto* offsets = reinterpret_cast<const std::int64_t*>(received.offsets.data);
  for (int local = 0; local < exchange.num_local_experts(); ++local) {
    const auto factor = static_cast<float>(exchange.first_local_expert() + local + 1);
    float* group = rows + offsets[local] * kHidden;
    std::for_each(group, group + std::int64_t{counts[local]} * kHidden, [&](float& value) { value *= factor; });
  }
  std::vector<float> outputs(idx(num * kHidden));
  moebus::CombineInput answer;
  answer.rows = received.tokens;
  answer.handle = received.handle;
  answer.weighting = moebus::Weighting::dispatched;
  answer.output = moebus::tensor_2d(outputs.data(), moebus::DType::f32, num, kHidden);
  exchange.combine(answer);
  return outputs;
}

// An all-gather over the pair is a dispatch, too: "expert" r is rank r, and every row chooses all of them. Rows arrive
// ordered by (source rank, source token), which puts the slices one behind the other.
moebus::Exchange make_gather(const moebus::Group& pair, std::int64_t most_rows) {
  moebus::ExchangeConfig config;
  config.num_experts = kPair;
  config.num_topk = kPair;
  config.hidden = kHidden;
  config.max_tokens_per_rank = static_cast<int>(std::max<std::int64_t>(most_rows, 1));
  config.dtype = moebus::DType::f32;
  config.combine_dtype = moebus::DType::f32;
  moebus::Exchange exchange(pair, config);
  exchange.prepare();
  return exchange;
}

std::vector<float> gather(moebus::Exchange& exchange, const std::vector<float>& slice) {
  const auto num = static_cast<std::int64_t>(slice.size()) / kHidden;
  std::vector<std::int32_t> everybody;
  for (std::int64_t row = 0; row < num; ++row) {
    for (int rank = 0; rank < kPair; ++rank) everybody.push_back(rank);
  }
  moebus::DispatchInput input;
  input.tokens = moebus::tensor_2d(slice.data(), moebus::DType::f32, num, kHidden);
  input.topk_idx = moebus::tensor_2d(std::as_const(everybody).data(), moebus::DType::i32, num, kPair);
  const moebus::DispatchResult all = exchange.dispatch(input);
  const auto* rows = reinterpret_cast<const float*>(all.tokens.data);
  return {rows, rows + all.num_rows * kHidden};
}

std::uint64_t rows_sent(const moebus::Exchange& exchange, int rank) {
  const moebus::ExchangeStats stats = exchange.stats();
  std::uint64_t rows = 0;
  for (int peer = 0; peer < stats.num_ranks; ++peer) {
    if (peer != rank) rows += stats.dispatch_peers[idx(peer)].rows_sent;
  }
  return rows;
}

struct Report {
  std::uint64_t once = 0;
  std::uint64_t twice = 0;
};

Report run_rank(int rank, int num_pairs, std::int64_t num_tokens) {
  const int pair_idx = rank / kPair;
  const int place = rank % kPair;
  moebus::Group all = moebus::Group::join("inproc://experts", rank, num_pairs * kPair);
  moebus::Group pair = moebus::Group::join("inproc://pair-" + std::to_string(pair_idx), place, kPair);
  moebus::Exchange experts = make_experts(all, num_tokens);
  moebus::Exchange slices = make_gather(pair, num_tokens);
  const Tokens tokens(pair_idx, num_tokens, experts.config().num_experts);

  // Each of the pair sends half of what both hold, and they give each other the outputs.
  const std::int64_t first = num_tokens * place / kPair;
  const std::int64_t last = num_tokens * (place + 1) / kPair;
  const std::vector<float> outputs = gather(slices, run_experts(experts, tokens, first, last));
  Report report;
  report.once = rows_sent(experts, rank);

  // For comparison: both send everything, and the experts work twice.
  experts.reset_stats();
  const std::vector<float> twice = run_experts(experts, tokens, 0, num_tokens);
  report.twice = rows_sent(experts, rank);
  if (outputs != twice) throw std::runtime_error("the gathered slices differ from the outputs of a full dispatch");
  for (std::int64_t token = 0; token < num_tokens; ++token) {
    for (int c = 0; c < kHidden; ++c) {
      double expected = 0;
      for (int k = 0; k < kTopk; ++k) {
        const std::size_t at = idx(token * kTopk + k);
        expected += static_cast<double>(tokens.weights[at]) * (tokens.choices[at] + 1);
      }
      expected *= static_cast<double>(tokens.rows[idx(token * kHidden + c)]);
      const auto seen = static_cast<double>(outputs[idx(token * kHidden + c)]);
      // A product, an fma for each choice and an addition for each owner: at most 2 K + 1 roundings of 2^-24 each.
      if (!(std::abs(seen - expected) <= (2 * kTopk + 1) * expected / (1 << 24))) {
        throw std::runtime_error("token " + std::to_string(token) + ", column " + std::to_string(c) + ": expected " +
                                 std::to_string(expected) + ", seen " + std::to_string(seen));
      }
    }
  }
  return report;
}

}  // namespace

int main(int argc, char** argv) {
  const int num_pairs = argc > 1 ? std::atoi(argv[1]) : 2;
  const int num_tokens = argc > 2 ? std::atoi(argv[2]) : 6;
  if (num_pairs < 1 || num_pairs * kPair > moebus::kMaxRanks || num_tokens < 0) {
    std::fprintf(stderr, "usage: 05_tensor_parallel [PAIRS 1-%d [TOKENS]]\n", moebus::kMaxRanks / kPair);
    return 2;
  }
  const int num_ranks = num_pairs * kPair;
  std::vector<Report> reports(idx(num_ranks));
  std::vector<std::thread> ranks;
  std::atomic<int> num_failed{0};
  for (int rank = 0; rank < num_ranks; ++rank) {
    ranks.emplace_back([&, rank] {
      try {
        reports[idx(rank)] = run_rank(rank, num_pairs, num_tokens);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
        ++num_failed;
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  if (num_failed > 0) return EXIT_FAILURE;
  Report total;
  for (int rank = 0; rank < num_ranks; ++rank) {
    const Report& report = reports[idx(rank)];
    std::printf("rank %d (pair %d): sends %d rows to experts elsewhere; if both of a pair sent all: %d\n",
                rank,
                rank / kPair,
                static_cast<int>(report.once),
                static_cast<int>(report.twice));
    total.once += report.once;
    total.twice += report.twice;
  }
  std::printf(
      "in all %d rows instead of %d, and the same bits\n", static_cast<int>(total.once), static_cast<int>(total.twice));
  return EXIT_SUCCESS;
}
