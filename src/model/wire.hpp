// Wire: how rows lie in slots. Computed once here; nobody else adds offsets.
// Room: model · host+device arithmetic.
// Source: [ours] slots of one source are arrays, one a part, so that rows of neighbouring tokens travel as one long
// copy.

#pragma once

#include <array>
#include <cstddef>

#include "base/math.hpp"
#include "moebus/config.hpp"

namespace moebus::model {

inline constexpr std::size_t kPartAlign = 16;
inline constexpr std::size_t kSlotAlign = 64;

/// Returns the number of 128-column blocks of a row; the last may be shorter.
[[nodiscard]] constexpr int num_scale_blocks(int hidden) noexcept { return base::ceil_div(hidden, kScaleBlock); }

/// Returns the scale elements per row: f32 values, or i32 words of four UE8M0 bytes.
[[nodiscard]] constexpr int num_scale_items(int hidden, ScaleFormat format) noexcept {
  switch (format) {
    case ScaleFormat::none:
      return 0;
    case ScaleFormat::f32:
      return num_scale_blocks(hidden);
    case ScaleFormat::ue8m0:
      return base::ceil_div(num_scale_blocks(hidden), 4);
  }
  return 0;
}

/// A dispatched row as it travels. Both scale formats have 4-byte items.
struct DispatchRowFormat {
  int hidden = 0;
  DType input_dtype = DType::bf16;  ///< as the caller gives it
  DType wire_dtype = DType::bf16;   ///< as it travels and is received (e4m3 after the cast)
  Cast cast = Cast::none;
  ScaleFormat scale_format = ScaleFormat::none;
  int scale_items = 0;
  std::size_t payload_bytes = 0;
  std::size_t scales_bytes = 0;
  std::array<std::size_t, kMaxSideTensors> side_bytes{};
  std::size_t payload_stride_bytes = 0;  ///< slot to slot in the array of payloads
  std::size_t content_bytes = 0;         ///< payload + scales + sides, without padding: what P3 counts
  std::size_t stride_bytes = 0;          ///< what one slot takes of a window at most, all parts together
};

/// Where the arrays of `num_slots` slots begin; they fit into num_slots * stride_bytes. Payloads come first.
struct SlotLayout {
  std::size_t scales_offset_bytes = 0;
  std::array<std::size_t, kMaxSideTensors> side_offset_bytes{};
  std::size_t total_bytes = 0;
};

[[nodiscard]] SlotLayout slot_layout(const DispatchRowFormat& format, std::int64_t num_slots) noexcept;

/// A combined row as it travels: payload, then the lane (K floats) and the kept-choices mask (u64) where the
/// configuration has them.
struct CombineRowFormat {
  int hidden = 0;
  DType dtype = DType::bf16;
  std::size_t payload_bytes = 0;
  std::size_t lane_offset_bytes = 0;
  std::size_t lane_bytes = 0;  ///< 0 = no lane
  std::size_t mask_offset_bytes = 0;
  std::size_t mask_bytes = 0;  ///< 0 = nothing can be missing, and no lanes are merged
  std::size_t content_bytes = 0;
  std::size_t stride_bytes = 0;
};

[[nodiscard]] DispatchRowFormat dispatch_row_format(const ExchangeConfig& config) noexcept;
[[nodiscard]] CombineRowFormat combine_row_format(const ExchangeConfig& config, bool has_mask) noexcept;

}  // namespace moebus::model
