// Rank text: how ranks and durations are written in messages.
// Room: transport · host.

#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace moebus::transport {

/// Returns "rank 3", "ranks 3, 5" or "no rank".
std::string list_ranks(const std::vector<int>& ranks);

/// Returns seconds with one digit, e.g. "1.5 s".
std::string show_seconds(std::chrono::nanoseconds duration);

}  // namespace moebus::transport
