// Rows: where the parts of one row lie, and how rows get from one place to another.
// Room: backend/cpu · host.

#pragma once

#include <array>
#include <cstddef>

#include "backend/backend.hpp"
#include "backend/cpu/kernels.hpp"

namespace moebus::backend {

/// Addresses of one row's parts.
template <class Byte>
struct BasicRowParts {
  Byte* tokens = nullptr;
  Byte* scales = nullptr;  // first item
  std::ptrdiff_t scale_item_stride_bytes = 4;
  std::array<Byte*, kMaxSideTensors> side{};
};

using RowParts = BasicRowParts<std::byte>;
using ConstRowParts = BasicRowParts<const std::byte>;

/// Returns the parts of row `r`; those that the format lacks are not valid addresses.
template <class Byte>
[[nodiscard]] BasicRowParts<Byte> parts_of_row(const model::DispatchRowFormat& format,
                                               const BasicRowArrays<Byte>& arrays,
                                               std::int64_t r) noexcept {
  BasicRowParts<Byte> parts;
  parts.tokens = arrays.tokens + r * arrays.token_stride_bytes;
  if (format.scale_items > 0 && arrays.scales != nullptr) {
    const std::int64_t rows = arrays.scale_group_rows;
    const std::int64_t group = rows > 0 ? r / rows : 0;
    parts.scales =
        arrays.scales + group * arrays.scale_group_stride_bytes + (r - group * rows) * arrays.scale_row_stride_bytes;
    parts.scale_item_stride_bytes = arrays.scale_item_stride_bytes;
  }
  for (std::size_t s = 0; s < kMaxSideTensors; ++s) {
    if (format.side_bytes[s] > 0) parts.side[s] = arrays.side[s] + r * arrays.side_stride_bytes[s];
  }
  return parts;
}

/// How the rows of one batch are written.
struct BatchWay {
  const Kernels& kernels;
  bool is_streamed;  // past the caches
};

/// True if rows r and r + 1 touch in every part that the format has.
[[nodiscard]] bool has_no_gaps(const model::DispatchRowFormat& format, const ConstRowArrays& rows) noexcept;

/// Copies `num_rows` rows in received form from `source` on; more than one only without gaps. `next` is the row that
/// will be read after them, as a hint.
void copy_run(const BatchWay& way,
              const model::DispatchRowFormat& format,
              const ConstRowParts& source,
              const RowParts& sink,
              std::size_t num_rows,
              const std::byte* next) noexcept;

/// Casts one bf16 row, and copies its side tensors. `next` as in copy_run.
void cast_row(const BatchWay& way,
              const model::DispatchRowFormat& format,
              const ConstRowParts& source,
              const RowParts& sink,
              const std::byte* next) noexcept;

/// Writes zeros into all parts of one row.
void zero_row(const model::DispatchRowFormat& format, const RowParts& sink) noexcept;

}  // namespace moebus::backend
