// DeviceShape: a shape as kernels read it, and where everything lies in a device window. Plain values, copied into
// every launch. Latency path, ranks that all map each other. Room: model · host+device arithmetic. Source: [ours]
// design 4.2 (slots by source token), 4.5 (self-validating rows).

#pragma once

#include <cstddef>
#include <cstdint>

#include "base/math.hpp"
#include "model/shape.hpp"

namespace moebus::model {

inline constexpr std::size_t kWideBytes = 16;

/// Parts of a row, in their order in a slot: payload, scales, side tensors. Each begins on a wide word.
inline constexpr int kNumRowParts = 2 + kMaxSideTensors;

/// One part of a dispatched row.
struct RowPart {
  std::uint32_t bytes = 0;  ///< 0 = not there
  std::uint32_t first_word = 0;
  std::uint32_t num_words = 0;
};

/// How a token's routing travels to one destination: its home slot, then for each choice the local expert there plus 1,
/// or 0. Three words of 32 bits in each wide word; no field crosses a wide word.
struct TableFormat {
  std::uint32_t slot_bits = 0;
  std::uint32_t choice_bits = 0;
  std::uint32_t num_words = 0;  ///< wide words a token
};

inline constexpr std::uint32_t kTableBits = 96;  // of a wide word, beside its tag

struct DeviceShape {
  std::int32_t num_ranks = 1;
  std::int32_t rank = 0;
  std::int32_t num_experts = 0;
  std::int32_t num_topk = 0;
  std::int32_t max_tokens = 0;
  std::int32_t first_expert[kMaxRanks + 1] = {};  ///< of each rank, ascending; one past the last at the end
  std::int32_t max_local_experts = 0;
  std::int32_t even_local_experts = 0;  ///< experts of every rank, 0 if they differ

  Layout layout = Layout::rank_major;
  std::int32_t expert_alignment = 1;
  std::int64_t capacity_rows = 0;  ///< rows of the result (expert_padded: per expert)
  bool can_overflow = false;
  bool has_zero_padding = false;
  std::uint32_t digest = 0;

  // Dispatched rows.
  std::int32_t hidden = 0;
  std::int32_t element_bytes = 0;  ///< of the caller's rows
  Cast cast = Cast::none;
  ScaleFormat scale_format = ScaleFormat::none;
  std::int32_t scale_items = 0;  ///< 4-byte items a row
  RowPart part[kNumRowParts] = {};
  std::uint32_t row_words = 0;     ///< wide words of a slot
  std::uint32_t escape_words = 0;  ///< wide words of escape masks; 0: no word of these rows can look armed
  TableFormat table;
  std::uint32_t weight_words = 0;  ///< wide words of a token's weights: three in each

  // Combined rows.
  std::int32_t combine_hidden = 0;
  DType combine_dtype = DType::bf16;
  std::uint32_t combine_words = 0;
  std::int32_t slots_per_token = 0;

  // Offsets in bytes inside a parity of the window.
  std::uint64_t headers_offset = 0;  ///< [ranks]
  std::uint64_t tables_offset = 0;   ///< [ranks][max tokens][table words]
  std::uint64_t weights_offset = 0;  ///< [ranks][max tokens][weight words]
  std::uint64_t escapes_offset = 0;  ///< [ranks][max tokens][escape words]
  std::uint64_t tails_offset = 0;    ///< [slots][max tokens] kept choices, if rows can overflow
  std::uint64_t rows_offset = 0;     ///< dispatch [ranks][max tokens][row words]; combine [slots][max tokens][words]
  std::uint64_t parity_bytes = 0;
};

/// Escape masks have 32 bits for 32 wide words; three masks in a wide word.
[[nodiscard]] constexpr std::uint32_t escape_words_for(std::uint32_t row_words) noexcept {
  return base::ceil_div(base::ceil_div(row_words, 32U), 3U);
}

[[nodiscard]] constexpr std::uint32_t bits_for(std::uint32_t num_values) noexcept {
  std::uint32_t bits = 0;
  while ((std::uint64_t{1} << bits) < num_values) ++bits;
  return bits;
}

/// Choices that the first wide word of a table entry holds, and each of the others.
[[nodiscard]] constexpr std::uint32_t choices_in_first(const TableFormat& format) noexcept {
  return (kTableBits - format.slot_bits) / format.choice_bits;
}

[[nodiscard]] constexpr std::uint32_t choices_in_next(const TableFormat& format) noexcept {
  return kTableBits / format.choice_bits;
}

[[nodiscard]] TableFormat table_format(int num_topk, int max_local_experts, int slots_per_token) noexcept;

/// The layout rules are those of the CPU's shape; what device kernels do not do is find_device_config_error's to say.
[[nodiscard]] DeviceShape device_shape(const Shape& shape) noexcept;

/// Returns what of a valid configuration devices cannot do in this version (field, value, remedy), or nothing.
[[nodiscard]] std::optional<std::string> find_device_config_error(const ExchangeConfig& config,
                                                                  const GroupFacts& group);

}  // namespace moebus::model
