#include "tests/cuda/window_ranks.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <new>
#include <stdexcept>
#include <thread>
#include <vector>

#include "backend/cuda/device_cuda.hpp"
#include "backend/cuda/facts.hpp"
#include "base/deadline.hpp"
#include "base/math.hpp"

namespace moebus::tests {
namespace {

using base::idx;

constexpr std::size_t kBlockBytes = 12'345;                  // of each writer in each window
constexpr std::size_t kWindowBytes = 3 * (1 << 20) + 4'567;  // no multiple of anything

std::vector<std::byte> pattern_of(int writer, int owner) {
  std::vector<std::byte> bytes(kBlockBytes);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(i * 31 + idx(writer) * 7 + idx(owner) * 101);
  }
  return bytes;
}

std::vector<std::byte> read(backend::Device& device, const std::byte* source, std::size_t size_bytes) {
  std::vector<std::byte> bytes(size_bytes);
  device.copy(bytes.data(), source, size_bytes);
  return bytes;
}

/// What the window of `owner` holds when every rank in `writers` has written.
std::vector<std::byte> expected_in(int owner, int num_writers, std::size_t size_bytes) {
  std::vector<std::byte> bytes(size_bytes, std::byte{0xFF});
  for (int writer = 0; writer < num_writers; ++writer) {
    const std::vector<std::byte> block = pattern_of(writer, owner);
    std::copy(block.begin(), block.end(), bytes.begin() + static_cast<std::ptrdiff_t>(idx(writer) * kBlockBytes));
  }
  return bytes;
}

}  // namespace

void share_windows(const WindowMeeting& meeting, int rank) {
  const int num_devices = static_cast<int>(backend::cuda::list_devices().size());
  const auto device = backend::cuda::make_device(rank % num_devices);
  const auto window = device->make_window(rank, meeting.num_ranks, kWindowBytes);
  const std::size_t stride = window->stride_bytes();
  ASSERT_GE(stride, kWindowBytes);
  const auto window_of = [&](int owner) { return window->base() + idx(owner) * stride; };

  for (int peer = 0; peer < meeting.num_ranks; ++peer) {
    if (peer != rank) meeting.give(rank, peer, window->descriptor());
  }
  meeting.meet();
  for (int peer = 0; peer < meeting.num_ranks; ++peer) {
    if (peer != rank) window->map_peer(peer, meeting.take(rank, peer));
  }
  for (int owner = 0; owner < meeting.num_ranks; ++owner) {
    EXPECT_TRUE(read(*device, window_of(owner), stride) == expected_in(owner, 0, stride))
        << "rank " << rank << " finds other bytes than 0xFF in the new window of rank " << owner;
  }
  meeting.meet();
  for (int owner = 0; owner < meeting.num_ranks; ++owner) {
    device->copy(window_of(owner) + idx(rank) * kBlockBytes, pattern_of(rank, owner).data(), kBlockBytes);
  }
  meeting.meet();
  for (int owner = 0; owner < meeting.num_ranks; ++owner) {
    EXPECT_TRUE(read(*device, window_of(owner), stride) == expected_in(owner, meeting.num_ranks, stride))
        << "rank " << rank << " does not find what all wrote in the window of rank " << owner;
  }
  meeting.meet();
}

struct MeetingPlace::Count {
  std::atomic<int> arrived = 0;
};

MeetingPlace::MeetingPlace(int num_ranks) : num_ranks_(num_ranks) {
  void* const page = ::mmap(nullptr, sizeof(Count), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) throw std::runtime_error("mmap");
  count_ = new (page) Count;
}

MeetingPlace::~MeetingPlace() { ::munmap(count_, sizeof(Count)); }

void MeetingPlace::meet() {
  const base::Deadline deadline{std::chrono::seconds{30}};
  const int ticket = count_->arrived.fetch_add(1);
  const int wanted = (ticket / num_ranks_ + 1) * num_ranks_;
  while (count_->arrived.load() < wanted) {
    if (deadline.is_over()) throw std::runtime_error("not all ranks came");
    std::this_thread::sleep_for(std::chrono::microseconds{200});
  }
}

}  // namespace moebus::tests
