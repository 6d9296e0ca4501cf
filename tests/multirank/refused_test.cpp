// Refused calls over an unruly transport: rows that left before the refusal was known must not fall on those of a later
// call. Without a wait for them this fails within a few seeds.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "tests/support/exchange_run.hpp"
#include "tests/support/test_names.hpp"

namespace moebus::tests {
namespace {

constexpr int kRanks = 3;

class Refused : public ::testing::TestWithParam<Route> {};

TEST_P(Refused, CallsLeaveNoRowsBehindThatSpoilLaterOnes) {
  for (std::uint64_t seed = first_seed(); seed < first_seed() + 40 / kSlowdown; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    ExchangeCase one;
    one.seed = seed;
    one.num_ranks = kRanks;
    one.map_peers = MapPeers::none;
    one.config = small_config(GetParam(), kRanks);
    one.config.layout = Layout::expert_major;
    one.num_tokens.assign(kRanks, 15);
    std::vector<DispatchTruth> sent;
    std::vector<CombineTruth> back;
    for (int call = 0; call < 4; ++call) {
      sent.push_back(make_dispatch_truth(one, call));
      back.push_back(make_combine_truth(one, sent.back(), call));
    }
    ::setenv("MOEBUS_TEST_TRANSPORT", ("unruly:" + std::to_string(seed)).c_str(), 1);
    const auto outcomes = run_group(one, [&](Group& group) {
      ExchangeRun run(group, one);
      for (std::size_t call = 0; call < sent.size(); ++call) {
        const int refuser = static_cast<int>((seed + call) % kRanks);
        DispatchBuffers buffers;
        // What the others send of this call differs from what the next calls bring.
        DispatchInput input = run.input(sent[(call + 1) % sent.size()], buffers);
        if (group.rank() == refuser) input.tokens.shape[1] += 1;
        error_of(ErrorCode::invalid_argument, refuser, [&] { run.exchange().dispatch(input); });
        DispatchResult result = run.dispatch(sent[call], buffers);
        CombineBuffers answers;
        CombineInput bad = run.answers(sent[call], back[call], result.handle, answers);
        if (group.rank() == refuser) bad.rows.shape[1] += 1;
        error_of(ErrorCode::invalid_argument, refuser, [&] { run.exchange().combine(bad); });
        run.combine(sent[call], back[call], result.handle);
      }
    });
    ::unsetenv("MOEBUS_TEST_TRANSPORT");
    ASSERT_TRUE(all_ok(outcomes));
  }
}

INSTANTIATE_TEST_SUITE_P(Every, Refused, ::testing::ValuesIn(kRoutes), name_of_route_case);

}  // namespace
}  // namespace moebus::tests
