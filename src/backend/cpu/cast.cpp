#include "backend/cpu/cast.hpp"

#include <cstring>

#include "base/math.hpp"

namespace moebus::backend {

namespace {

constexpr int kMaxBlocks = kMaxGroups * kGroupBlocks;
constexpr int kItemBytes = 4;

void cast_block(
    ScaleFormat format, const std::byte* row, int columns, std::byte* codes, std::byte* scales, int b) noexcept {
  if (format == ScaleFormat::f32) {
    cast_block_f32(row, columns, codes, scales + base::idx(b) * kItemBytes);
  } else {
    cast_block_ue8m0(row, columns, codes, scales + b);
  }
}

/// Casts columns that do not fill a group: through a group padded with zeros, which change no amax.
std::uint32_t cast_part_of_group(
    CastGroups cast, const std::byte* row, int columns, std::byte* codes, std::byte* scales) noexcept {
  alignas(kLineBytes) std::byte padded_row[kGroupColumns * 2];
  alignas(kLineBytes) std::byte padded_codes[kGroupColumns];
  const auto row_bytes = base::idx(columns) * 2;
  std::memcpy(padded_row, row, row_bytes);
  std::memset(padded_row + row_bytes, 0, sizeof padded_row - row_bytes);
  const std::uint32_t left_over = cast(padded_row, 1, padded_codes, scales);
  std::memcpy(codes, padded_codes, base::idx(columns));
  return left_over & ((1U << base::ceil_div(columns, kBlockColumns)) - 1U);
}

/// Casts whole groups and the part of one that follows; bit b of the result = block b is left to the scalar code.
std::uint32_t cast_by_groups(CastGroups cast,
                             ScaleFormat format,
                             const std::byte* row,
                             int columns,
                             std::byte* codes,
                             std::byte* scales) noexcept {
  const int num_groups = columns / kGroupColumns;
  std::uint32_t left_over = num_groups > 0 ? cast(row, num_groups, codes, scales) : 0;
  const int done = num_groups * kGroupColumns;
  if (done == columns) return left_over;
  const std::size_t group_items = format == ScaleFormat::f32 ? kGroupBlocks : 1;
  left_over |= cast_part_of_group(cast,
                                  row + base::idx(done) * 2,
                                  columns - done,
                                  codes + done,
                                  scales + base::idx(num_groups) * group_items * kItemBytes)
               << (num_groups * kGroupBlocks);
  return left_over;
}

}  // namespace

void cast_columns(const Kernels& kernels,
                  ScaleFormat format,
                  const std::byte* row,
                  int columns,
                  std::byte* codes,
                  ScaleItems items) noexcept {
  alignas(kLineBytes) std::byte scales[kMaxBlocks * kItemBytes];
  const int num_blocks = base::ceil_div(columns, kBlockColumns);
  const CastGroups cast = format == ScaleFormat::f32 ? kernels.cast_f32 : kernels.cast_ue8m0;
  std::uint32_t left_over = num_blocks == kMaxBlocks ? ~0U : (1U << num_blocks) - 1U;
  if (cast != nullptr) left_over = cast_by_groups(cast, format, row, columns, codes, scales);
  for (int b = 0; left_over != 0; ++b, left_over >>= 1) {
    if ((left_over & 1U) == 0) continue;
    const int first = b * kBlockColumns;
    const int width = columns - first < kBlockColumns ? columns - first : kBlockColumns;
    cast_block(format, row + base::idx(first) * 2, width, codes + first, scales, b);
  }
  int num_items = num_blocks;
  if (format == ScaleFormat::ue8m0) {
    num_items = base::ceil_div(num_blocks, kGroupBlocks);
    std::memset(scales + num_blocks, 0, base::idx(num_items * kItemBytes - num_blocks));
  }
  if (items.stride_bytes == kItemBytes) {
    std::memcpy(items.first, scales, base::idx(num_items) * kItemBytes);
    return;
  }
  for (int i = 0; i < num_items; ++i)
    std::memcpy(items.first + i * items.stride_bytes, scales + i * kItemBytes, kItemBytes);
}

}  // namespace moebus::backend
