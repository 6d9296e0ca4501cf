#include "backend/cpu/simd_level.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "backend/cpu/backend_cpu.hpp"
#include "moebus/error.hpp"

namespace moebus::backend {
namespace {

/// Sets MOEBUS_SIMD for one test.
class SimdVariable : public testing::Test {
 protected:
  void TearDown() override { ::unsetenv("MOEBUS_SIMD"); }

  static void set(const char* value) { ::setenv("MOEBUS_SIMD", value, 1); }

  static std::string message_of_best() {
    try {
      (void)best_simd_level();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      return error.what();
    }
    return {};
  }
};

TEST_F(SimdVariable, ChoosesTheScalarLevel) {
  set("scalar");
  EXPECT_EQ(best_simd_level(), SimdLevel::scalar);
  EXPECT_EQ(make_cpu_backend()->level(), "scalar");
}

TEST_F(SimdVariable, IsRefusedWithWhatIsAllowedWhenItNamesNoLevel) {
  set("neon");
  EXPECT_THAT(message_of_best(),
              testing::AllOf(testing::HasSubstr("MOEBUS_SIMD=neon"), testing::HasSubstr("scalar, avx2 and avx512")));
}

TEST_F(SimdVariable, IsRefusedAsUnsupportedWhenTheCpuLacksTheLevel) {
  if (has_simd_level(SimdLevel::avx512)) GTEST_SKIP() << "this CPU has every level";
  set("avx512");
  try {
    (void)best_simd_level();
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unsupported);
  }
  EXPECT_THROW((void)make_cpu_backend(SimdLevel::avx512), Error);
}

TEST_F(SimdVariable, LeavesTheHighestLevelWhenUnset) {
  const SimdLevel best = best_simd_level();
  EXPECT_TRUE(has_simd_level(best));
  for (const SimdLevel level : {SimdLevel::avx2, SimdLevel::avx512}) {
    if (has_simd_level(level)) {
      EXPECT_GE(best, level);
    }
  }
}

TEST(CpuBackend, SaysItsNameAndLevel) {
  for (const SimdLevel level : {SimdLevel::scalar, SimdLevel::avx2, SimdLevel::avx512}) {
    if (!has_simd_level(level)) continue;
    const auto backend = make_cpu_backend(level);
    EXPECT_EQ(backend->name(), "cpu");
    EXPECT_EQ(backend->level(), to_string(level));
  }
}

}  // namespace
}  // namespace moebus::backend
