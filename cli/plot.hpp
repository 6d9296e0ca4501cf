// Plot: hands a report to scripts/plot.py, which draws all pictures of the project.
// Room: cli · host.

#pragma once

#include <string>

namespace moebus::cli {

/// Writes a picture of `report_json` to `file` (.svg or .png).
///
/// Errors: Error{not_found} the script or /usr/bin/python3 is not there; Error{unsupported} matplotlib is missing (with
/// the line
///         that installs it); Error{internal} the script failed, with its status.
void plot(const std::string& report_json, const std::string& file);

/// Throws as plot() would for want of the script, python3 or matplotlib: to be asked before minutes of measuring.
void check_can_plot();

}  // namespace moebus::cli
