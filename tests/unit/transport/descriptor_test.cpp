#include "transport/descriptor.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "tests/support/errors.hpp"

namespace moebus::transport {
namespace {

using ::testing::HasSubstr;
using tests::message_of;

TEST(DuplicateDescriptor, IsOfTheSameOpenFileAndNotInherited) {
  const base::UniqueFd file(::memfd_create("descriptor-test", 0));
  const base::UniqueFd duplicate = duplicate_descriptor(file.get());
  ASSERT_NE(duplicate.get(), file.get());
  EXPECT_NE(::fcntl(duplicate.get(), F_GETFD) & FD_CLOEXEC, 0);
  ASSERT_EQ(::write(duplicate.get(), "four", 4), 4);
  EXPECT_EQ(::lseek(file.get(), 0, SEEK_CUR), 4);
}

TEST(DuplicateDescriptor, RefusesOneThatIsNotOpen) {
  base::UniqueFd file(::memfd_create("descriptor-test", MFD_CLOEXEC));
  const int number = file.get();
  file.reset();
  for (const int closed : {number, -1}) {
    EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { duplicate_descriptor(closed); }),
                HasSubstr("descriptor " + std::to_string(closed) + " is not open"));
  }
}

TEST(DuplicateDescriptor, SaysThatNoneAreLeft) {
  const base::UniqueFd file(::memfd_create("descriptor-test", MFD_CLOEXEC));
  rlimit usual{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &usual), 0);
  const rlimit low{static_cast<rlim_t>(file.get()), usual.rlim_max};  // numbers below are all taken
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  const std::string message = message_of(ErrorCode::resource_exhausted, [&] { duplicate_descriptor(file.get()); });
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &usual), 0);
  EXPECT_THAT(message, HasSubstr("ulimit -n"));
}

}  // namespace
}  // namespace moebus::transport
