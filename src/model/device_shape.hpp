// DeviceShape: a shape as kernels read it, and where everything lies in a device window. Plain values, copied into
// every launch. Latency path, ranks that all map each other. Room: model · host+device arithmetic. Source: [ours]
// design 4.2 (slots by source token), 4.5 (self-validating rows).

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

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

/// How a token's routing travels to one destination: fields of `bits` bits in the first three words of wide words (the
/// fourth is the tag); none crosses a word. Field 0 is the home slot, field 1 + k is choice k: the local expert there
/// plus 1, or 0.
struct TableFormat {
  std::uint32_t bits = 0;
  std::uint32_t fields_per_word = 0;
  std::uint32_t num_wide = 0;  ///< wide words a token
};

inline constexpr std::uint32_t kTableWords = 3;  // of a wide word, beside its tag

/// Where a field lies: in word `word` of wide word `wide`, shifted by `shift`.
struct FieldPlace {
  std::uint32_t wide = 0;
  std::uint32_t word = 0;
  std::uint32_t shift = 0;
};

[[nodiscard]] constexpr FieldPlace field_place(const TableFormat& format, std::uint32_t field) noexcept {
  const std::uint32_t word = field / format.fields_per_word;
  return {word / kTableWords, word % kTableWords, field % format.fields_per_word * format.bits};
}

/// Experts are told in 16 bits; the largest means none.
inline constexpr int kMaxDeviceExperts = 65535;
inline constexpr std::uint16_t kNoExpert = 0xFFFF;

/// Kernels handle the choices of a token in one warp.
inline constexpr int kMaxDeviceTopk = 32;

/// Positions inside a group are counted in 16 bits.
inline constexpr std::int64_t kMaxDeviceRows = 65535;

/// What the positions of a call may take of a block's shared memory.
inline constexpr std::size_t kMaxPlanBytes = std::size_t{64} << 10;

struct DeviceShape {
  std::int32_t num_ranks = 1;
  std::int32_t rank = 0;
  std::int32_t num_experts = 0;
  std::int32_t num_topk = 0;
  std::int32_t max_tokens = 0;
  std::int32_t first_expert[kMaxRanks + 1] = {};  ///< of each rank, ascending; one past the last at the end
  std::int32_t max_local_experts = 0;
  /// Experts of every rank, 0 if they differ; owner = expert * even_multiplier >> 32 (0: = expert).
  std::int32_t even_local_experts = 0;
  std::uint32_t even_multiplier = 0;

  Layout layout = Layout::rank_major;
  std::int32_t expert_alignment = 1;
  std::int64_t capacity_rows = 0;  ///< rows of the result (expert_padded: per expert)
  bool can_overflow = false;
  bool has_zero_padding = false;
  std::uint32_t digest = 0;

  // Dispatched rows.
  std::int32_t hidden = 0;
  Cast cast = Cast::none;
  ScaleFormat scale_format = ScaleFormat::none;
  std::int32_t scale_items = 0;  ///< 4-byte items a row
  RowPart part[kNumRowParts] = {};
  std::uint32_t row_words = 0;     ///< wide words of a slot
  std::uint32_t escape_words = 0;  ///< wide words of escape masks, one for 32 words; 0: no word can look armed
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
  std::uint64_t parity_bytes = 0;    ///< of this exchange; a context takes the largest
};

/// Words of 32 source tokens in a bit map over all tokens: each source begins a word of its own.
[[nodiscard]] constexpr std::int32_t map_words(const DeviceShape& shape) noexcept {
  return shape.num_ranks * base::ceil_div(shape.max_tokens, 32);
}

[[nodiscard]] TableFormat table_format(int num_topk, int max_local_experts, int slots_per_token) noexcept;

/// Returns what bit maps, their sums and the own ids take of a block's shared memory.
[[nodiscard]] std::size_t plan_bytes(const DeviceShape& shape) noexcept;

/// `shape` must be free of errors, find_device_config_error's too.
[[nodiscard]] DeviceShape device_shape(const Shape& shape) noexcept;

/// Returns what of a valid configuration devices cannot do in this version (field, value, remedy), or nothing.
[[nodiscard]] std::optional<std::string> find_device_config_error(const ExchangeConfig& config,
                                                                  const GroupFacts& group);

}  // namespace moebus::model
