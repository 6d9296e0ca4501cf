#include "workload/random.hpp"

#include <gtest/gtest.h>

#include <array>
#include <set>

namespace moebus::workload {
namespace {

TEST(Scramble, GivesThePublishedSplitmixSequence) {
  // The first outputs of splitmix64 seeded with 0: the states are multiples of the golden ratio constant.
  EXPECT_EQ(scramble(0x9E3779B97F4A7C15U), 0xE220A8397B1DCDAFU);
  EXPECT_EQ(scramble(2 * 0x9E3779B97F4A7C15U), 0x6E789E6AA1B965F4U);
}

TEST(Random, RepeatsItsSequenceForASeedAndChangesItWithTheSeed) {
  Random a(7), b(7), c(8);
  for (int i = 0; i < 100; ++i) {
    const std::uint64_t value = a.next();
    ASSERT_EQ(value, b.next());
    ASSERT_NE(value, c.next());
  }
}

TEST(Random, DrawsBelowTheLimitAndReachesEveryValue) {
  Random random(1);
  std::array<int, 7> hits{};
  for (int i = 0; i < 7000; ++i) ++hits.at(random.below(7));
  for (const int count : hits) EXPECT_NEAR(count, 1000, 150);  // more than four standard deviations
  EXPECT_EQ(random.below(1), 0U);
}

TEST(Random, GivesUnitValuesBelowOne) {
  Random random(2);
  float sum = 0;
  for (int i = 0; i < 1000; ++i) {
    const float value = random.unit();
    ASSERT_GE(value, 0.0F);
    ASSERT_LT(value, 1.0F);
    sum += value;
  }
  EXPECT_NEAR(sum, 500.0F, 50.0F);
}

TEST(SeedFrom, DependsOnEveryPartAndItsPlace) {
  std::set<std::uint64_t> seeds;
  for (std::uint64_t a = 0; a < 4; ++a) {
    for (std::uint64_t b = 0; b < 4; ++b) {
      for (std::uint64_t c = 0; c < 4; ++c) seeds.insert(seed_from(a, b, c));
    }
  }
  EXPECT_EQ(seeds.size(), 64U);
}

}  // namespace
}  // namespace moebus::workload
