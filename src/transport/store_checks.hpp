// Store checks: what every store refuses, and how its messages read.
// Room: transport · host.

#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

namespace moebus::transport {

/// Throws Error{invalid_argument} unless 0 <= rank < num_ranks, Error{unsupported} above kMaxRanks.
void check_rank(int rank, int num_ranks);

/// Throws Error{invalid_argument} if `value` is longer than Store::kMaxMessageBytes, or `what` than kMaxStepBytes.
void check_message_size(int rank, std::string_view what, std::string_view value);

/// Throws Error{invalid_argument} that names each rank's step unless all are the same.
void check_same_step(const std::vector<std::string>& steps);

/// Says that `rank` waited at `where` and who did not come.
std::string late_ranks_text(int rank,
                            std::string_view what,
                            std::string_view where,
                            const std::vector<int>& missing,
                            std::chrono::nanoseconds waited);

inline constexpr std::size_t kMaxStepBytes = 256;

}  // namespace moebus::transport
