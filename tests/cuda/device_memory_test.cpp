#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "backend/cuda/device_cuda.hpp"
#include "tests/cuda/gpu_probe.hpp"
#include "tests/support/errors.hpp"

namespace moebus::tests {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

constexpr std::size_t kBytes = 1'000'003;

class DeviceMemoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    MOEBUS_NEEDS_GPU();
    device_ = backend::cuda::make_device(0);
  }

  std::vector<std::byte> read(const std::byte* source, std::size_t size_bytes) {
    std::vector<std::byte> bytes(size_bytes);
    device_->copy(bytes.data(), source, size_bytes);
    return bytes;
  }

  std::unique_ptr<backend::Device> device_;
};

TEST_F(DeviceMemoryTest, IsZeroedThoughItWasUsedBefore) {
  for (int round = 0; round < 3; ++round) {
    const auto memory = device_->allocate(kBytes);
    EXPECT_EQ(memory->size_bytes(), kBytes);
    EXPECT_THAT(read(memory->data(), kBytes), Each(std::byte{0}));
    device_->fill(memory->data(), 0xAB, kBytes);
    EXPECT_THAT(read(memory->data(), kBytes), Each(std::byte{0xAB}));
  }
}

TEST_F(DeviceMemoryTest, KeepsWhatIsCopiedIn) {
  const auto memory = device_->allocate(kBytes);
  const auto other = device_->allocate(kBytes);
  std::vector<std::byte> bytes(kBytes);
  for (std::size_t i = 0; i < kBytes; ++i) bytes[i] = static_cast<std::byte>(i * 37);
  device_->copy(memory->data(), bytes.data(), kBytes);
  device_->copy(other->data(), memory->data(), kBytes);
  EXPECT_TRUE(read(other->data(), kBytes) == bytes);
}

TEST_F(DeviceMemoryTest, OfTheHostIsZeroedAndReachedByTheDevice) {
  for (int round = 0; round < 3; ++round) {
    const auto memory = device_->allocate_pinned(kBytes);
    const std::vector<std::byte> found(memory->data(), memory->data() + kBytes);
    EXPECT_THAT(found, Each(std::byte{0}));
    device_->fill(memory->data(), 0x5A, kBytes);
    EXPECT_EQ(memory->data()[0], std::byte{0x5A});
    EXPECT_EQ(memory->data()[kBytes - 1], std::byte{0x5A});
  }
}

TEST_F(DeviceMemoryTest, OfNoBytesIsNothing) {
  const auto memory = device_->allocate(0);
  EXPECT_EQ(memory->data(), nullptr);
  EXPECT_EQ(memory->size_bytes(), 0U);
}

TEST_F(DeviceMemoryTest, ThatIsTooLargeIsRefusedAndTheDeviceStaysUsable) {
  const std::size_t too_many = 2 * device_->facts().memory_bytes;
  EXPECT_THAT(message_of(ErrorCode::resource_exhausted, [&] { device_->allocate(too_many); }), HasSubstr("cudaMalloc"));
  EXPECT_THAT(read(device_->allocate(kBytes)->data(), kBytes), Each(std::byte{0}));
}

TEST_F(DeviceMemoryTest, OutlivesItsDevice) {
  auto memory = device_->allocate(kBytes);
  device_.reset();
  device_ = backend::cuda::make_device(0);
  EXPECT_THAT(read(memory->data(), kBytes), Each(std::byte{0}));
}

TEST_F(DeviceMemoryTest, IsGivenBack) {
  const std::size_t size_bytes = device_->facts().memory_bytes / 4;
  for (int round = 0; round < 12; ++round) ASSERT_NE(device_->allocate(size_bytes)->data(), nullptr) << round;
}

TEST_F(DeviceMemoryTest, CopiesFromNowhereAreADeviceFailureWithTheDriversText) {
  std::vector<std::byte> bytes(16);
  EXPECT_THAT(message_of(ErrorCode::device_failure, [&] { device_->copy(bytes.data(), nullptr, 16); }),
              HasSubstr("cudaMemcpyAsync: invalid argument (cudaErrorInvalidValue 1)"));
}

}  // namespace
}  // namespace moebus::tests
