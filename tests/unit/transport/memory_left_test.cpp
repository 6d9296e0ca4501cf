#include "transport/memory_left.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "moebus/error.hpp"

namespace moebus::transport {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(MemoryLeft, IsMoreThanNothingAndLessThanAnyMachineHas) {
  EXPECT_GT(memory_left_bytes(), std::size_t{1} << 20);
  EXPECT_LT(memory_left_bytes(), std::size_t{1} << 46);
}

TEST(CheckMemoryLeft, CountsEveryRank) {
  EXPECT_NO_THROW(check_memory_left(4096, 64));
  const std::size_t most_of_it = memory_left_bytes() / 4 * 3;
  EXPECT_THROW(check_memory_left(most_of_it, 2), Error);
}

TEST(CheckMemoryLeft, SaysWhatWasAskedForAndWhatToDo) {
  try {
    check_memory_left(~std::size_t{0}, 64);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::resource_exhausted);
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("18446744073709551615 bytes"), HasSubstr("64 ranks"), HasSubstr("use fewer")));
  }
}

}  // namespace
}  // namespace moebus::transport
