// Dispatch and combine: follows one token from its home to its experts and back, number by number.
//
//   02_dispatch_combine [RANKS]      4 ranks as threads, unless told otherwise
//
// All numbers are small multiples of 1/4, so every sum is exact, and what comes home can be checked with ==.

#include <array>
#include <atomic>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "moebus/moebus.hpp"

namespace {

constexpr int kExpertsPerRank = 2;
constexpr int kTopk = 3;
constexpr int kTokens = 4;  // of each rank
constexpr int kHidden = 4;  // columns of a row
constexpr std::array<float, kTopk> kWeights{0.5F, 0.25F, 0.25F};

// The token that we follow.
constexpr int kHome = 0;
constexpr int kToken = 1;

// What each rank has to tell of our token, in the order of the steps below.
struct Story {
  std::string at_home;
  std::string on_the_wire;
  std::string received;
  std::string answered;
  std::string came_home;
};

[[gnu::format(printf, 2, 3)]] void add_line(std::string& story, const char* format, ...) {
  std::array<char, 256> line{};
  std::va_list values;
  va_start(values, format);
  std::vsnprintf(line.data(), line.size(), format, values);
  va_end(values);
  story += line.data();
  story += "\n";
}

std::string row_text(const float* row) {
  std::string text = "[";
  for (int c = 0; c < kHidden; ++c) {
    std::array<char, 32> value{};
    std::snprintf(value.data(), value.size(), "%s%g", c > 0 ? " " : "", static_cast<double>(row[c]));
    text += value.data();
  }
  return text + "]";
}

// An element tells where it was born: rank, token, column.
float element(int rank, int token, int column) { return static_cast<float>(100 * rank + 10 * token + column); }

// The gate's choice. A real router computes it; here it is a rule that anybody can follow.
int choice_of(int rank, int token, int k, int num_experts) {
  constexpr std::array<int, kTopk> kSteps{0, 3, 4};
  return (kExpertsPerRank * rank + token + kSteps[static_cast<std::size_t>(k)]) % num_experts;
}

// Expert e multiplies by e + 1.
float factor_of(int expert) { return static_cast<float>(expert + 1); }

std::size_t idx(std::int64_t i) { return static_cast<std::size_t>(i); }

struct Inputs {
  std::vector<float> rows = std::vector<float>(kTokens * kHidden);
  std::vector<std::int32_t> ids = std::vector<std::int32_t>(kTokens * kTopk);
  std::vector<float> weights = std::vector<float>(kTokens * kTopk);
};

Inputs make_inputs(int rank, int num_experts) {
  Inputs inputs;
  for (int token = 0; token < kTokens; ++token) {
    for (int c = 0; c < kHidden; ++c) inputs.rows[idx(token * kHidden + c)] = element(rank, token, c);
    for (int k = 0; k < kTopk; ++k) {
      inputs.ids[idx(token * kTopk + k)] = choice_of(rank, token, k, num_experts);
      inputs.weights[idx(token * kTopk + k)] = kWeights[idx(k)];
    }
  }
  return inputs;
}

void tell_home(const Inputs& inputs, Story& story) {
  add_line(
      story.at_home, "   rank %d, token %d, row %s", kHome, kToken, row_text(&inputs.rows[kToken * kHidden]).c_str());
  for (int k = 0; k < kTopk; ++k) {
    const int expert = inputs.ids[idx(kToken * kTopk + k)];
    add_line(story.at_home,
             "   choice %d: expert %d (on rank %d), weight %g",
             k,
             expert,
             expert / kExpertsPerRank,
             static_cast<double>(kWeights[idx(k)]));
  }
}

void tell_received(int rank, const moebus::Exchange& exchange, const moebus::DispatchResult& received, Story& story) {
  const auto* counts = reinterpret_cast<const std::int32_t*>(received.counts.data);
  const auto* offsets = reinterpret_cast<const std::int64_t*>(received.offsets.data);
  const auto* src_rank = reinterpret_cast<const std::int32_t*>(received.src_rank.data);
  const auto* src_token = reinterpret_cast<const std::int32_t*>(received.src_token.data);
  const auto* rows = reinterpret_cast<const float*>(received.tokens.data);
  for (int local = 0; local < exchange.num_local_experts(); ++local) {
    std::string group;
    std::int64_t ours = -1;
    for (std::int64_t row = offsets[local]; row < offsets[local] + counts[local]; ++row) {
      group += " (" + std::to_string(src_rank[row]) + "," + std::to_string(src_token[row]) + ")";
      if (src_rank[row] == kHome && src_token[row] == kToken) ours = row;
    }
    if (ours < 0) continue;
    add_line(story.received,
             "   rank %d, expert %d: rows %lld to %lld are%s; ours is row %lld: %s",
             rank,
             exchange.first_local_expert() + local,
             static_cast<long long>(offsets[local]),
             static_cast<long long>(offsets[local] + counts[local] - 1),
             group.c_str(),
             static_cast<long long>(ours),
             row_text(rows + ours * kHidden).c_str());
  }
}

// Runs the local experts over their groups of rows.
std::vector<float> run_experts(int rank,
                               const moebus::Exchange& exchange,
                               const moebus::DispatchResult& received,
                               Story& story) {
  const auto* counts = reinterpret_cast<const std::int32_t*>(received.counts.data);
  const auto* offsets = reinterpret_cast<const std::int64_t*>(received.offsets.data);
  const auto* src_rank = reinterpret_cast<const std::int32_t*>(received.src_rank.data);
  const auto* src_token = reinterpret_cast<const std::int32_t*>(received.src_token.data);
  const auto* rows = reinterpret_cast<const float*>(received.tokens.data);
  std::vector<float> answers(idx(received.num_rows * kHidden));
  for (int local = 0; local < exchange.num_local_experts(); ++local) {
    const int expert = exchange.first_local_expert() + local;
    for (std::int64_t row = offsets[local]; row < offsets[local] + counts[local]; ++row) {
      for (int c = 0; c < kHidden; ++c) answers[idx(row * kHidden + c)] = factor_of(expert) * rows[row * kHidden + c];
      if (src_rank[row] != kHome || src_token[row] != kToken) continue;
      add_line(story.answered,
               "   rank %d, expert %d: %g x row = %s",
               rank,
               expert,
               static_cast<double>(factor_of(expert)),
               row_text(&answers[idx(row * kHidden)]).c_str());
    }
  }
  return answers;
}

// Throws unless every token of this rank is the weighted sum of its experts' answers.
void check_home(int rank, int num_experts, const float* home) {
  for (int token = 0; token < kTokens; ++token) {
    float factor = 0;
    for (int k = 0; k < kTopk; ++k) factor += kWeights[idx(k)] * factor_of(choice_of(rank, token, k, num_experts));
    for (int c = 0; c < kHidden; ++c) {
      const float expected = factor * element(rank, token, c);
      const float seen = home[token * kHidden + c];
      if (seen == expected) continue;
      throw std::runtime_error("token " + std::to_string(token) + ", column " + std::to_string(c) + ": expected " +
                               std::to_string(expected) + ", seen " + std::to_string(seen));
    }
  }
}

void tell_wire(int num_ranks, const moebus::ExchangeStats& stats, Story& story) {
  for (int peer = 0; peer < num_ranks; ++peer) {
    const moebus::PeerStats& sent = stats.dispatch_peers[idx(peer)];
    add_line(story.on_the_wire,
             "   rank %d to rank %d: %llu rows, %llu bytes%s",
             kHome,
             peer,
             static_cast<unsigned long long>(sent.rows_sent),
             static_cast<unsigned long long>(sent.bytes_sent),
             peer == kHome ? " (they stay at home)" : "");
  }
}

void tell_sums(int num_experts, int num_ranks, const float* home, Story& story) {
  for (int rank = 0; rank < num_ranks; ++rank) {
    std::string sum;
    float factor = 0;
    for (int k = 0; k < kTopk; ++k) {
      const int expert = choice_of(kHome, kToken, k, num_experts);
      if (expert / kExpertsPerRank != rank) continue;
      std::array<char, 64> term{};
      std::snprintf(term.data(),
                    term.size(),
                    "%s%g x %g",
                    sum.empty() ? "" : " + ",
                    static_cast<double>(kWeights[idx(k)]),
                    static_cast<double>(factor_of(expert)));
      sum += term.data();
      factor += kWeights[idx(k)] * factor_of(expert);
    }
    if (sum.empty()) continue;
    add_line(story.came_home,
             "   rank %d gives one row: (%s) x row = %g x row",
             rank,
             sum.c_str(),
             static_cast<double>(factor));
  }
  add_line(story.came_home, "   rank %d adds them up: %s", kHome, row_text(home + kToken * kHidden).c_str());
}

void run_rank(int rank, int num_ranks, Story& story) {
  moebus::Group group = moebus::Group::join("inproc://follow-a-token", rank, num_ranks);
  moebus::ExchangeConfig config;
  config.num_experts = kExpertsPerRank * num_ranks;
  config.num_topk = kTopk;
  config.hidden = kHidden;
  config.max_tokens_per_rank = kTokens;
  config.dtype = moebus::DType::f32;
  config.combine_dtype = moebus::DType::f32;
  config.layout = moebus::Layout::expert_major;
  moebus::Exchange exchange(group, config);
  exchange.warm_up();

  const Inputs inputs = make_inputs(rank, config.num_experts);
  moebus::DispatchInput input;
  input.tokens = moebus::tensor_2d(inputs.rows.data(), moebus::DType::f32, kTokens, kHidden);
  input.topk_idx = moebus::tensor_2d(inputs.ids.data(), moebus::DType::i32, kTokens, kTopk);
  input.topk_weights = moebus::tensor_2d(inputs.weights.data(), moebus::DType::f32, kTokens, kTopk);
  const moebus::DispatchResult received = exchange.dispatch(input);

  if (rank == kHome) tell_home(inputs, story);
  if (rank == kHome) tell_wire(num_ranks, exchange.stats(), story);
  tell_received(rank, exchange, received, story);
  const std::vector<float> answers = run_experts(rank, exchange, received, story);

  moebus::CombineInput back;
  back.rows = moebus::tensor_2d(answers.data(), moebus::DType::f32, received.num_rows, kHidden);
  back.handle = received.handle;
  back.weighting = moebus::Weighting::dispatched;
  const moebus::CombineResult result = exchange.combine(back);
  const auto* home = reinterpret_cast<const float*>(result.tokens.data);
  check_home(rank, config.num_experts, home);
  if (rank == kHome) tell_sums(config.num_experts, num_ranks, home, story);
}

void print_part(const char* title, const std::vector<Story>& stories, std::string Story::* part) {
  std::printf("\n%s\n", title);
  for (const Story& story : stories) std::printf("%s", (story.*part).c_str());
}

}  // namespace

