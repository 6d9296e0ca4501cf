// A program of someone else: two ranks as threads, every token to both experts and home again.
#include <atomic>
#include <cstdio>
#include <exception>
#include <thread>
#include <vector>

#include "moebus/moebus.hpp"

namespace {

constexpr int kRanks = 2;
constexpr int kTokens = 4;
constexpr int kHidden = 64;

// Every token goes to expert 0 on rank 0 and expert 1 on rank 1, weights 1 and 2; the experts do nothing.
bool exchange_on(int rank) {
  using moebus::DType;
  moebus::Group group = moebus::Group::join("inproc://consumer", rank, kRanks);
  moebus::ExchangeConfig config;
  config.num_experts = kRanks;
  config.num_topk = 2;
  config.hidden = kHidden;
  config.max_tokens_per_rank = kTokens;
  config.dtype = config.combine_dtype = DType::f32;
  config.layout = moebus::Layout::expert_major;
  moebus::Exchange exchange(group, config);
  exchange.warm_up();

  std::vector<float> rows(kTokens * kHidden);
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(i) + 1000.0F * static_cast<float>(rank);
  const std::vector<int> ids{0, 1, 0, 1, 0, 1, 0, 1};
  const std::vector<float> weights{1, 2, 1, 2, 1, 2, 1, 2};
  std::vector<float> home(rows.size());
  moebus::DispatchInput out;
  out.tokens = moebus::tensor_2d(rows.data(), DType::f32, kTokens, kHidden);
  out.topk_idx = moebus::tensor_2d(ids.data(), DType::i32, kTokens, 2);
  out.topk_weights = moebus::tensor_2d(weights.data(), DType::f32, kTokens, 2);
  const moebus::DispatchResult received = exchange.dispatch(out);
  moebus::CombineInput back;
  back.rows = received.tokens;
  back.handle = received.handle;
  back.weighting = moebus::Weighting::dispatched;
  back.output = moebus::tensor_2d(home.data(), DType::f32, kTokens, kHidden);
  exchange.combine(back);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (home[i] != 3.0F * rows[i]) return false;
  }
  return received.num_rows == kRanks * kTokens;
}

}  // namespace

int main() {
  std::atomic<int> num_right{0};
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([rank, &num_right] {
      try {
        if (exchange_on(rank)) ++num_right;
      } catch (const std::exception& error) {
        std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  std::printf("moebus %.*s: %d of %d ranks got three times their rows\n",
              static_cast<int>(moebus::version().size()),
              moebus::version().data(),
              num_right.load(),
              kRanks);
  return num_right == kRanks ? 0 : 1;
}
