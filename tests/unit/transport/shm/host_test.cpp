#include "transport/shm/host.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "moebus/error.hpp"

namespace moebus::transport {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string refusal_of(const std::vector<HostIdentity>& hosts) {
  try {
    check_one_host(hosts);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unsupported);
    return error.what();
  }
  return {};
}

TEST(CheckOneHost, AcceptsRanksOfThisMachine) { EXPECT_EQ(refusal_of({this_host(), this_host()}), ""); }

TEST(CheckOneHost, NamesTheRankThatIsElsewhereAndWhy) {
  EXPECT_THAT(refusal_of({{"a", "n"}, {"a", "n"}, {"b", "n"}}),
              AllOf(HasSubstr("rank 2"), HasSubstr("another machine")));
  EXPECT_THAT(refusal_of({{"a", "n"}, {"a", "m"}}), AllOf(HasSubstr("rank 1"), HasSubstr("network namespace")));
}

TEST(ThisHost, KnowsItsBootAndItsNetwork) {
  EXPECT_EQ(this_host().boot_id.size(), 36U);
  EXPECT_THAT(this_host().network_namespace, HasSubstr("net:["));
}

}  // namespace
}  // namespace moebus::transport
