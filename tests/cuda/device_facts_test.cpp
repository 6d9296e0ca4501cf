#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "backend/cuda/device_cuda.hpp"
#include "backend/cuda/driver.hpp"
#include "backend/cuda/facts.hpp"
#include "tests/cuda/gpu_probe.hpp"
#include "tests/support/errors.hpp"

namespace moebus::tests {
namespace {

using backend::DeviceFacts;
using ::testing::HasSubstr;

/// First of all, while nothing in this process has made a context.
TEST(DeviceFacts, AreToldWithoutAContext) {
  MOEBUS_NEEDS_GPU();
  const std::size_t num_devices = backend::cuda::list_devices().size();
  void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr);
  const auto get_state =
      reinterpret_cast<decltype(&cuDevicePrimaryCtxGetState)>(::dlsym(library, "cuDevicePrimaryCtxGetState"));
  ASSERT_NE(get_state, nullptr);
  for (std::size_t i = 0; i < num_devices; ++i) {
    unsigned int flags = 0;
    int is_active = -1;
    ASSERT_EQ(get_state(static_cast<CUdevice>(i), &flags, &is_active), CUDA_SUCCESS);
    EXPECT_EQ(is_active, 0) << "device " << i << " has a context";
  }
}

/// The runtime asks the driver in its own way.
TEST(DeviceFacts, AreThoseOfTheRuntime) {
  MOEBUS_NEEDS_GPU();
  int num_devices = 0;
  ASSERT_EQ(cudaGetDeviceCount(&num_devices), cudaSuccess);
  const auto devices = backend::cuda::list_devices();
  ASSERT_EQ(devices.size(), static_cast<std::size_t>(num_devices));
  for (int i = 0; i < num_devices; ++i) {
    cudaDeviceProp told{};
    ASSERT_EQ(cudaGetDeviceProperties(&told, i), cudaSuccess);
    const DeviceFacts& facts = devices[static_cast<std::size_t>(i)];
    EXPECT_EQ(facts.ordinal, i);
    EXPECT_EQ(facts.name, told.name);
    EXPECT_EQ(facts.compute_capability, told.major * 10 + told.minor);
    EXPECT_EQ(facts.num_multiprocessors, told.multiProcessorCount);
    EXPECT_EQ(facts.memory_bytes, told.totalGlobalMem);
    char first_byte[3];
    std::snprintf(first_byte, sizeof first_byte, "%02x", static_cast<unsigned char>(told.uuid.bytes[0]));
    EXPECT_EQ(facts.uuid.size(), std::strlen("GPU-") + 36);
    EXPECT_EQ(facts.uuid.substr(0, 6), std::string("GPU-") + first_byte);
  }
}

TEST(DeviceFacts, OfADeviceAreThoseOfTheList) {
  MOEBUS_NEEDS_GPU();
  const auto devices = backend::cuda::list_devices();
  const auto device = backend::cuda::make_device(0);
  EXPECT_EQ(device->facts().uuid, devices[0].uuid);
  EXPECT_EQ(device->facts().driver_version, backend::cuda::driver().version);
}

TEST(DeviceFacts, OfNoDeviceAreRefusedWithTheRange) {
  MOEBUS_NEEDS_GPU();
  for (const int ordinal : {-1, static_cast<int>(backend::cuda::list_devices().size())}) {
    EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { backend::cuda::make_device(ordinal); }),
                HasSubstr("device is " + std::to_string(ordinal)));
  }
}

}  // namespace
}  // namespace moebus::tests
