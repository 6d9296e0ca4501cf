// Windows between ranks that are processes. This process never uses CUDA, so that it can fork.

#include <gtest/gtest.h>

#include "tests/cuda/descriptor_mesh.hpp"
#include "tests/cuda/gpu_probe.hpp"
#include "tests/cuda/window_ranks.hpp"
#include "tests/support/ranks.hpp"

namespace moebus::tests {
namespace {

class WindowsOfProcesses : public ::testing::TestWithParam<int> {};

TEST_P(WindowsOfProcesses, AreWrittenAndReadByEveryRank) {
  MOEBUS_NEEDS_GPU();
  const int num_ranks = GetParam();
  MeetingPlace place(num_ranks);
  DescriptorMesh mesh(num_ranks);
  WindowMeeting meeting;
  meeting.num_ranks = num_ranks;
  meeting.meet = [&] { place.meet(); };
  meeting.give = [&](int rank, int peer, int descriptor) { mesh.give(rank, peer, descriptor); };
  meeting.take = [&](int rank, int peer) { return mesh.take(rank, peer); };
  EXPECT_TRUE(all_ok(run_as_processes(num_ranks, [&](int rank) { share_windows(meeting, rank); })));
}

INSTANTIATE_TEST_SUITE_P(Ranks, WindowsOfProcesses, ::testing::Values(2, 4, 8), ::testing::PrintToStringParamName());

}  // namespace
}  // namespace moebus::tests
