// Table guard: brings what other ranks wrote into this rank's window into the shape's range, before anything is indexed
// by it. Wrong bytes then give wrong rows, never an access outside; right bytes stay as they are.
// Room: model · host+device arithmetic.

#pragma once

#include <algorithm>
#include <cstdint>

#include "model/shape.hpp"

namespace moebus::model {

/// Returns how many rows of a source's table are read.
[[nodiscard]] inline std::int32_t guarded_rows(const Shape& shape, std::int32_t num_rows) noexcept {
  return std::clamp(num_rows, 0, shape.config.max_tokens_per_rank);
}

/// Returns one of a source's counts (rows for a rank, rows for a seat).
[[nodiscard]] inline std::int64_t guarded_count(const Shape& shape, std::int32_t count) noexcept {
  return std::clamp(count, 0, shape.config.max_tokens_per_rank);
}

/// Takes the heads (token, home slot) of one table, row by row. Tokens ascend, so a row's token is above those before
/// it and leaves room below max_tokens_per_rank for those behind it; everything that looks tokens up relies on that.
class TableGuard {
 public:
  /// For a table of guarded_rows().
  TableGuard(const Shape& shape, std::int32_t num_rows) noexcept
      : most_token_(shape.config.max_tokens_per_rank - num_rows),
        most_slot_(static_cast<std::uint32_t>(shape.combine_slots_per_token - 1)) {}

  [[nodiscard]] std::int32_t token(std::int32_t told) noexcept {
    const std::int32_t token = std::min(std::max(told, least_token_), most_token_);
    least_token_ = token + 1;
    ++most_token_;
    return token;
  }

  [[nodiscard]] std::int32_t home_slot(std::int32_t told) const noexcept {
    return static_cast<std::int32_t>(std::min(static_cast<std::uint32_t>(told), most_slot_));
  }

 private:
  std::int32_t least_token_ = 0;
  std::int32_t most_token_;
  std::uint32_t most_slot_;
};

}  // namespace moebus::model
