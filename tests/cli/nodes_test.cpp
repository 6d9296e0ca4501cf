#include "cli/nodes.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/options.hpp"

namespace moebus::cli {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string error_of(const std::string& text, int num_ranks) {
  try {
    (void)Nodes::parse(text).of_ranks(num_ranks);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(Nodes, AreBlocksWithTheFirstOneLargerIfTheyDoNotDivide) {
  EXPECT_THAT(Nodes::parse("2").of_ranks(5), ElementsAre(0, 0, 0, 1, 1));
  EXPECT_THAT(Nodes::parse("3").of_ranks(3), ElementsAre(0, 1, 2));
}

TEST(Nodes, HaveTheSizesThatWereNamed) {
  EXPECT_THAT(Nodes::parse("3+1").of_ranks(4), ElementsAre(0, 0, 0, 1));
  EXPECT_THAT(Nodes::parse("1+1+2").of_ranks(4), ElementsAre(0, 1, 2, 2));
  EXPECT_EQ(Nodes::parse("1+1+2").num_ranks(), 4);
}

TEST(Nodes, TakeEachRanksNodeInAnyOrder) {
  EXPECT_THAT(Nodes::parse("0,1,0,1").of_ranks(4), ElementsAre(0, 1, 0, 1));
  EXPECT_EQ(Nodes::parse("5,0").num_ranks(), 2);
}

TEST(Nodes, AreOneIfNothingIsSaid) {
  EXPECT_FALSE(Nodes::parse("").is_given());
  EXPECT_THAT(Nodes::parse("").of_ranks(4), IsEmpty());
  EXPECT_TRUE(Nodes::parse("").fits(64));
}

TEST(Nodes, RefuseOtherNumbersOfRanks) {
  EXPECT_THAT(error_of("3", 2), AllOf(HasSubstr("--nodes 3"), HasSubstr("2 ranks")));
  EXPECT_THAT(error_of("3+1", 3), AllOf(HasSubstr("--nodes 3+1"), HasSubstr("4 ranks, not 3")));
  EXPECT_FALSE(Nodes::parse("0,1").fits(3));
}

TEST(Nodes, RefuseWhatIsNoNumberAndTeachTheForms) {
  for (const char* const text : {"two", "2+", "+2", "0", "1+0", "0,-1", "0,1+1", "65", "40+40", "1,,2", " 2"}) {
    EXPECT_THAT(error_of(text, 4), AllOf(HasSubstr(std::string("--nodes ") + text), HasSubstr("3+1"))) << text;
  }
}

TEST(RanksByNode, NamesBlocksAndLists) {
  EXPECT_EQ(ranks_by_node({0, 0, 0, 1}), "0-2 | 3");
  EXPECT_EQ(ranks_by_node({7, 1, 7, 1}), "0,2 | 1,3");
  EXPECT_EQ(number_of_nodes({7, 1, 7, 1}), 2);
}

}  // namespace
}  // namespace moebus::cli
