// Composition: the one place that names concrete transports and backends and puts a group together.
// Room: api · host.

#pragma once

#include <memory>
#include <string_view>

#include "engine/group_core.hpp"

namespace moebus::api {

/// See Group::join.
std::shared_ptr<engine::GroupCore> join_group(std::string_view uri,
                                              int rank,
                                              int num_ranks,
                                              const GroupOptions& options);

}  // namespace moebus::api
