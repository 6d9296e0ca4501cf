#include "backend/cpu/rows.hpp"

#include <algorithm>
#include <cstring>

#include "backend/cpu/cast.hpp"
#include "backend/cpu/copy.hpp"

namespace moebus::backend {

namespace {

constexpr std::ptrdiff_t kItemBytes = 4;

// The start of a row that no hardware prefetcher can foresee; the rest it finds itself. +4 % on rows from memory.
constexpr std::size_t kRowStartBytes = 512;

void copy_scales(const model::DispatchRowFormat& format,
                 const ConstRowParts& source,
                 const RowParts& sink,
                 std::size_t num_rows) noexcept {
  if (source.scale_item_stride_bytes == kItemBytes && sink.scale_item_stride_bytes == kItemBytes) {
    copy_cached(sink.scales, source.scales, num_rows * format.scales_bytes);
    return;
  }
  for (int i = 0; i < format.scale_items; ++i) {
    std::memcpy(
        sink.scales + i * sink.scale_item_stride_bytes, source.scales + i * source.scale_item_stride_bytes, kItemBytes);
  }
}

void copy_sides(const model::DispatchRowFormat& format,
                const ConstRowParts& source,
                const RowParts& sink,
                std::size_t num_rows) noexcept {
  for (std::size_t s = 0; s < kMaxSideTensors; ++s) {
    if (format.side_bytes[s] > 0) copy_cached(sink.side[s], source.side[s], num_rows * format.side_bytes[s]);
  }
}

}  // namespace

bool has_no_gaps(const model::DispatchRowFormat& format, const ConstRowArrays& rows) noexcept {
  const auto is_dense = [](std::int64_t stride, std::size_t bytes) {
    return stride == static_cast<std::int64_t>(bytes);
  };
  bool result = is_dense(rows.token_stride_bytes, format.payload_bytes);
  if (format.scale_items > 0) {
    result = result && rows.scale_item_stride_bytes == kItemBytes && rows.scale_group_rows == 0 &&
             is_dense(rows.scale_row_stride_bytes, format.scales_bytes);
  }
  for (std::size_t s = 0; s < kMaxSideTensors; ++s) {
    if (format.side_bytes[s] > 0) result = result && is_dense(rows.side_stride_bytes[s], format.side_bytes[s]);
  }
  return result;
}

void copy_run(const BatchWay& way,
              const model::DispatchRowFormat& format,
              const ConstRowParts& source,
              const RowParts& sink,
              std::size_t num_rows,
              const std::byte* next) noexcept {
  const std::size_t payload_bytes = num_rows * format.payload_bytes;
  if (way.is_streamed) {
    copy_streamed(way.kernels, sink.tokens, source.tokens, payload_bytes, next);
  } else {
    read_soon(next, std::min(kRowStartBytes, format.payload_bytes));
    copy_cached(sink.tokens, source.tokens, payload_bytes);
  }
  if (format.scale_items > 0) copy_scales(format, source, sink, num_rows);
  copy_sides(format, source, sink, num_rows);
}

void cast_row(const BatchWay& way,
              const model::DispatchRowFormat& format,
              const ConstRowParts& source,
              const RowParts& sink,
              const std::byte* next) noexcept {
  constexpr int kMaxColumns = kMaxGroups * kGroupColumns;
  alignas(kLineBytes) std::byte codes[kMaxColumns];
  const int items_per_group = format.scale_format == ScaleFormat::f32 ? kGroupBlocks : 1;
  ScaleItems items{sink.scales, sink.scale_item_stride_bytes};
  read_soon(next, std::min(kRowStartBytes, format.payload_bytes));
  for (int column = 0; column < format.hidden; column += kMaxColumns) {
    const int columns = std::min(kMaxColumns, format.hidden - column);
    const std::byte* const row = source.tokens + base::idx(column) * 2;
    if (way.is_streamed) {
      cast_columns(way.kernels, format.scale_format, row, columns, codes, items);
      copy_streamed(way.kernels, sink.tokens + column, codes, base::idx(columns), row + base::idx(columns) * 2);
    } else {
      cast_columns(way.kernels, format.scale_format, row, columns, sink.tokens + column, items);
    }
    items.first += kMaxGroups * items_per_group * items.stride_bytes;
  }
  copy_sides(format, source, sink, 1);
}

void zero_row(const model::DispatchRowFormat& format, const RowParts& sink) noexcept {
  zero_bytes(sink.tokens, format.payload_bytes);
  for (int i = 0; i < format.scale_items; ++i) zero_bytes(sink.scales + i * sink.scale_item_stride_bytes, kItemBytes);
  for (std::size_t s = 0; s < kMaxSideTensors; ++s) zero_bytes(sink.side[s], format.side_bytes[s]);
}

}  // namespace moebus::backend
