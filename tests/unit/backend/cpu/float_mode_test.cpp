#include "backend/cpu/float_mode.hpp"

#include <gtest/gtest.h>

namespace moebus::backend {
namespace {

constexpr unsigned kFlushToZero = 0x8000;
constexpr unsigned kSubnormalsAreZero = 0x0040;
constexpr unsigned kRoundDown = 0x2000;

TEST(DefaultFloatMode, KeepsSubnormalsWhileItLivesAndRestoresTheCallersMode) {
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | kFlushToZero | kSubnormalsAreZero | kRoundDown);
  {
    const DefaultFloatMode mode;
    volatile float smallest = 0x1p-149F;
    EXPECT_EQ(smallest + smallest, 0x1p-148F);
    EXPECT_EQ(_mm_getcsr() & (kFlushToZero | kSubnormalsAreZero | kRoundDown), 0U);
  }
  const unsigned after = _mm_getcsr();
  _mm_setcsr(before);
  EXPECT_EQ(after & (kFlushToZero | kSubnormalsAreZero | kRoundDown), kFlushToZero | kSubnormalsAreZero | kRoundDown);
}

}  // namespace
}  // namespace moebus::backend
