// Option tree: what the parser knows of the command, in plain values.
// Room: cli · host. The only header of ours that names the parser's types.

#pragma once

#include <CLI/App.hpp>

#include "cli/completion.hpp"

namespace moebus::cli {

/// Returns `app` with everything below it, in the order in which --help shows it; what --help hides is left out.
CommandWords words_of(const CLI::App& app);

}  // namespace moebus::cli
