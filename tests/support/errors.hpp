// Errors: how a test says which moebus::Error it expects.
// Room: tests · host.

#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "moebus/error.hpp"

namespace moebus::tests {

/// Runs `call` and returns the text of the error that it throws; fails unless that is Error{code}, from `origin_rank`
/// if one is given.
template <class Call>
std::string message_of(ErrorCode code, const Call& call, std::optional<int> origin_rank = std::nullopt) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(to_string(error.code()), to_string(code)) << error.what();
    EXPECT_EQ(error.origin_rank(), origin_rank.value_or(error.origin_rank())) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

}  // namespace moebus::tests
