// Agreement: every rank says what it is configured for; differences are named with their value per rank.
// Room: engine · host.

#pragma once

#include <optional>
#include <string>
#include <vector>

namespace moebus::engine {

/// Returns the lines that every agreement begins with: version, and the environment that changes results.
[[nodiscard]] std::string agreement_header();

/// Compares "name=value" lines over ranks. Returns text such as "hidden is 7168 on ranks 0, 2; 4096 on rank 1", or
/// nothing.
[[nodiscard]] std::optional<std::string> find_differences(const std::vector<std::string>& texts);

}  // namespace moebus::engine
