#include "backend/cpu/float_mode.hpp"

#include <gtest/gtest.h>

namespace moebus::backend {
namespace {

constexpr std::uint64_t kStray = FloatControl::kFlushes | FloatControl::kRoundsDown;

TEST(DefaultFloatMode, KeepsSubnormalsWhileItLivesAndRestoresTheCallersMode) {
  const std::uint64_t before = FloatControl::get();
  FloatControl::set(before | kStray);
  {
    const DefaultFloatMode mode;
    volatile float smallest = 0x1p-149F;
    EXPECT_EQ(smallest + smallest, 0x1p-148F);
    EXPECT_EQ(FloatControl::get() & kStray, 0U);
  }
  const std::uint64_t after = FloatControl::get();
  FloatControl::set(before);
  EXPECT_EQ(after & kStray, kStray);
}

TEST(FloatControl, NamesTheBitsThatFlushAndRoundDown) {
  const std::uint64_t before = FloatControl::get();
  volatile float smallest = 0x1p-149F;
  volatile float third = 3.0F;
  FloatControl::set(before | FloatControl::kFlushes);
  const volatile float flushed = smallest + smallest;
  FloatControl::set(before | FloatControl::kRoundsDown);
  const volatile float below = 1.0F / third;
  FloatControl::set(before);
  const volatile float nearest = 1.0F / third;
  EXPECT_EQ(flushed, 0.0F);
  EXPECT_LT(below, nearest);
}

}  // namespace
}  // namespace moebus::backend
