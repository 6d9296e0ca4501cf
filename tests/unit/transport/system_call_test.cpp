#include "transport/system_call.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "moebus/error.hpp"

namespace moebus::transport {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(SystemCall, ReturnsWhatTheCallReturns) { EXPECT_EQ(MOEBUS_SYSTEM_CALL(::getpid()), ::getpid()); }

TEST(SystemCall, NamesTheCallAndTheReasonOfAFailure) {
  try {
    MOEBUS_SYSTEM_CALL(::close(-1));
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::transport_failure);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("close: Bad file descriptor"), Not(HasSubstr("::"))));
    EXPECT_THAT(error.location().file_name(), HasSubstr("system_call_test"));
  }
}

TEST(SystemCall, GoesOnAfterASignal) {
  int num_calls = 0;
  const auto interrupted_twice = [&] {
    errno = EINTR;
    return ++num_calls < 3 ? -1 : 7;
  };
  EXPECT_EQ(MOEBUS_SYSTEM_CALL(interrupted_twice()), 7);
  EXPECT_EQ(num_calls, 3);
}

TEST(SystemCall, TellsExhaustionFromOtherFailuresAndAddsTheRemedy) {
  const auto code_of = [](int error) {
    try {
      throw_system_error("open", error, "do this");
    } catch (const Error& thrown) {
      EXPECT_THAT(thrown.what(), HasSubstr("do this"));
      return thrown.code();
    }
  };
  EXPECT_EQ(code_of(EMFILE), ErrorCode::resource_exhausted);
  EXPECT_EQ(code_of(ENOMEM), ErrorCode::resource_exhausted);
  EXPECT_EQ(code_of(EACCES), ErrorCode::transport_failure);
}

}  // namespace
}  // namespace moebus::transport
