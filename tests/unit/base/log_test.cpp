#include "base/log.hpp"

#include <gtest/gtest.h>

#include <cstdlib>

namespace moebus::base {
namespace {

// The level is read once per process, so each case runs in a process of its own.
[[noreturn]] void print_lines_with_level(const char* level) {
  if (level == nullptr) {
    ::unsetenv("MOEBUS_LOG");
  } else {
    ::setenv("MOEBUS_LOG", level, 1);
  }
  log().info("quiet line");
  log().warn("loud line");
  log().flush();
  std::exit(0);
}

class LogDeathTest : public testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(LogDeathTest, SaysWarningsButNotInformationByDefault) {
  EXPECT_EXIT(print_lines_with_level(nullptr), testing::ExitedWithCode(0), "^[^\n]*moebus [^\n]*loud line\n$");
}

TEST_F(LogDeathTest, SaysInformationWhenAsked) {
  EXPECT_EXIT(print_lines_with_level("info"), testing::ExitedWithCode(0), "quiet line.*\n.*loud line");
}

TEST_F(LogDeathTest, SaysNothingWhenTurnedOff) {
  EXPECT_EXIT(print_lines_with_level("off"), testing::ExitedWithCode(0), "^$");
}

TEST_F(LogDeathTest, KeepsTheDefaultAndSaysSoWhenTheLevelHasNoSuchName) {
  EXPECT_EXIT(print_lines_with_level("loudly"), testing::ExitedWithCode(0), "MOEBUS_LOG=loudly.*\n.*loud line");
}

}  // namespace
}  // namespace moebus::base
