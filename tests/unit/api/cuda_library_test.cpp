#include "api/cuda_library.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "moebus/info.hpp"
#include "moebus/version.hpp"

namespace moebus::api {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string reason_for(const std::string& path) {
  const LoadedCuda loaded = load_cuda_library(path);
  EXPECT_EQ(loaded.library, nullptr) << path;
  return loaded.reason;
}

/// A variable for the duration of a test.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) { ::setenv(name, value.c_str(), 1); }

  ~Variable() { ::unsetenv(name_); }

  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
};

TEST(CudaLibraryLoader, NamesAFileThatIsNotThere) {
  EXPECT_THAT(reason_for("/nowhere/libmoebus_cuda.so"),
              AllOf(HasSubstr("/nowhere/libmoebus_cuda.so cannot be loaded"), HasSubstr("No such file")));
}

TEST(CudaLibraryLoader, NamesAFileThatIsNoLibrary) {
  EXPECT_THAT(reason_for(TEXT_FILE), AllOf(HasSubstr("cannot be loaded"), HasSubstr("ELF")));
}

TEST(CudaLibraryLoader, SaysThatALibraryIsNoBackend) {
  EXPECT_THAT(reason_for(STRANGE_LIBRARY), AllOf(HasSubstr(STRANGE_LIBRARY), HasSubstr("no CUDA backend of moebus")));
}

TEST(CudaLibraryLoader, NamesBothVersionsIfTheyDiffer) {
  EXPECT_THAT(reason_for(NEWER_LIBRARY), AllOf(HasSubstr("99.1.2"), HasSubstr(std::string(version()))));
}

TEST(CudaLibraryLoader, TellsAnotherBuildOfTheSameVersionApart) {
  EXPECT_THAT(reason_for(REBUILT_LIBRARY), HasSubstr("another build of version " + std::string(version())));
}

TEST(CudaLibraryLoader, TakesTheFileThatTheVariableNames) {
  const Variable variable("MOEBUS_CUDA_LIBRARY", NEWER_LIBRARY);
  EXPECT_EQ(find_cuda_library(), NEWER_LIBRARY);
}

// The library is loaded once a process: this is the only test that may look through the public call.
TEST(Capabilities, SayWhyThereAreNoDevices) {
  const Variable variable("MOEBUS_CUDA_LIBRARY", STRANGE_LIBRARY);
  const Capabilities can = capabilities();
  EXPECT_TRUE(can.devices.empty());
  ASSERT_GE(can.backends.size(), 2U);
  EXPECT_EQ(can.backends[1].name, "cuda");
  EXPECT_FALSE(can.backends[1].is_available);
  EXPECT_THAT(can.backends[1].remark, HasSubstr("no CUDA backend of moebus"));
}

}  // namespace
}  // namespace moebus::api
