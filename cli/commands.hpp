// Commands: what `moebus` can do, one function per subcommand.
// Room: cli · host.

#pragma once

#include "cli/options.hpp"

namespace moebus::cli {

/// Each returns the exit status. Errors: UsageError, Mismatch, Error; main turns them into a message and a status.
int run_bench(BenchOptions options);
int run_check(CheckOptions options);
int run_info(const InfoOptions& options);

/// Prints the model presets.
int list_models();

}  // namespace moebus::cli
