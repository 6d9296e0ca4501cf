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

/// Throws on all ranks unless all ask for the same `size_bytes` and the machine has that much for each of them. Comes
/// before the first byte is taken anywhere, so that ranks do not count each other's memory as gone.
///
/// Order:   collective; all ranks are on one machine.
/// Errors:  Error{invalid_argument} names each rank's size; Error{resource_exhausted}.
void agree_on_size(Store& store, std::size_t size_bytes, const base::Deadline& deadline);

/// Returns whose memory this rank may map, [num_ranks], the own entry true; `may_map` is ConnectOptions::may_map.
///
/// Order:   collective.
/// Errors:  Error{invalid_argument} on all ranks: `may_map` has another length than the group, or two ranks differ
/// about
///          each other; both are named.
std::vector<bool> agree_on_mapping(Store& store, const std::vector<bool>& may_map, const base::Deadline& deadline);

}  // namespace moebus::transport
