// What is said of results and of machines; most of it needs no GPU.

#include "backend/cuda/driver.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "backend/cuda/cuda_check.hpp"
#include "backend/cuda/device_cuda.hpp"
#include "backend/cuda/facts.hpp"
#include "tests/cuda/gpu_probe.hpp"
#include "tests/support/errors.hpp"

namespace moebus::tests {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(CudaCheck, LetsSuccessPass) { EXPECT_NO_THROW(MOEBUS_CUDA_CALL(cudaSuccess)); }

TEST(CudaCheck, SaysCallTextNameAndNumber) {
  const auto failing = [](int /*argument*/) { return cudaErrorLaunchFailure; };
  EXPECT_EQ(message_of(ErrorCode::device_failure, [&] { MOEBUS_CUDA_CALL(failing(1)); }),
            "failing: unspecified launch failure (cudaErrorLaunchFailure 719)");
}

TEST(CudaCheck, TellsMissingMemoryApart) {
  message_of(ErrorCode::resource_exhausted, [] { backend::cuda::check_runtime(cudaErrorMemoryAllocation, "call"); });
}

TEST(CudaCheck, SaysWhatTheDriverSays) {
  MOEBUS_NEEDS_GPU();
  EXPECT_THAT(message_of(ErrorCode::device_failure, [] { MOEBUS_DRIVER_CALL(cuMemRelease(0)); }),
              AllOf(HasSubstr("cuMemRelease: "), HasSubstr("CUDA_ERROR_INVALID_VALUE 1")));
}

TEST(CudaDriver, WritesVersionsAsPeopleDo) {
  EXPECT_EQ(backend::cuda::version_text(13'000), "13.0");
  EXPECT_EQ(backend::cuda::version_text(12'090), "12.9");
}

TEST(CudaDriver, IsMissedWithItsReasonByEverythingThatNeedsIt) {
  if (why_no_gpu().empty()) GTEST_SKIP() << "there is a GPU";
  EXPECT_EQ(message_of(ErrorCode::unsupported, [] { backend::cuda::list_devices(); }), why_no_gpu());
  EXPECT_EQ(message_of(ErrorCode::unsupported, [] { backend::cuda::make_device(0); }), why_no_gpu());
}

}  // namespace
}  // namespace moebus::tests
