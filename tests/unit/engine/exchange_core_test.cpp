#include "engine/exchange_core.hpp"

#include <gtest/gtest.h>

namespace moebus::engine {
namespace {

ExchangeConfig deepseek_config() {
  ExchangeConfig config;
  config.num_experts = 256;
  config.num_topk = 8;
  config.hidden = 7168;
  config.max_tokens_per_rank = 128;
  return config;
}

TEST(BytesNeeded, RegistersAtMostThirtyTwoMebibytesForEightRanksSignalsIncluded) {
  const BytesNeeded bytes = ExchangeCore::bytes_needed(deepseek_config(), model::GroupFacts::one_node(8));
  const auto window = model::window_layout(model::make_shape(deepseek_config(), 8)).bytes.total();
  EXPECT_EQ(bytes.registered, window + sizeof(sync::ContextBlock) + sizeof(sync::GroupBlock));
  EXPECT_LE(bytes.registered, std::size_t{32} << 20);
  EXPECT_EQ(bytes.pinned, 0U);
}

TEST(BytesNeeded, CountsResultsOnceWhereverTheyLie) {
  ExchangeConfig config = deepseek_config();
  const auto latency = ExchangeCore::bytes_needed(config, model::GroupFacts::one_node(2));
  config.caller_results = true;
  const auto callers = ExchangeCore::bytes_needed(config, model::GroupFacts::one_node(2));
  const auto result = model::result_layout(model::make_shape(config, 2)).total_bytes;
  EXPECT_EQ(callers.registered, latency.registered);
  EXPECT_EQ(latency.local - callers.local, result + 128 * 7168 * 2);  // and the result of combine
}

TEST(BytesNeeded, RefusesAWrongConfigurationWithItsReason) {
  ExchangeConfig config = deepseek_config();
  config.num_topk = 65;
  try {
    static_cast<void>(ExchangeCore::bytes_needed(config, model::GroupFacts::one_node(2)));
    FAIL() << "top-65 was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_STREQ(error.what(), "config.num_topk is 65; allowed is 1 to 64");
  }
}

}  // namespace
}  // namespace moebus::engine
