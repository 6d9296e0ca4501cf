// Store failure: why a store can no longer be used; every member throws the same one.
// Room: transport · host.

#pragma once

#include <source_location>
#include <string>

#include "moebus/error.hpp"

namespace moebus::transport {

struct StoreFailure {
  ErrorCode code = ErrorCode::internal;
  int origin_rank = -1;
  std::string message;

  [[noreturn]] void raise(std::source_location location = std::source_location::current()) const {
    throw Error(code, message, origin_rank, location);
  }
};

}  // namespace moebus::transport
