// Cast: one bf16 row to e4m3 codes and a scale per 128 columns, by the kernels of one instruction set or by the scalar
// code. Room: backend/cpu · host.

#pragma once

#include <cstddef>

#include "backend/cpu/kernels.hpp"
#include "moebus/types.hpp"

namespace moebus::backend {

/// The scalar truth for one block of 1..128 columns; writes `columns` codes and one scale (4 bytes, or one UE8M0 byte).
void cast_block_f32(const std::byte* row, int columns, std::byte* codes, std::byte* scale) noexcept;
void cast_block_ue8m0(const std::byte* row, int columns, std::byte* codes, std::byte* exponent) noexcept;

/// Where the scale items (4 bytes each) of one row go.
struct ScaleItems {
  std::byte* first;
  std::ptrdiff_t stride_bytes;
};

/// Casts columns [0, columns) of `row`, at most kMaxGroups * kGroupColumns of them.
/// Bytes of a UE8M0 word past the last block are 0.
void cast_columns(const Kernels& kernels,
                  ScaleFormat format,
                  const std::byte* row,
                  int columns,
                  std::byte* codes,
                  ScaleItems items) noexcept;

}  // namespace moebus::backend
