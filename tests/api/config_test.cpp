// Configurations: each field given wrongly, and each that differs over ranks.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "tests/support/exchange_run.hpp"

namespace moebus::tests {
namespace {

using ::testing::HasSubstr;

struct Fault {
  const char* name;
  std::function<void(ExchangeConfig&)> make;
  std::vector<std::string> words;
};

const std::vector<Fault>& wrong_fields() {
  static const std::vector<Fault> faults{
      {"no experts", [](ExchangeConfig& c) { c.num_experts = 0; }, {"num_experts", "0", "1 to"}},
      {"negative experts", [](ExchangeConfig& c) { c.num_experts = -3; }, {"num_experts", "-3"}},
      {"no choices", [](ExchangeConfig& c) { c.num_topk = 0; }, {"num_topk", "0", "1 to 64"}},
      {"too many choices", [](ExchangeConfig& c) { c.num_topk = kMaxTopk + 1; }, {"num_topk", "65", "1 to 64"}},
      {"no columns", [](ExchangeConfig& c) { c.hidden = 0; }, {"hidden", "0"}},
      {"no tokens", [](ExchangeConfig& c) { c.max_tokens_per_rank = 0; }, {"max_tokens_per_rank", "0"}},
      {"too many tokens",
       [](ExchangeConfig& c) { c.max_tokens_per_rank = std::numeric_limits<int>::max(); },
       {"max_tokens_per_rank"}},
      {"too many rows",
       [](ExchangeConfig& c) {
         c.layout = Layout::expert_major;
         c.max_tokens_per_rank = std::numeric_limits<int>::max() / 2;
       },
       {"max_tokens_per_rank", "rows"}},
      {"cast of integers",
       [](ExchangeConfig& c) {
         c.cast = Cast::fp8;
         c.dtype = DType::i16;
       },
       {"dtype", "i16", "bf16"}},
      {"cast without scales", [](ExchangeConfig& c) { c.cast = Cast::fp8; }, {"scale_format", "none"}},
      {"sum of bytes", [](ExchangeConfig& c) { c.combine_dtype = DType::u8; }, {"combine_dtype", "u8"}},
      {"negative side", [](ExchangeConfig& c) { c.side_bytes[0] = -1; }, {"side_bytes", "-1"}},
      {"second side only", [](ExchangeConfig& c) { c.side_bytes[1] = 4; }, {"side_bytes[1]", "side_bytes[0]"}},
      {"no alignment",
       [](ExchangeConfig& c) {
         c.layout = Layout::expert_major;
         c.expert_alignment = 0;
       },
       {"expert_alignment", "0"}},
      {"alignment without groups",
       [](ExchangeConfig& c) { c.expert_alignment = 8; },
       {"expert_alignment", "rank_major"}},
      {"negative capacity", [](ExchangeConfig& c) { c.capacity_rows = -1; }, {"capacity_rows", "-1"}},
      {"rows of experts in rank_major",
       [](ExchangeConfig& c) { c.combine_rows = CombineRows::per_expert; },
       {"combine_rows", "rank_major"}},
      {"negative combine columns", [](ExchangeConfig& c) { c.combine_hidden = -1; }, {"combine_hidden", "-1"}},
      {"no handles", [](ExchangeConfig& c) { c.max_handles = 0; }, {"max_handles", "0"}},
      {"results of the caller with direct delivery",
       [](ExchangeConfig& c) {
         c.path = Path::throughput;
         c.caller_results = true;
       },
       {"caller_results", "direct", "staged"}},
      {"a stage smaller than a row",
       [](ExchangeConfig& c) {
         c.path = Path::throughput;
         c.delivery = Delivery::staged;
         c.stage_bytes = 1;
       },
       {"stage_bytes", "1", "at least"}},
  };
  return faults;
}

TEST(ExchangeConfiguration, IsRefusedByFieldValueAndLimit) {
  Group group = Group::join(unique_uri(false), 0, 1, quiet_options());
  for (const Fault& fault : wrong_fields()) {
    SCOPED_TRACE(fault.name);
    ExchangeConfig config = small_config();
    fault.make(config);
    const std::string text = error_of(ErrorCode::invalid_argument, 0, [&] { const Exchange exchange(group, config); });
    for (const std::string& word : fault.words) EXPECT_THAT(text, HasSubstr(word));
    EXPECT_EQ(error_of(ErrorCode::invalid_argument, -1, [&] { Exchange::bytes_needed(config, 1); }), text);
  }
}

/// Each field that all ranks must share, with another value for rank 1.
const std::vector<Fault>& differing_fields() {
  static const std::vector<Fault> faults{
      {"experts", [](ExchangeConfig& c) { c.num_experts = 17; }, {"num_experts", "16 on ranks 0, 2", "17 on rank 1"}},
      {"topk", [](ExchangeConfig& c) { c.num_topk = 3; }, {"num_topk", "3 on rank 1"}},
      {"hidden", [](ExchangeConfig& c) { c.hidden = 65; }, {"hidden", "64 on ranks 0, 2", "65 on rank 1"}},
      {"tokens", [](ExchangeConfig& c) { c.max_tokens_per_rank = 15; }, {"max_tokens_per_rank", "15 on rank 1"}},
      {"dtype", [](ExchangeConfig& c) { c.dtype = DType::f16; }, {"dtype", "bf16 on ranks 0, 2", "f16 on rank 1"}},
      {"scales", [](ExchangeConfig& c) { c.scale_format = ScaleFormat::f32; }, {"scale_format", "f32 on rank 1"}},
      {"order",
       [](ExchangeConfig& c) { c.scale_order = ScaleOrder::column_major; },
       {"scale_order", "column_major on rank 1"}},
      {"cast",
       [](ExchangeConfig& c) {
         c.cast = Cast::fp8;
         c.scale_format = ScaleFormat::f32;
       },
       {"cast", "fp8 on rank 1", "scale_format"}},
      {"side", [](ExchangeConfig& c) { c.side_bytes[0] = 4; }, {"side_bytes[0]", "4 on rank 1"}},
      {"layout", [](ExchangeConfig& c) { c.layout = Layout::expert_padded; }, {"layout", "expert_padded on rank 1"}},
      {"capacity", [](ExchangeConfig& c) { c.capacity_rows = 9; }, {"capacity_rows", "9 on rank 1"}},
      {"path", [](ExchangeConfig& c) { c.path = Path::throughput; }, {"path", "throughput on rank 1"}},
      {"delivery", [](ExchangeConfig& c) { c.delivery = Delivery::staged; }, {"delivery", "staged on rank 1"}},
      {"stage", [](ExchangeConfig& c) { c.stage_bytes = 4096; }, {"stage_bytes", "4096 on rank 1"}},
      {"combine columns", [](ExchangeConfig& c) { c.combine_hidden = 32; }, {"combine_hidden", "32 on rank 1"}},
      {"combine type", [](ExchangeConfig& c) { c.combine_dtype = DType::f32; }, {"combine_dtype", "f32 on rank 1"}},
      {"lane", [](ExchangeConfig& c) { c.combine_lane = true; }, {"combine_lane", "true on rank 1"}},
  };
  return faults;
}

TEST(ExchangeConfiguration, IsComparedOverRanksFieldByField) {
  expect_ok(run_group(3, false, [](Group& group) {
    for (const Fault& fault : differing_fields()) {
      SCOPED_TRACE(fault.name);
      ExchangeConfig config = small_config();
      if (group.rank() == 1) fault.make(config);
      Exchange exchange(group, config);
      const std::string text = error_of(ErrorCode::invalid_argument, -1, [&] { exchange.prepare(); });
      for (const std::string& word : fault.words) EXPECT_THAT(text, HasSubstr(word));
    }
    Exchange exchange(group, small_config());
    exchange.prepare();
  }));
}

TEST(ExchangeConfiguration, NamesEveryFieldThatDiffers) {
  expect_ok(run_group(2, true, [](Group& group) {
    ExchangeConfig config = small_config();
    if (group.rank() == 1) {
      config.hidden = 128;
      config.num_topk = 2;
    }
    Exchange exchange(group, config);
    const std::string text = error_of(ErrorCode::invalid_argument, -1, [&] { exchange.prepare(); });
    EXPECT_THAT(
        text,
        ::testing::AllOf(
            HasSubstr("hidden is"), HasSubstr("64 on rank 0"), HasSubstr("128 on rank 1"), HasSubstr("num_topk is")));
  }));
}

TEST(ExchangeConfiguration, MayDifferInWhatIsLocal) {
  expect_ok(run_group(2, false, [](Group& group) {
    ExchangeConfig config = small_config();
    config.max_handles = 1 + group.rank();
    config.zero_padding = group.rank() == 1;
    Exchange exchange(group, config);
    exchange.prepare();
    exchange.warm_up();
  }));
}

}  // namespace
}  // namespace moebus::tests
