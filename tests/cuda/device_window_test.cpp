// Windows of one process: what is refused, and what is left behind.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>
#include <limits>
#include <vector>

#include "backend/cuda/device_cuda.hpp"
#include "tests/cuda/gpu_probe.hpp"
#include "tests/support/errors.hpp"

namespace moebus::tests {
namespace {

using base::UniqueFd;
using ::testing::HasSubstr;

constexpr std::size_t kBytes = 5 << 20;

UniqueFd duplicate(int descriptor) { return UniqueFd(::fcntl(descriptor, F_DUPFD_CLOEXEC, 0)); }

std::ptrdiff_t num_descriptors() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator());
}

class DeviceWindowTest : public ::testing::Test {
 protected:
  void SetUp() override {
    MOEBUS_NEEDS_GPU();
    device_ = backend::cuda::make_device(0);
  }

  /// Makes windows of two ranks, maps each into the other, and lets a byte cross.
  void share_once() {
    const auto a = device_->make_window(0, 2, kBytes);
    const auto b = device_->make_window(1, 2, kBytes);
    a->map_peer(1, duplicate(b->descriptor()));
    b->map_peer(0, duplicate(a->descriptor()));
    device_->fill(a->base() + a->stride_bytes() + kBytes - 1, 0x42, 1);
    std::byte seen{};
    device_->copy(&seen, b->base() + b->stride_bytes() + kBytes - 1, 1);
    EXPECT_EQ(seen, std::byte{0x42});
  }

  std::unique_ptr<backend::Device> device_;
};

TEST_F(DeviceWindowTest, LeavesNoDescriptorBehind) {
  share_once();  // what the driver opens once for all is open now
  const auto before = num_descriptors();
  for (int round = 0; round < 8; ++round) share_once();
  EXPECT_EQ(num_descriptors(), before);
}

TEST_F(DeviceWindowTest, LeavesNoMemoryBehind) {
  const std::size_t size_bytes = device_->facts().memory_bytes / 4;
  for (int round = 0; round < 12; ++round) {
    const auto window = device_->make_window(0, 2, size_bytes);
    ASSERT_GE(window->stride_bytes(), size_bytes) << round;
  }
}

TEST_F(DeviceWindowTest, IsNotHandedToProgramsThatAreStarted) {
  const auto window = device_->make_window(0, 2, kBytes);
  EXPECT_NE(::fcntl(window->descriptor(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST_F(DeviceWindowTest, StaysWithAPeerThatHasMappedIt) {
  const auto a = device_->make_window(0, 2, kBytes);
  auto b = device_->make_window(1, 2, kBytes);
  a->map_peer(1, duplicate(b->descriptor()));
  device_->fill(b->base() + b->stride_bytes(), 0x33, 1);
  b.reset();
  std::byte seen{};
  device_->copy(&seen, a->base() + a->stride_bytes(), 1);
  EXPECT_EQ(seen, std::byte{0x33});
}

TEST_F(DeviceWindowTest, RefusesDescriptorsOfOtherThings) {
  const auto window = device_->make_window(0, 3, kBytes);
  int pipe_ends[2];
  ASSERT_EQ(::pipe2(pipe_ends, O_CLOEXEC), 0);
  const UniqueFd write_end(pipe_ends[1]);
  std::vector<UniqueFd> wrong;
  wrong.emplace_back(pipe_ends[0]);
  wrong.emplace_back(::memfd_create("not a window", MFD_CLOEXEC));
  wrong.emplace_back(::open("/dev/null", O_RDWR | O_CLOEXEC));
  for (UniqueFd& one : wrong) {
    ASSERT_TRUE(one.is_open());
    EXPECT_THAT(
        message_of(ErrorCode::transport_failure, [&] { window->map_peer(1, std::move(one)); }, 0), HasSubstr("peer 1"));
  }
  // Nothing is broken: the right one is taken afterwards.
  const auto peer = device_->make_window(1, 3, kBytes);
  window->map_peer(1, duplicate(peer->descriptor()));
}

TEST_F(DeviceWindowTest, RefusesAWindowThatIsSmaller) {
  const auto window = device_->make_window(0, 2, 16 * kBytes);
  const auto small = device_->make_window(1, 2, 1);
  ASSERT_LT(small->stride_bytes(), window->stride_bytes());
  EXPECT_THAT(message_of(
                  ErrorCode::transport_failure, [&] { window->map_peer(1, duplicate(small->descriptor())); }, 0),
              HasSubstr(std::to_string(window->stride_bytes()) + " bytes"));
  const auto peer = device_->make_window(1, 2, 16 * kBytes);
  window->map_peer(1, duplicate(peer->descriptor()));
}

TEST_F(DeviceWindowTest, RefusesPeersThatAreNone) {
  const auto window = device_->make_window(1, 3, kBytes);
  for (const int peer : {-1, 1, 3}) {
    EXPECT_THAT(message_of(
                    ErrorCode::invalid_argument, [&] { window->map_peer(peer, duplicate(window->descriptor())); }, 1),
                HasSubstr("peer is " + std::to_string(peer)));
  }
  EXPECT_THAT(
      message_of(ErrorCode::invalid_argument, [&] { window->map_peer(0, UniqueFd()); }, 1), HasSubstr("no descriptor"));
  const auto peer = device_->make_window(0, 3, kBytes);
  window->map_peer(0, duplicate(peer->descriptor()));
  EXPECT_THAT(message_of(
                  ErrorCode::invalid_argument, [&] { window->map_peer(0, duplicate(peer->descriptor())); }, 1),
              HasSubstr("mapped already"));
}

TEST_F(DeviceWindowTest, RefusesSizesThatAreNone) {
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { device_->make_window(0, 2, 0); }), HasSubstr("0 bytes"));
  constexpr std::size_t kMost = std::numeric_limits<std::size_t>::max();
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { device_->make_window(0, 2, kMost); }),
              HasSubstr(std::to_string(kMost)));
  for (const auto& [rank, num_ranks] : {std::pair{-1, 2}, {2, 2}, {0, 0}, {0, kMaxRanks + 1}}) {
    message_of(ErrorCode::invalid_argument, [&] { device_->make_window(rank, num_ranks, kBytes); });
  }
}

TEST_F(DeviceWindowTest, SaysThatThereIsNotSoMuchMemory) {
  const std::size_t too_many = 2 * device_->facts().memory_bytes;
  EXPECT_THAT(message_of(ErrorCode::resource_exhausted, [&] { device_->make_window(0, 2, too_many); }),
              HasSubstr("cuMemCreate"));
  share_once();
}

TEST_F(DeviceWindowTest, ReservesAddressesForTheLargestGroup) {
  const auto window = device_->make_window(kMaxRanks - 1, kMaxRanks, kBytes);
  std::byte seen{};
  device_->copy(&seen, window->base() + (kMaxRanks - 1) * window->stride_bytes(), 1);
  EXPECT_EQ(seen, std::byte{0xFF});
}

}  // namespace
}  // namespace moebus::tests
