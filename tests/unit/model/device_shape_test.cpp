#include "model/device_shape.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "sync/device_block.hpp"

namespace moebus::model {
namespace {

using ::testing::HasSubstr;

ExchangeConfig deepseek_config() {
  ExchangeConfig config;
  config.num_experts = 256;
  config.num_topk = 8;
  config.hidden = 7168;
  config.max_tokens_per_rank = 128;
  config.cast = Cast::fp8;
  config.scale_format = ScaleFormat::f32;
  return config;
}

DeviceShape shape_of(const ExchangeConfig& config, int num_ranks) {
  return device_shape(make_shape(config, num_ranks));
}

TEST(TableFormat, GivesEveryFieldBitsOfItsOwnInsideOneWord) {
  for (const int experts : {1, 2, 7, 32, 255, 256, 4000}) {
    for (const int topk : {1, 2, 8, 9, 32}) {
      const TableFormat format = table_format(topk, experts, std::min(topk, 64));
      // The largest choice is a local expert plus 1.
      EXPECT_LT(static_cast<std::uint64_t>(experts), std::uint64_t{1} << format.bits);
      std::set<std::pair<std::uint32_t, std::uint32_t>> taken;
      for (std::uint32_t field = 0; field <= static_cast<std::uint32_t>(topk); ++field) {
        const FieldPlace place = field_place(format, field);
        EXPECT_LT(place.wide, format.num_wide);
        EXPECT_LT(place.word, kTableWords);
        EXPECT_LE(place.shift + format.bits, 32U);
        for (std::uint32_t bit = 0; bit < format.bits; ++bit) {
          const std::uint32_t word = place.wide * kTableWords + place.word;
          EXPECT_TRUE(taken.emplace(word, place.shift + bit).second) << "experts " << experts << ", top-" << topk;
        }
      }
    }
  }
}

TEST(DeviceShape, LaysAreasOneAfterTheOther) {
  ExchangeConfig config = deepseek_config();
  config.capacity_rows = 100;
  config.side_bytes = {13, 0};
  for (const Layout layout : {Layout::rank_major, Layout::expert_major, Layout::expert_padded}) {
    config.layout = layout;
    const DeviceShape shape = shape_of(config, 4);
    const std::uint64_t sources = 4 * 128;
    const std::uint64_t slots = std::uint64_t(shape.slots_per_token) * 128;
    const std::vector<std::pair<std::uint64_t, std::uint64_t>> areas{
        {shape.headers_offset, 4 * kWideBytes},
        {shape.tables_offset, sources * shape.table.num_wide * kWideBytes},
        {shape.weights_offset, sources * shape.weight_words * kWideBytes},
        {shape.escapes_offset, sources * shape.escape_words * kWideBytes},
        {shape.tails_offset, slots * kWideBytes},
        {shape.rows_offset, std::max(sources * shape.row_words, slots * shape.combine_words) * kWideBytes}};
    std::uint64_t end = 0;
    for (const auto& [offset, bytes] : areas) {
      EXPECT_GE(offset, end);
      EXPECT_EQ(offset % 128, 0U);
      end = offset + bytes;
    }
    EXPECT_LE(end, shape.parity_bytes);
  }
}

TEST(DeviceShape, NeedsNoEscapesOnlyWhereTheCastMakesEveryByte) {
  ExchangeConfig config = deepseek_config();
  EXPECT_EQ(shape_of(config, 2).escape_words, 0U);
  config.scale_format = ScaleFormat::ue8m0;
  EXPECT_EQ(shape_of(config, 2).escape_words, 0U);
  config.side_bytes = {4, 0};
  EXPECT_GT(shape_of(config, 2).escape_words, 0U);
  config = deepseek_config();
  config.cast = Cast::none;
  config.scale_format = ScaleFormat::none;
  const DeviceShape opaque = shape_of(config, 2);
  EXPECT_GE(opaque.escape_words * 32, opaque.row_words);
}

TEST(DeviceShape, FindsOwnersByMultiplicationWithoutError) {
  for (const int num_ranks : {1, 2, 3, 8, 64}) {
    for (const int local : {2, 3, 5, 7, 96, 1000}) {
      ExchangeConfig config = deepseek_config();
      config.num_experts = num_ranks * local;
      config.max_tokens_per_rank = 8;
      const DeviceShape shape = shape_of(config, num_ranks);
      ASSERT_EQ(shape.even_local_experts, local);
      for (int expert = 0; expert < config.num_experts; ++expert) {
        const auto owner = std::uint64_t(expert) * shape.even_multiplier >> 32;
        ASSERT_EQ(owner, std::uint64_t(expert / local)) << expert << " of " << local;
      }
    }
  }
  ExchangeConfig uneven = deepseek_config();
  uneven.num_experts = 10;
  uneven.num_topk = 4;
  EXPECT_EQ(shape_of(uneven, 4).even_local_experts, 0);
}

std::string device_error(const ExchangeConfig& config, int num_ranks = 2) {
  return find_device_config_error(config, GroupFacts::one_node(num_ranks)).value_or("");
}

TEST(DeviceConfig, IsTakenWhereKernelsDoIt) { EXPECT_EQ(device_error(deepseek_config(), 8), ""); }

TEST(DeviceConfig, NamesWhatDevicesDoNotDo) {
  ExchangeConfig config = deepseek_config();
  config.path = Path::throughput;
  EXPECT_THAT(device_error(config), HasSubstr("config.path"));
  config = deepseek_config();
  config.seats_per_rank = 128;
  EXPECT_THAT(device_error(config), HasSubstr("config.seats_per_rank"));
  config = deepseek_config();
  config.combine_rows = CombineRows::per_expert;
  EXPECT_THAT(device_error(config), HasSubstr("config.combine_rows"));
  config = deepseek_config();
  config.combine_lane = true;
  EXPECT_THAT(device_error(config), HasSubstr("config.combine_lane"));
  config = deepseek_config();
  config.num_topk = 33;
  EXPECT_THAT(device_error(config), HasSubstr("config.num_topk is 33; devices support up to 32"));
  config = deepseek_config();
  config.num_experts = 70'000;
  EXPECT_THAT(device_error(config), HasSubstr("config.num_experts is 70000"));
}

TEST(DeviceConfig, NamesLimitsThatFollowFromTokens) {
  ExchangeConfig config = deepseek_config();
  config.max_tokens_per_rank = 40'000;
  EXPECT_THAT(device_error(config), HasSubstr("gives 80000 rows"));
  config.max_tokens_per_rank = 8000;
  EXPECT_THAT(device_error(config), HasSubstr("of a block's shared memory"));
}

TEST(DeviceConfig, NamesGroupsThatDevicesDoNotDo) {
  GroupFacts facts = GroupFacts::one_node(2);
  facts.topology.set_unmapped(0, 1);
  EXPECT_THAT(find_device_config_error(deepseek_config(), facts).value_or(""), HasSubstr("do not map each other"));
  facts = GroupFacts::one_node(2);
  facts.levels = 2;
  EXPECT_THAT(find_device_config_error(deepseek_config(), facts).value_or(""), HasSubstr("two levels"));
}

TEST(DeviceHeader, ComesOutAsItWentIn) {
  const sync::DeviceHeader header{sync::kMaxDeviceTokens, 3, true, 0xDEADBEEF, 7};
  const sync::WideWord word = sync::encode(header, sync::tag_of(0x1'2345'6789));
  EXPECT_EQ(word.w, 0x2345'6789U);
  const sync::DeviceHeader out = sync::decode_header(word);
  EXPECT_EQ(out.num_tokens, header.num_tokens);
  EXPECT_EQ(out.operation, header.operation);
  EXPECT_EQ(out.has_weights, header.has_weights);
  EXPECT_EQ(out.digest, header.digest);
  EXPECT_EQ(out.refusal, header.refusal);
}

}  // namespace
}  // namespace moebus::model
