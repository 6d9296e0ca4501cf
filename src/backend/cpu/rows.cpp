#include "backend/cpu/rows.hpp"

#include <algorithm>
#include <cstring>

#include "backend/cpu/cast.hpp"
#include "backend/cpu/copy.hpp"

namespace moebus::backend {

namespace {

constexpr std::ptrdiff_t kItemBytes = 4;

void copy_payload(std::byte* dst, const std::byte* src, std::size_t size_bytes, bool is_streamed) noexcept {
  if (is_streamed) {
    copy_streamed(dst, src, size_bytes);
  } else {
    copy_cached(dst, src, size_bytes);
  }
}

void copy_scales(const model::DispatchRowFormat& format, const ConstRowParts& source, const RowParts& sink) noexcept {
  if (source.scale_item_stride_bytes == kItemBytes && sink.scale_item_stride_bytes == kItemBytes) {
    copy_cached(sink.scales, source.scales, format.scales_bytes);
    return;
  }
  for (int i = 0; i < format.scale_items; ++i) {
    std::memcpy(
        sink.scales + i * sink.scale_item_stride_bytes, source.scales + i * source.scale_item_stride_bytes, kItemBytes);
  }
}

void copy_sides(const model::DispatchRowFormat& format, const ConstRowParts& source, const RowParts& sink) noexcept {
  for (std::size_t s = 0; s < kMaxSideTensors; ++s) copy_cached(sink.side[s], source.side[s], format.side_bytes[s]);
}

}  // namespace

void copy_row(const model::DispatchRowFormat& format,
              const ConstRowParts& source,
              const RowParts& sink,
              bool is_streamed) noexcept {
  copy_payload(sink.tokens, source.tokens, format.payload_bytes, is_streamed);
  copy_scales(format, source, sink);
  copy_sides(format, source, sink);
}

void cast_row(const Kernels& kernels,
              const model::DispatchRowFormat& format,
              const ConstRowParts& source,
              const RowParts& sink,
              bool is_streamed) noexcept {
  constexpr int kMaxColumns = kMaxGroups * kGroupColumns;
  alignas(kLineBytes) std::byte codes[kMaxColumns];
  const int items_per_group = format.scale_format == ScaleFormat::f32 ? kGroupBlocks : 1;
  ScaleItems items{sink.scales, sink.scale_item_stride_bytes};
  for (int column = 0; column < format.hidden; column += kMaxColumns) {
    const int columns = std::min(kMaxColumns, format.hidden - column);
    const std::byte* const row = source.tokens + base::idx(column) * 2;
    if (is_streamed) {
      cast_columns(kernels, format.scale_format, row, columns, codes, items);
      copy_streamed(sink.tokens + column, codes, base::idx(columns));
    } else {
      cast_columns(kernels, format.scale_format, row, columns, sink.tokens + column, items);
    }
    items.first += kMaxGroups * items_per_group * items.stride_bytes;
  }
  copy_sides(format, source, sink);
}

void zero_row(const model::DispatchRowFormat& format, const RowParts& sink, bool is_streamed) noexcept {
  if (is_streamed) {
    zero_streamed(sink.tokens, format.payload_bytes);
  } else {
    zero_cached(sink.tokens, format.payload_bytes);
  }
  for (int i = 0; i < format.scale_items; ++i) zero_cached(sink.scales + i * sink.scale_item_stride_bytes, kItemBytes);
  for (std::size_t s = 0; s < kMaxSideTensors; ++s) zero_cached(sink.side[s], format.side_bytes[s]);
}

}  // namespace moebus::backend
