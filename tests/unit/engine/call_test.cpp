#include "engine/call.hpp"

#include <gtest/gtest.h>

#include <stdexcept>

namespace moebus::engine {
namespace {

TEST(ErrorCodeOf, GivesEveryCodeThatExistsAndTurnsAllOthersIntoInternal) {
  for (int code = 0; code < 256; ++code) {
    const ErrorCode read = error_code_of(static_cast<std::uint8_t>(code));
    if (code >= 1 && code <= 10) {
      EXPECT_EQ(static_cast<int>(read), code);
    } else {
      EXPECT_EQ(read, ErrorCode::internal) << code;
    }
  }
}

class CountedCall final : public OpenCall {
 public:
  using OpenCall::renew;
  int num_finished = 0;
  bool throws = false;

 private:
  void finish() override {
    ++num_finished;
    if (throws) throw std::runtime_error("broken");
  }
};

TEST(OpenCall, IsFinishedOnce) {
  CountedCall call;
  EXPECT_FALSE(call.is_done());
  call.complete();
  call.complete();
  EXPECT_TRUE(call.is_done());
  EXPECT_EQ(call.num_finished, 1);
  call.renew();
  EXPECT_FALSE(call.is_done());
}

TEST(OpenCall, KeepsWhatFinishingThrew) {
  CountedCall call;
  call.throws = true;
  call.complete();
  EXPECT_TRUE(call.is_done());
  EXPECT_THROW(call.rethrow(), std::runtime_error);
  call.renew();
  EXPECT_NO_THROW(call.rethrow());
}

TEST(OpenCall, ThatFailedBeforeItBeganIsNotFinished) {
  CountedCall call;
  call.fail(std::make_exception_ptr(std::runtime_error("early")));
  call.complete();
  EXPECT_EQ(call.num_finished, 0);
  EXPECT_THROW(call.rethrow(), std::runtime_error);
}

}  // namespace
}  // namespace moebus::engine
