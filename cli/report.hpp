// Report: a bench's figures as one JSON object (docs/bench-json.md), and the same as a table for people.
// Room: cli · host.

#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "cli/feed.hpp"
#include "cli/machine.hpp"

namespace moebus::cli {

using Json = nlohmann::ordered_json;

/// Returns what was measured, with command, version, machine and shape around it.
Json bench_report(const BenchSetup& setup, const Machine& machine, const std::string& input_hash, const Json& measured);

/// Returns the machine as JSON, as in bench reports and `moebus info`.
Json machine_json(const Machine& machine);

/// Returns a bench report as text for a terminal.
std::string bench_table(const Json& report);

/// Returns bytes in a unit for people, e.g. "1.75 MiB".
std::string bytes_text(double bytes);

}  // namespace moebus::cli
