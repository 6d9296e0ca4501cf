// bytes_needed() says before anything is allocated what a rank will take, and no more is taken.

#include <gtest/gtest.h>

#include <cstddef>

#include "tests/support/exchange_run.hpp"
#include "tests/support/process_state.hpp"

namespace moebus::tests {
namespace {

constexpr std::size_t kGranule = std::size_t{2} << 20;  // a huge page: what one registration is rounded up to

/// What a rank of processes has mapped of shared memory: its own, and each peer's.
void expect_mapped(const ExchangeConfig& config, int num_ranks) {
  const BytesNeeded needed = Exchange::bytes_needed(config, num_ranks);
  expect_ok(run_group(num_ranks, true, [&](Group& group) {
    const std::size_t ranks = static_cast<std::size_t>(num_ranks);
    Exchange exchange(group, config);
    exchange.prepare();
    group.barrier();
    const ProcessState state = process_state();
    // The group's words, the context's words, and windows: three registrations, each rounded up.
    EXPECT_GE(state.shared_bytes, ranks * needed.registered);
    EXPECT_LE(state.shared_bytes, ranks * (needed.registered + 3 * kGranule));
    EXPECT_EQ(state.shared_mappings, 3 * num_ranks);
    group.barrier();
  }));
}

TEST(BytesNeeded, IsWhatPreparingMapsOnEveryRoute) {
  for (const Route route : kRoutes) {
    ExchangeConfig config = small_config(route, 3);
    config.hidden = 2048;
    config.max_tokens_per_rank = 256;
    config.stage_bytes = std::size_t{16} << 20;
    expect_mapped(config, 3);
  }
}

/// DeepSeek-V3's layer, 128 tokens a rank, on eight ranks.
ExchangeConfig decoding_config() {
  ExchangeConfig config;
  config.num_experts = 256;
  config.num_topk = 8;
  config.hidden = 7168;
  config.max_tokens_per_rank = 128;
  return config;
}

TEST(BytesNeeded, RegistersAtMost32MiBForEightRanksAnd128Tokens) {
  EXPECT_LE(Exchange::bytes_needed(decoding_config(), 8).registered, std::size_t{32} << 20);
}

TEST(BytesNeeded, DoesNotGrowWithTheNumberOfExperts) {
  ExchangeConfig config = decoding_config();
  const std::size_t few = Exchange::bytes_needed(config, 8).registered;
  config.num_experts = 1024;
  EXPECT_EQ(Exchange::bytes_needed(config, 8).registered, few);
}

TEST(BytesNeeded, CountsPerExpertRowsByTopkAndNotByExperts) {
  ExchangeConfig config = decoding_config();
  config.layout = Layout::expert_major;
  config.num_topk = 8;
  const std::size_t per_rank = Exchange::bytes_needed(config, 2).registered;
  config.combine_rows = CombineRows::per_expert;
  EXPECT_GT(Exchange::bytes_needed(config, 2).registered, per_rank);
}

TEST(BytesNeeded, LocksNoMemoryForADeviceOnCpuRanks) {
  EXPECT_EQ(Exchange::bytes_needed(decoding_config(), 8).pinned, 0U);
}

TEST(BytesNeeded, KeepsNoResultMemoryWhereTheCallerGivesIt) {
  ExchangeConfig config = decoding_config();
  const BytesNeeded with_results = Exchange::bytes_needed(config, 8);
  config.caller_results = true;
  const BytesNeeded without = Exchange::bytes_needed(config, 8);
  const std::size_t result_bytes = std::size_t{8} * 128 * 7168 * 2;
  EXPECT_GE(with_results.local, without.local + result_bytes);
  EXPECT_EQ(with_results.registered, without.registered);
}

TEST(BytesNeeded, RefusesAWrongConfigurationByName) {
  ExchangeConfig config = decoding_config();
  config.hidden = 0;
  const std::string text = error_of(ErrorCode::invalid_argument, -1, [&] { Exchange::bytes_needed(config, 8); });
  EXPECT_NE(text.find("hidden"), std::string::npos) << text;
}

}  // namespace
}  // namespace moebus::tests
