// Launch, inner part: what processes and threads share.
// Room: cli · host. Only launch*.cpp include it.

#pragma once

#include <string>

namespace moebus::cli {

/// Returns a fresh name that nobody can guess, e.g. "moebus-3f...".
std::string random_name();

}  // namespace moebus::cli
