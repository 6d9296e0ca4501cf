#include "base/deadline.hpp"

#include <gtest/gtest.h>

#include <limits>

namespace moebus::base {
namespace {

using namespace std::chrono_literals;

TEST(Deadline, IsOverAtOnceWhenTheLimitIsZero) {
  const Deadline deadline(0ns);
  EXPECT_TRUE(deadline.is_over());
  EXPECT_EQ(deadline.left(), 0ns);
}

TEST(Deadline, LeavesNoNegativeTimeWhenTheLimitIsNegative) {
  const Deadline deadline(-5s);
  EXPECT_TRUE(deadline.is_over());
  EXPECT_EQ(deadline.left(), 0ns);
}

TEST(Deadline, IsNotOverWhileTimeIsLeft) {
  const Deadline deadline(24h);
  EXPECT_FALSE(deadline.is_over());
  EXPECT_GT(deadline.left(), 0ns);
  EXPECT_LE(deadline.left(), 24h);
}

TEST(Deadline, IsNotOverWhenTheLimitIsTheLargestThatThereIs) {
  const Deadline deadline(std::chrono::nanoseconds::max());
  EXPECT_FALSE(deadline.is_over());
  EXPECT_GT(deadline.left(), 24h);
}

TEST(Deadline, CountsTheTimeWaitedFromItsStart) {
  const auto before = Clock::now();
  const Deadline deadline(1h);
  const auto waited = deadline.waited();
  EXPECT_GE(waited, 0ns);
  EXPECT_LE(waited, Clock::now() - before);
  EXPECT_GE(deadline.end(), before + 1h);
}

}  // namespace
}  // namespace moebus::base
