#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "backend/cuda/device_cuda.hpp"
#include "backend/cuda/driver.hpp"
#include "tests/cuda/gpu_probe.hpp"
#include "tests/support/errors.hpp"

namespace moebus::tests {
namespace {

using namespace std::chrono_literals;
using base::Deadline;
using ::testing::HasSubstr;

class DeviceStreams : public ::testing::Test {
 protected:
  void SetUp() override {
    MOEBUS_NEEDS_GPU();
    device_ = backend::cuda::make_device(0);
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
    ASSERT_EQ(cudaStreamCreate(&stream_), cudaSuccess);
  }

  void TearDown() override {
    if (stream_ == nullptr) return;
    EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess);
  }

  [[nodiscard]] StreamHandle handle() const { return {stream_}; }

  std::unique_ptr<backend::Device> device_;
  cudaStream_t stream_ = nullptr;
};

void wait_for_flag(void* flag) {
  while (!static_cast<std::atomic<bool>*>(flag)->load()) std::this_thread::sleep_for(100us);
}

TEST_F(DeviceStreams, AreWaitedForUntilTheDeadline) {
  std::atomic<bool> may_end = false;
  ASSERT_EQ(cudaLaunchHostFunc(stream_, wait_for_flag, &may_end), cudaSuccess);
  const Deadline deadline{30ms};
  EXPECT_FALSE(device_->synchronize(handle(), deadline));
  EXPECT_TRUE(deadline.is_over());
  EXPECT_FALSE(device_->synchronize(handle(), Deadline{0ns}));
  may_end = true;
  EXPECT_TRUE(device_->synchronize(handle(), Deadline{30s}));
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_F(DeviceStreams, ThatAreDoneAreDoneWithoutTime) {
  EXPECT_TRUE(device_->synchronize(handle(), Deadline{0ns}));
  EXPECT_TRUE(device_->synchronize({}, Deadline{0ns}));
}

TEST_F(DeviceStreams, TellWhetherTheyAreCapturedAndGoOnCapturing) {
  EXPECT_FALSE(device_->is_capturing(handle()));
  EXPECT_FALSE(device_->is_capturing({}));
  ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal), cudaSuccess);
  EXPECT_TRUE(device_->is_capturing(handle()));
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { return device_->is_capturing({}); }),
              HasSubstr("default stream"));
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { return device_->synchronize(handle(), Deadline{1s}); }),
              HasSubstr("captured"));
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
  ASSERT_NE(graph, nullptr);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_FALSE(device_->is_capturing(handle()));
}

TEST_F(DeviceStreams, MayBeCapturedWhileMemoryIsAllocated) {
  ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal), cudaSuccess);
  EXPECT_NE(device_->allocate(1 << 20)->data(), nullptr);
  EXPECT_NE(device_->make_window(0, 2, 1 << 20)->base(), nullptr);
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
  ASSERT_NE(graph, nullptr);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

/// On a thread that has no context: none is left behind, and one that it has stays.
TEST_F(DeviceStreams, LeaveTheThreadsContextAsItWas) {
  void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr);
  const auto get_current = reinterpret_cast<decltype(&cuCtxGetCurrent)>(::dlsym(library, "cuCtxGetCurrent"));
  ASSERT_NE(get_current, nullptr);
  std::thread([&] {
    device_->allocate(1000);
    EXPECT_FALSE(device_->is_capturing(handle()));
    CUcontext current = nullptr;
    EXPECT_EQ(get_current(&current), CUDA_SUCCESS);
    EXPECT_EQ(current, nullptr);
  }).join();
  CUcontext before = nullptr;
  EXPECT_EQ(get_current(&before), CUDA_SUCCESS);
  EXPECT_NE(before, nullptr);
  device_->allocate(1000);
  EXPECT_THROW(device_->allocate(2 * device_->facts().memory_bytes), Error);
  CUcontext after = nullptr;
  EXPECT_EQ(get_current(&after), CUDA_SUCCESS);
  EXPECT_EQ(after, before);
}

}  // namespace
}  // namespace moebus::tests
