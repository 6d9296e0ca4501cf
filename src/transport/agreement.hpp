// Agreement: a step of set-up that every rank takes and whose failure on one rank is everybody's.
// Room: transport · host.

#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "transport/store.hpp"

namespace moebus::transport {

/// Runs `deed` here, tells the others how it went, and returns what it returned on each rank. If it threw anywhere,
/// every rank throws the error of the lowest rank that failed, with that rank in front.
///
/// Order:   collective.
std::vector<std::string> agree(Store& store,
                               std::string_view what,
                               const base::Deadline& deadline,
                               const std::function<std::string()>& deed);

/// Throws Error{invalid_argument} on all ranks, naming each rank's size, unless all gave the same `sizes`.
void check_same_size(const std::vector<std::size_t>& sizes);

}  // namespace moebus::transport
