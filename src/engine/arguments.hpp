// Arguments: what is wrong with the arguments of a call, before anything is sent.
// Room: engine · host.

#pragma once

#include <optional>
#include <string>

#include "engine/group_core.hpp"
#include "model/shape.hpp"
#include "moebus/io.hpp"

namespace moebus::engine {

/// Each returns the first fault found (argument, value, limit, remedy), or nothing.
std::optional<Refusal> check_dispatch_input(const model::Shape& shape, int rank, const DispatchInput& input);

/// `num_rows` are the rows (expert_padded: rows per expert) that the handle's dispatch gave; `num_tokens` this rank's
/// tokens then.
std::optional<Refusal> check_combine_input(
    const model::Shape& shape, int rank, std::int64_t num_rows, std::int64_t num_tokens, const CombineInput& input);

}  // namespace moebus::engine
