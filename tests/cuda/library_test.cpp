// libmoebus_cuda.so through its entry, as libmoebus loads it.

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "api/cuda_library.hpp"
#include "moebus/error.hpp"
#include "moebus/version.hpp"

namespace moebus::api {
namespace {

using ::testing::HasSubstr;

class CudaLibraryFile : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = find_cuda_library();
    ASSERT_THAT(path_, HasSubstr("libmoebus_cuda.so."));
    loaded_ = load_cuda_library(path_);
    ASSERT_NE(loaded_.library, nullptr) << loaded_.reason;
  }

  [[nodiscard]] void* symbol(const char* name) const {
    void* const handle = ::dlopen(path_.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    void* const found = ::dlsym(handle, name);
    ::dlclose(handle);
    return found;
  }

  std::string path_;
  LoadedCuda loaded_;
};

TEST_F(CudaLibraryFile, IsFoundBesideLibmoebusAndFits) {
  EXPECT_GE(loaded_.library->toolkit_version, 12'090);
  EXPECT_EQ(cuda_library().library, loaded_.library);
}

TEST_F(CudaLibraryFile, RefusesCallersThatDoNotFitAndSaysItsVersion) {
  const auto open = reinterpret_cast<backend::CudaLibraryEntry>(symbol(backend::kCudaLibraryEntry));
  ASSERT_NE(open, nullptr);
  const std::string own{version()};
  const char* told = nullptr;
  EXPECT_EQ(open("99.0.0", backend::cuda_interface_mark(), &told), nullptr);
  EXPECT_EQ(told, own);
  EXPECT_EQ(open(own.c_str(), backend::cuda_interface_mark() + 1, &told), nullptr);
  EXPECT_EQ(open(own.c_str(), backend::cuda_interface_mark(), &told), loaded_.library);
}

/// With a GPU or without: there is no device of that number.
TEST_F(CudaLibraryFile, ThrowsErrorsThatAreCaughtOutside) {
  try {
    static_cast<void>(loaded_.library->make_device(1 << 20));
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_TRUE(error.code() == ErrorCode::invalid_argument || error.code() == ErrorCode::unsupported) << error.what();
  }
}

TEST_F(CudaLibraryFile, KeepsItsCudaRuntimeToItself) {
  EXPECT_EQ(symbol("cudaMalloc"), nullptr);
  EXPECT_EQ(symbol("cudaGetErrorString"), nullptr);
}

TEST_F(CudaLibraryFile, GivesDevicesOrAReason) {
  const CudaDevices found = cuda_devices();
  EXPECT_NE(found.devices.empty(), found.reason.empty()) << found.reason;
}

}  // namespace
}  // namespace moebus::api
