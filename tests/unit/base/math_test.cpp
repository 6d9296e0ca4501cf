#include "base/math.hpp"

#include <gtest/gtest.h>

namespace moebus::base {
namespace {

TEST(AlignUp, KeepsMultiplesAndRaisesTheRest) {
  EXPECT_EQ(align_up<std::size_t>(0, 16), 0U);
  EXPECT_EQ(align_up<std::size_t>(1, 16), 16U);
  EXPECT_EQ(align_up<std::size_t>(16, 16), 16U);
  EXPECT_EQ(align_up<std::size_t>(17, 16), 32U);
}

TEST(AlignUp, TakesMultiplesThatAreNoPowersOfTwo) { EXPECT_EQ(align_up<std::int64_t>(13, 12), 24); }

TEST(CeilDiv, RoundsUp) {
  EXPECT_EQ(ceil_div(0, 8), 0);
  EXPECT_EQ(ceil_div(8, 8), 1);
  EXPECT_EQ(ceil_div(9, 8), 2);
}

}  // namespace
}  // namespace moebus::base
