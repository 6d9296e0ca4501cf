// Environment: reads variables; the only place that calls getenv.
// Room: base · host.

#pragma once

#include <optional>
#include <string>

namespace moebus::base {

/// Returns the variable's value, nothing if it is unset or empty.
std::optional<std::string> env(const char* name);

}  // namespace moebus::base
