#include "cli/samples.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace moebus::cli {
namespace {

TEST(Summary, TakesPercentilesByNearestRank) {
  std::vector<double> samples(200);
  std::iota(samples.rbegin(), samples.rend(), 1.0);  // 200 .. 1, so that sorting shows
  const Summary summary = summarise(samples);
  EXPECT_EQ(summary.count, 200U);
  EXPECT_EQ(summary.min, 1.0);
  EXPECT_EQ(summary.median, 100.0);
  EXPECT_EQ(summary.p99, 198.0);
  EXPECT_EQ(summary.max, 200.0);
}

TEST(Summary, RepeatsTheOnlySample) {
  const std::vector<double> samples{7.5};
  const Summary summary = summarise(samples);
  EXPECT_EQ(summary.median, 7.5);
  EXPECT_EQ(summary.p99, 7.5);
}

TEST(Summary, IsZeroWithoutSamples) {
  const Summary summary = summarise({});
  EXPECT_EQ(summary.count, 0U);
  EXPECT_EQ(summary.max, 0.0);
}

}  // namespace
}  // namespace moebus::cli
