// Runs the README's function on two ranks. Its experts do nothing and the weights add up to 1: what goes out comes
// back.

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/support/ranks.hpp"

// As on the page; its definition is generated from there.
void run_layer(int rank, int num_ranks, int tokens, const float* x, const int* ids, const float* weights, float* y);

namespace moebus::tests {

TEST(ReadmeLayer, BringsEveryTokenBackWhenExpertsDoNothing) {
  const std::vector<int> ids{0, 7, 1, 6, 2, 5, 3, 4};
  const std::vector<float> weights{0.25F, 0.75F, 0.5F, 0.5F, 0.75F, 0.25F, 1.0F, 0.0F};
  const auto outcomes = run_as_threads(2, [&](int rank) {
    std::vector<float> x(4 * 64);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i) + 1000.0F * static_cast<float>(rank);
    std::vector<float> y(x.size(), -1.0F);
    run_layer(rank, 2, 4, x.data(), ids.data(), weights.data(), y.data());
    EXPECT_EQ(x, y);
  });
  EXPECT_TRUE(all_ok(outcomes));
}

}  // namespace moebus::tests
