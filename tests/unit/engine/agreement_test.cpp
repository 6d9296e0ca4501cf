#include "engine/agreement.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "moebus/version.hpp"

namespace moebus::engine {
namespace {

TEST(Differences, AreNoneWhenAllRanksSayTheSame) {
  EXPECT_EQ(find_differences({"hidden=7168\ntopk=8\n", "hidden=7168\ntopk=8\n"}), std::nullopt);
  EXPECT_EQ(find_differences({"hidden=7168\n"}), std::nullopt);
}

TEST(Differences, NameTheFieldWithEachValueAndItsRanks) {
  EXPECT_EQ(find_differences({"hidden=7168\n", "hidden=4096\n", "hidden=7168\n"}),
            "hidden is 4096 on rank 1; 7168 on ranks 0, 2");
}

TEST(Differences, NameEveryFieldThatDiffersAndNoOther) {
  EXPECT_EQ(find_differences({"a=1\nb=2\nc=3\n", "a=1\nb=4\nc=5\n"}),
            "b is 2 on rank 0; 4 on rank 1. c is 3 on rank 0; 5 on rank 1");
}

TEST(Differences, SayWhereAVariableIsNotSet) {
  EXPECT_EQ(find_differences({"environment MOEBUS_FAULT=\n", "environment MOEBUS_FAULT=delay:1\n"}),
            "environment MOEBUS_FAULT is not set on rank 0; delay:1 on rank 1");
}

TEST(Differences, IncludeAFieldThatOnlySomeRanksKnow) {
  EXPECT_EQ(find_differences({"a=1\nextra=7\n", "a=1\n", "a=1\nextra=7\n"}), "extra is 7 on ranks 0, 2");
}

TEST(Differences, KeepEverythingBehindTheFirstEqualsSignAsValue) {
  EXPECT_EQ(find_differences({"uri=a=b\n", "uri=a=c\n"}), "uri is a=b on rank 0; a=c on rank 1");
}

TEST(AgreementHeader, HoldsTheVersionAndTheEnvironmentThatChangesResults) {
  setenv("MOEBUS_FAULT", "delay:3", 1);
  EXPECT_THAT(agreement_header(), testing::HasSubstr("environment MOEBUS_FAULT=delay:3\n"));
  unsetenv("MOEBUS_FAULT");
  EXPECT_THAT(agreement_header(), testing::HasSubstr("environment MOEBUS_FAULT=\n"));
  EXPECT_THAT(agreement_header(), testing::HasSubstr("moebus version=" + std::string(version()) + "\n"));
}

}  // namespace
}  // namespace moebus::engine