int main(int argc, char** argv) {
  const int num_ranks = argc > 1 ? std::atoi(argv[1]) : 4;
  if (num_ranks < 1 || num_ranks > moebus::kMaxRanks) {
    std::fprintf(stderr, "usage: 02_dispatch_combine [RANKS 1-%d]\n", moebus::kMaxRanks);
    return 2;
  }
  std::vector<Story> stories(static_cast<std::size_t>(num_ranks));
  std::vector<std::thread> ranks;
  std::atomic<int> num_failed{0};
  for (int rank = 0; rank < num_ranks; ++rank) {
    ranks.emplace_back([&, rank] {
      try {
        run_rank(rank, num_ranks, stories[idx(rank)]);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
        ++num_failed;
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  if (num_failed > 0) return EXIT_FAILURE;

  std::printf("%d ranks, %d experts on each, %d tokens on each, %d choices a token, rows of %d columns\n",
              num_ranks,
              kExpertsPerRank,
              kTokens,
              kTopk,
              kHidden);
  print_part("1. At home. The gate has chosen:", stories, &Story::at_home);
  print_part(
      "2. On the way. A rank that owns several of a token's experts gets it once:", stories, &Story::on_the_wire);
  print_part(
      "3. At the experts. Rows in order (source rank, source token), whoever came first:", stories, &Story::received);
  print_part("4. The experts answer. Expert e multiplies by e + 1:", stories, &Story::answered);
  print_part("5. Home again. Owners weigh and add first, home adds the owners' rows:", stories, &Story::came_home);
  std::printf("\nall %d tokens of all ranks came home with exactly the right sums\n", kTokens * num_ranks);
  return EXIT_SUCCESS;
}
