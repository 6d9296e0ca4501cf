#include "transport/agreement.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "moebus/error.hpp"
#include "tests/support/ranks.hpp"
#include "transport/inproc_store.hpp"

namespace moebus::transport {
namespace {

using base::Deadline;
using std::chrono_literals::operator""s;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Agree, ReturnsWhatTheDeedReturnedOnEachRank) {
  EXPECT_TRUE(tests::all_ok(tests::run_as_threads(3, [](int rank) {
    const auto store = join_inproc("agree-good", rank, 3, Deadline(20s));
    EXPECT_EQ(agree(*store, "deed", Deadline(20s), [&] { return std::string(static_cast<std::size_t>(rank), 'x'); }),
              (std::vector<std::string>{"", "x", "xx"}));
  })));
}

TEST(Agree, ThrowsTheErrorOfTheLowestRankThatFailedOnAllRanks) {
  EXPECT_TRUE(tests::all_ok(tests::run_as_threads(4, [](int rank) {
    const auto store = join_inproc("agree-bad", rank, 4, Deadline(20s));
    const auto deed = [&]() -> std::string {
      if (rank == 2) throw Error(ErrorCode::resource_exhausted, "no memory");
      if (rank == 3) throw Error(ErrorCode::unsupported, "no socket");
      return {};
    };
    try {
      agree(*store, "deed", Deadline(20s), deed);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::resource_exhausted);
      EXPECT_EQ(error.origin_rank(), 2);
      EXPECT_THAT(error.what(), AllOf(HasSubstr("on rank 2"), HasSubstr("no memory")));
    }
  })));
}

TEST(AgreeOnSize, NamesAllSizesOnAllRanksIfTheyDiffer) {
  EXPECT_TRUE(tests::all_ok(tests::run_as_threads(3, [](int rank) {
    const auto store = join_inproc("agree-size", rank, 3, Deadline(20s));
    EXPECT_NO_THROW(agree_on_size(*store, 8, Deadline(20s)));
    try {
      agree_on_size(*store, rank == 2 ? 9 : 8, Deadline(20s));
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_THAT(error.what(), HasSubstr("8, 8, 9"));
    }
  })));
}

}  // namespace
}  // namespace moebus::transport
