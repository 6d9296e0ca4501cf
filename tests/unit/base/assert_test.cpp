#include "base/assert.hpp"

#include <gtest/gtest.h>

#include <thread>

namespace moebus::base {
namespace {

TEST(Assert, EvaluatesATrueConditionOnceAndGoesOn) {
  int num_evaluations = 0;
  MOEBUS_ASSERT(++num_evaluations == 1);
  EXPECT_EQ(num_evaluations, 1);
}

TEST(AssertDeathTest, NamesExpressionFileRankAndEpochBeforeItAborts) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  assert_context() = {.rank = 3, .epoch = 41};
  EXPECT_EXIT(MOEBUS_ASSERT(1 + 1 == 3),
              testing::KilledBySignal(SIGABRT),
              "assertion failed: 1 \\+ 1 == 3 .*assert_test.cpp:[0-9]+, rank 3, epoch 41");
  assert_context() = {};
}

TEST(AssertDeathTest, ChecksHotPathsInDebugBuildsOnly) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEBUG_DEATH(MOEBUS_DASSERT(false), "assertion failed: false");
}

TEST(AssertContext, BelongsToOneThread) {
  assert_context() = {.rank = 5, .epoch = 1};
  int other_rank = 0;
  std::thread([&] { other_rank = assert_context().rank; }).join();
  EXPECT_EQ(other_rank, -1);
  assert_context() = {};
}

}  // namespace
}  // namespace moebus::base
