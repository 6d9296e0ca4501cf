#include "model/wire.hpp"

namespace moebus::model {

DispatchRowFormat dispatch_row_format(const ExchangeConfig& config) noexcept {
  DispatchRowFormat format;
  format.hidden = config.hidden;
  format.input_dtype = config.dtype;
  format.cast = config.cast;
  format.wire_dtype = config.cast == Cast::fp8 ? DType::e4m3 : config.dtype;
  format.scale_format = config.scale_format;
  format.scale_items = num_scale_items(config.hidden, config.scale_format);
  format.payload_bytes = base::idx(config.hidden) * size_of(format.wire_dtype);
  format.payload_stride_bytes = base::align_up(format.payload_bytes, kPartAlign);
  format.scales_bytes = base::idx(format.scale_items) * 4;
  format.content_bytes = format.payload_bytes + format.scales_bytes;
  format.stride_bytes =
      base::align_up(format.payload_stride_bytes, kSlotAlign) + base::align_up(format.scales_bytes, kSlotAlign);
  for (std::size_t s = 0; s < kMaxSideTensors; ++s) {
    format.side_bytes[s] = base::idx(config.side_bytes[s]);
    format.content_bytes += format.side_bytes[s];
    format.stride_bytes += base::align_up(format.side_bytes[s], kSlotAlign);
  }
  return format;
}

SlotLayout slot_layout(const DispatchRowFormat& format, std::int64_t num_slots) noexcept {
  SlotLayout layout;
  const std::size_t slots = base::idx(num_slots);
  std::size_t end = base::align_up(slots * format.payload_stride_bytes, kSlotAlign);
  layout.scales_offset_bytes = end;
  end += base::align_up(slots * format.scales_bytes, kSlotAlign);
  for (std::size_t s = 0; s < kMaxSideTensors; ++s) {
    layout.side_offset_bytes[s] = end;
    end += base::align_up(slots * format.side_bytes[s], kSlotAlign);
  }
  layout.total_bytes = end;
  return layout;
}

CombineRowFormat combine_row_format(const ExchangeConfig& config, bool has_mask) noexcept {
  CombineRowFormat format;
  format.hidden = config.combine_hidden > 0 ? config.combine_hidden : config.hidden;
  format.dtype = config.combine_dtype;
  format.payload_bytes = base::idx(format.hidden) * size_of(format.dtype);
  format.lane_offset_bytes = base::align_up(format.payload_bytes, kPartAlign);
  format.lane_bytes = config.combine_lane ? base::idx(config.num_topk) * sizeof(float) : 0;
  format.mask_offset_bytes = base::align_up(format.lane_offset_bytes + format.lane_bytes, kPartAlign);
  format.mask_bytes = has_mask ? sizeof(std::uint64_t) : 0;
  format.content_bytes = format.payload_bytes + format.lane_bytes;
  format.stride_bytes = base::align_up(format.mask_offset_bytes + format.mask_bytes, kSlotAlign);
  return format;
}

}  // namespace moebus::model
