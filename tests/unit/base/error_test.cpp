#include "moebus/error.hpp"

#include <gtest/gtest.h>

#include <set>

namespace moebus {
namespace {

TEST(Error, CarriesCodeMessageRankAndThePlaceWhereItWasMade) {
  const auto line = std::source_location::current().line() + 1;
  const Error error(ErrorCode::timeout, "rank 1 waited for rank 2", 2);
  EXPECT_EQ(error.code(), ErrorCode::timeout);
  EXPECT_STREQ(error.what(), "rank 1 waited for rank 2");
  EXPECT_EQ(error.origin_rank(), 2);
  EXPECT_EQ(error.location().line(), line);
  EXPECT_NE(std::string_view(error.location().file_name()).find("error_test.cpp"), std::string_view::npos);
}

TEST(Error, NamesNoRankWhenNoneIsGiven) { EXPECT_EQ(Error(ErrorCode::internal, "x").origin_rank(), -1); }

TEST(Error, CanBeCaughtAsARuntimeError) { EXPECT_THROW(throw Error(ErrorCode::not_found, "x"), std::runtime_error); }

TEST(ErrorCode, HasItsOwnNameForEveryValue) {
  std::set<std::string_view> names;
  for (int code = 1; code <= 10; ++code) names.insert(to_string(static_cast<ErrorCode>(code)));
  EXPECT_EQ(names.size(), 10U);
  EXPECT_EQ(names.count("unknown"), 0U);
  EXPECT_EQ(to_string(ErrorCode::invalid_argument), "invalid_argument");
}

TEST(ErrorCode, IsUnknownWhenTheValueIsNotInTheEnum) {
  EXPECT_EQ(to_string(static_cast<ErrorCode>(0)), "unknown");
  EXPECT_EQ(to_string(static_cast<ErrorCode>(11)), "unknown");
}

}  // namespace
}  // namespace moebus
