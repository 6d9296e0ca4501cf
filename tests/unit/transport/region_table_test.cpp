#include "transport/region_table.hpp"

#include <gtest/gtest.h>

#include <array>

namespace moebus::transport {
namespace {

class RegionTableTest : public ::testing::Test {
 protected:
  RegionTableTest() { table_.add({4, {memory_.data() + 8, 16, MemoryKind::host}, {}}); }

  std::array<std::byte, 32> memory_{};
  RegionTable table_;
};

TEST_F(RegionTableTest, FindsARegistrationUntilItIsRemoved) {
  ASSERT_NE(table_.find({4, 0}, 16), nullptr);
  EXPECT_EQ(table_.find({4, 16}, 0)->local.data, memory_.data() + 8);
  table_.remove(4);
  EXPECT_EQ(table_.find({4, 0}, 16), nullptr);
}

TEST_F(RegionTableTest, EndsTheProgramOnAddressesThatNobodyMayUse) {
  EXPECT_DEATH((void)table_.find({4, 1}, 16), "limit_bytes");
  EXPECT_DEATH((void)table_.find({4, 17}, 0), "limit_bytes");
  EXPECT_DEATH((void)table_.find({4, 8}, ~std::size_t{0}), "limit_bytes");
  EXPECT_DEATH((void)table_.find({5, 0}, 1), "num_known_");
}

TEST_F(RegionTableTest, OwnsSourcesThatLieWhollyInARegion) {
  EXPECT_TRUE(table_.owns(memory_.data() + 8, 16));
  EXPECT_TRUE(table_.owns(memory_.data() + 24, 0));
  EXPECT_FALSE(table_.owns(memory_.data() + 8, 17));
  EXPECT_FALSE(table_.owns(memory_.data() + 7, 1));
  EXPECT_FALSE(table_.owns(memory_.data() + 25, 0));
  table_.remove(4);
  EXPECT_FALSE(table_.owns(memory_.data() + 8, 16));
}

}  // namespace
}  // namespace moebus::transport
