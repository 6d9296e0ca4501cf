#include "engine/peers.hpp"

namespace moebus::engine {

using base::idx;

namespace {

constexpr std::int64_t kScaleItemBytes = 4;  // f32, or a word of four UE8M0 bytes

/// A tensor of the result: rows (padded: experts x rows) of `columns`, dense.
TensorView dense(const model::Shape& shape, int rank, std::byte* data, DType dtype, std::int64_t columns) noexcept {
  if (shape.config.layout == Layout::expert_padded) {
    return tensor_3d(data, dtype, shape.placement.num_local(rank), shape.capacity_rows, columns);
  }
  return tensor_2d(data, dtype, shape.capacity_rows, columns);
}

}  // namespace

DispatchOutput result_tensors(const model::Shape& shape,
                              const model::ResultLayout& layout,
                              int rank,
                              std::byte* memory) noexcept {
  const ExchangeConfig& config = shape.config;
  DispatchOutput output;
  output.tokens = dense(shape, rank, memory, shape.dispatch_row.wire_dtype, config.hidden);
  if (config.scale_format != ScaleFormat::none) {
    const DType dtype = config.scale_format == ScaleFormat::f32 ? DType::f32 : DType::i32;
    output.scales = dense(shape, rank, memory + layout.scales_offset, dtype, shape.dispatch_row.scale_items);
    const auto items = [](std::size_t bytes) { return static_cast<std::int64_t>(bytes) / kScaleItemBytes; };
    const std::size_t row_dim = config.layout == Layout::expert_padded ? 1 : 0;
    output.scales.stride[row_dim] = items(layout.scale_row_stride);
    output.scales.stride[row_dim + 1] = items(layout.scale_item_stride);
    if (row_dim == 1 && layout.scale_group_rows > 0) output.scales.stride[0] = items(layout.scale_group_stride);
  }
  for (std::size_t s = 0; s < kMaxSideTensors; ++s) {
    if (config.side_bytes[s] == 0) continue;
    output.side[s] = dense(shape, rank, memory + layout.side_offset[s], DType::u8, config.side_bytes[s]);
  }
  return output;
}

backend::RowArrays result_rows(const model::Shape& shape,
                               const model::ResultLayout& layout,
                               std::byte* memory) noexcept {
  backend::RowArrays rows;
  rows.tokens = memory;
  rows.token_stride_bytes = static_cast<std::int64_t>(layout.token_stride);
  if (shape.config.scale_format != ScaleFormat::none) {
    rows.scales = memory + layout.scales_offset;
    rows.scale_row_stride_bytes = static_cast<std::int64_t>(layout.scale_row_stride);
    rows.scale_item_stride_bytes = static_cast<std::int64_t>(layout.scale_item_stride);
    rows.scale_group_rows = layout.scale_group_rows;
    rows.scale_group_stride_bytes = static_cast<std::int64_t>(layout.scale_group_stride);
  }
  for (std::size_t s = 0; s < kMaxSideTensors; ++s) {
    rows.side[s] = memory + layout.side_offset[s];
    rows.side_stride_bytes[s] = shape.config.side_bytes[s];
  }
  return rows;
}

backend::RowArrays slot_rows(const model::DispatchRowFormat& format,
                             std::byte* memory,
                             std::int64_t num_slots) noexcept {
  const model::SlotLayout layout = model::slot_layout(format, num_slots);
  backend::RowArrays rows;
  rows.tokens = memory;
  rows.token_stride_bytes = static_cast<std::int64_t>(format.payload_stride_bytes);
  rows.scales = memory + layout.scales_offset_bytes;
  rows.scale_row_stride_bytes = static_cast<std::int64_t>(format.scales_bytes);
  rows.scale_item_stride_bytes = kScaleItemBytes;
  for (std::size_t s = 0; s < kMaxSideTensors; ++s) {
    rows.side[s] = memory + layout.side_offset_bytes[s];
    rows.side_stride_bytes[s] = static_cast<std::int64_t>(format.side_bytes[s]);
  }
  return rows;
}

backend::RowArrays output_rows(const model::Shape& shape, const DispatchOutput& output) noexcept {
  backend::RowArrays rows;
  rows.tokens = output.tokens.data;
  rows.token_stride_bytes = static_cast<std::int64_t>(shape.dispatch_row.payload_bytes);
  if (output.scales.is_given()) {
    // Padded outputs have [experts, rows, items]: one stride serves all rows unless columns are transposed per expert.
    const std::size_t row_dim = shape.config.layout == Layout::expert_padded ? 1 : 0;
    rows.scales = output.scales.data;
    rows.scale_row_stride_bytes = output.scales.stride[row_dim] * kScaleItemBytes;
    rows.scale_item_stride_bytes = output.scales.stride[row_dim + 1] * kScaleItemBytes;
    if (row_dim == 1) {
      rows.scale_group_rows = shape.capacity_rows;
      rows.scale_group_stride_bytes = output.scales.stride[0] * kScaleItemBytes;
    }
  }
  for (std::size_t s = 0; s < kMaxSideTensors; ++s) {
    rows.side[s] = output.side[s].data;
    rows.side_stride_bytes[s] = shape.config.side_bytes[s];
  }
  return rows;
}

backend::ConstRowArrays input_rows(const DispatchInput& input) noexcept {
  backend::ConstRowArrays rows;
  rows.tokens = input.tokens.data;
  rows.token_stride_bytes = input.tokens.stride[0] * static_cast<std::int64_t>(size_of(input.tokens.dtype));
  if (input.scales.is_given()) {
    rows.scales = input.scales.data;
    rows.scale_row_stride_bytes = input.scales.stride[0] * kScaleItemBytes;
    rows.scale_item_stride_bytes = input.scales.stride[1] * kScaleItemBytes;
  }
  for (std::size_t s = 0; s < kMaxSideTensors; ++s) {
    if (!input.side[s].is_given()) continue;
    rows.side[s] = input.side[s].data;
    rows.side_stride_bytes[s] = input.side[s].stride[0];
  }
  return rows;
}

}  // namespace moebus::engine
