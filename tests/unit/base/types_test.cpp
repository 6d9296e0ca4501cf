#include "moebus/types.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace moebus {
namespace {

// Names of values 0, 1, ... until the first that the enum does not have.
template <class Enum>
std::vector<std::string> names_of() {
  std::vector<std::string> names;
  for (int value = 0; to_string(static_cast<Enum>(value)) != "unknown"; ++value) {
    names.emplace_back(to_string(static_cast<Enum>(value)));
  }
  return names;
}

using Names = std::vector<std::string>;

TEST(ToString, GivesEveryValueTheNameItHasInTheEnum) {
  EXPECT_EQ(names_of<DType>(), (Names{"u8", "i8", "e4m3", "e5m2", "bf16", "f16", "i16", "i32", "f32", "i64", "f64"}));
  EXPECT_EQ(names_of<MemoryKind>(), (Names{"host", "device"}));
  EXPECT_EQ(names_of<Path>(), (Names{"latency", "throughput"}));
  EXPECT_EQ(names_of<Delivery>(), (Names{"direct", "staged"}));
  EXPECT_EQ(names_of<Layout>(), (Names{"rank_major", "expert_major", "expert_padded"}));
  EXPECT_EQ(names_of<CombineRows>(), (Names{"per_rank", "per_expert"}));
  EXPECT_EQ(names_of<Cast>(), (Names{"none", "fp8"}));
  EXPECT_EQ(names_of<ScaleFormat>(), (Names{"none", "f32", "ue8m0"}));
  EXPECT_EQ(names_of<ScaleOrder>(), (Names{"row_major", "column_major"}));
  EXPECT_EQ(names_of<Weighting>(), (Names{"none", "dispatched", "given"}));
}

TEST(SizeOf, IsTheNumberOfBytesThatTheNameSays) {
  EXPECT_EQ(size_of(DType::e4m3), 1U);
  EXPECT_EQ(size_of(DType::bf16), 2U);
  EXPECT_EQ(size_of(DType::f32), 4U);
  EXPECT_EQ(size_of(DType::i64), 8U);
  EXPECT_EQ(size_of(static_cast<DType>(200)), 0U);
}

TEST(IsSummable, HoldsForTheThreeFloatTypesThatCombineAdds) {
  int num_summable = 0;
  for (int value = 0; value <= static_cast<int>(DType::f64); ++value) {
    num_summable += is_summable(static_cast<DType>(value)) ? 1 : 0;
  }
  EXPECT_EQ(num_summable, 3);
  EXPECT_TRUE(is_summable(DType::bf16) && is_summable(DType::f16) && is_summable(DType::f32));
}

}  // namespace
}  // namespace moebus
