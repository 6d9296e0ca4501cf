#include "moebus/version.hpp"

#include <gtest/gtest.h>

#include <string>

namespace moebus {
namespace {

TEST(Version, OfTheLibraryIsThatOfTheHeaders) {
  const std::string of_headers =
      std::to_string(kVersionMajor) + "." + std::to_string(kVersionMinor) + "." + std::to_string(kVersionPatch);
  EXPECT_EQ(version(), of_headers);
}

}  // namespace
}  // namespace moebus
