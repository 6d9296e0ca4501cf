// Log: one logger for the library, on stderr, level from MOEBUS_LOG (trace, debug, info, warn, error, off; default
// warn). Room: base · host.

#pragma once

#include <spdlog/spdlog.h>

namespace moebus::base {

/// Returns the library's logger; made at first use, never destroyed (safe at interpreter exit).
spdlog::logger& log();

}  // namespace moebus::base
