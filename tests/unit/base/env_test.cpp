#include "base/env.hpp"

#include <gtest/gtest.h>

#include <cstdlib>

namespace moebus::base {
namespace {

constexpr const char* kName = "MOEBUS_ENV_TEST";

TEST(Env, GivesTheValueOfAVariableThatIsSet) {
  ASSERT_EQ(::setenv(kName, "two words", 1), 0);
  EXPECT_EQ(env(kName), "two words");
}

TEST(Env, GivesNothingWhenTheVariableIsUnset) {
  ASSERT_EQ(::unsetenv(kName), 0);
  EXPECT_EQ(env(kName), std::nullopt);
}

TEST(Env, GivesNothingWhenTheVariableIsEmpty) {
  ASSERT_EQ(::setenv(kName, "", 1), 0);
  EXPECT_EQ(env(kName), std::nullopt);
}

}  // namespace
}  // namespace moebus::base
