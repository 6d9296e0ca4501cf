#include "cli/overlap.hpp"

#include <gtest/gtest.h>

namespace moebus::cli {
namespace {

TEST(HiddenPart, IsAllIfOnlyTheExpertsTookTime) { EXPECT_EQ(hidden_part(100, 40, 100), 1.0); }

TEST(HiddenPart, IsNoneIfTheTimesAddUp) { EXPECT_EQ(hidden_part(100, 40, 140), 0.0); }

TEST(HiddenPart, IsInBetweenIfSomeWasHidden) { EXPECT_DOUBLE_EQ(hidden_part(100, 40, 130), 0.25); }

TEST(HiddenPart, StaysBetweenNoneAndAll) {
  EXPECT_EQ(hidden_part(100, 40, 200), 0.0);
  EXPECT_EQ(hidden_part(100, 40, 50), 1.0);
  EXPECT_EQ(hidden_part(100, 0, 100), 0.0);
}

TEST(HiddenPart, CanBeToldIfTimesVaryByLessThanHalfTheExchange) {
  const Summary steady{10, 100, 130, 98, 140};
  const Summary unsteady{10, 100, 130, 70, 140};
  EXPECT_TRUE(can_tell_hidden(steady, steady, 40));
  EXPECT_FALSE(can_tell_hidden(unsteady, steady, 40));
  EXPECT_FALSE(can_tell_hidden(steady, unsteady, 40));
}

}  // namespace
}  // namespace moebus::cli
