// Windows between ranks that are threads of one process.

#include <fcntl.h>
#include <gtest/gtest.h>

#include <vector>

#include "base/math.hpp"
#include "tests/cuda/gpu_probe.hpp"
#include "tests/cuda/window_ranks.hpp"
#include "tests/support/ranks.hpp"

namespace moebus::tests {
namespace {

using base::idx;

class WindowsOfThreads : public ::testing::TestWithParam<int> {};

TEST_P(WindowsOfThreads, AreWrittenAndReadByEveryRank) {
  MOEBUS_NEEDS_GPU();
  const int num_ranks = GetParam();
  MeetingPlace place(num_ranks);
  std::vector<int> given(idx(num_ranks), -1);
  WindowMeeting meeting;
  meeting.num_ranks = num_ranks;
  meeting.meet = [&] { place.meet(); };
  meeting.give = [&](int rank, int /*peer*/, int descriptor) { given[idx(rank)] = descriptor; };
  meeting.take = [&](int /*rank*/, int peer) { return base::UniqueFd(::fcntl(given[idx(peer)], F_DUPFD_CLOEXEC, 0)); };
  EXPECT_TRUE(all_ok(run_as_threads(num_ranks, [&](int rank) { share_windows(meeting, rank); })));
}

INSTANTIATE_TEST_SUITE_P(Ranks, WindowsOfThreads, ::testing::Values(2, 4, 8), ::testing::PrintToStringParamName());

}  // namespace
}  // namespace moebus::tests
