#include "oracle/compare.hpp"

#include <array>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <span>
#include <utility>

#include "oracle/numbers.hpp"

namespace moebus::oracle {

namespace {

using Result = std::optional<Difference>;

std::size_t idx(std::int64_t i) noexcept { return static_cast<std::size_t>(i); }

// A view as rows of columns: all dimensions but the last `inner` ones count rows.
class Rows {
 public:
  Rows(const ConstTensorView& view, int inner) : view_(view), outer_(view.num_dims - inner), inner_(inner) {}

  [[nodiscard]] bool has_shape() const { return outer_ >= 1 && outer_ <= 2; }

  [[nodiscard]] std::int64_t num_rows() const {
    std::int64_t n = 1;
    for (int d = 0; d < outer_; ++d) n *= view_.shape[idx(d)];
    return n;
  }

  [[nodiscard]] std::int64_t num_columns() const { return inner_ == 0 ? 1 : view_.shape[idx(outer_)]; }

  [[nodiscard]] std::int64_t rows_per_group() const { return outer_ == 2 ? view_.shape[1] : num_rows(); }

  [[nodiscard]] bool has_contiguous_rows() const { return inner_ == 0 || view_.stride[idx(outer_)] == 1; }

  [[nodiscard]] const std::byte* at(std::int64_t row, std::int64_t column) const {
    std::int64_t element = inner_ == 0 ? 0 : column * view_.stride[idx(outer_)];
    if (outer_ == 1) {
      element += row * view_.stride[0];
    } else {
      element += row / view_.shape[1] * view_.stride[0] + row % view_.shape[1] * view_.stride[1];
    }
    return view_.data + element * static_cast<std::int64_t>(size_of(view_.dtype));
  }

 private:
  const ConstTensorView& view_;
  int outer_;
  int inner_;
};

std::uint64_t bits_at(const std::byte* element, DType dtype) noexcept {
  std::uint64_t bits = 0;
  std::memcpy(&bits, element, size_of(dtype));  // little-endian
  return bits;
}

std::int64_t integer_at(const std::byte* element, DType dtype) noexcept {
  const std::uint64_t bits = bits_at(element, dtype);
  return dtype == DType::i32 ? static_cast<std::int32_t>(static_cast<std::uint32_t>(bits))
                             : static_cast<std::int64_t>(bits);
}

float float_of(std::uint64_t bits, DType dtype) noexcept {
  if (dtype == DType::bf16) return from_bf16(static_cast<std::uint16_t>(bits));
  if (dtype == DType::f16) return from_f16(static_cast<std::uint16_t>(bits));
  if (dtype == DType::e4m3) return from_e4m3(static_cast<std::uint8_t>(bits));
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits));
}

// Bits, and for floats the value: "0x3f80 (1)".
std::string element_text(const std::byte* element, DType dtype) {
  const std::uint64_t bits = bits_at(element, dtype);
  std::array<char, 64> text{};
  if (is_summable(dtype) || dtype == DType::e4m3) {
    const double value = static_cast<double>(float_of(bits, dtype));
    std::snprintf(text.data(), text.size(), "0x%llx (%.9g)", static_cast<unsigned long long>(bits), value);
  } else {
    std::snprintf(text.data(), text.size(), "0x%llx", static_cast<unsigned long long>(bits));
  }
  return text.data();
}

Difference whole(std::string field, int rank, std::string expected, std::string seen) {
  Difference difference;
  difference.field = std::move(field);
  difference.rank = rank;
  difference.expected = std::move(expected);
  difference.seen = std::move(seen);
  return difference;
}

std::string shape_text(const ConstTensorView& view) {
  if (!view.is_given()) return "not given";
  std::string text = std::string(to_string(view.dtype)) + " [";
  for (int d = 0; d < view.num_dims; ++d) text += (d == 0 ? "" : ", ") + std::to_string(view.shape[idx(d)]);
  return text + "]";
}

Result compare_number(const char* field, int rank, std::int64_t expected, std::int64_t seen) {
  if (expected == seen) return std::nullopt;
  return whole(field, rank, std::to_string(expected), std::to_string(seen));
}

// A table of integers with one dimension.
template <class Int>
Result compare_table(const char* field, int rank, const std::vector<Int>& expected, const ConstTensorView& seen) {
  if (expected.empty()) return std::nullopt;
  const DType dtype = sizeof(Int) == 4 ? DType::i32 : DType::i64;
  if (seen.num_dims != 1 || seen.dtype != dtype || seen.shape[0] != static_cast<std::int64_t>(expected.size())) {
    return whole(
        field, rank, std::string(to_string(dtype)) + " [" + std::to_string(expected.size()) + "]", shape_text(seen));
  }
  const Rows rows(seen, 0);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const std::int64_t value = integer_at(rows.at(static_cast<std::int64_t>(i), 0), dtype);
    if (value == expected[i]) continue;
    Difference difference = whole(field, rank, std::to_string(expected[i]), std::to_string(value));
    difference.row = static_cast<std::int64_t>(i);
    return difference;
  }
  return std::nullopt;
}

// What a tensor of a dispatch result must look like.
struct RowShape {
  const char* field;
  DType dtype;
  std::int64_t num_columns;  // 1 with inner = 0: one element per row
  int inner;
};

class DispatchComparison {
 public:
  DispatchComparison(const DispatchExpectation& expected, const DispatchSeen& seen)
      : expected_(expected), seen_(seen), config_(expected.config) {
    const std::int64_t num_experts = static_cast<std::int64_t>(expected.counts.size());
    is_padded_ = config_.layout == Layout::expert_padded;
    capacity_ = capacity_of(config_, expected.num_ranks);
    num_positions_ = is_padded_ ? num_experts * capacity_ : expected.num_rows;
  }

  Result run() {
    Result found = compare_tables();
    if (!found) found = compare_sources();
    if (!found) found = compare_payload();
    if (!found) found = compare_choices();
    return found;
  }

 private:
  Result compare_tables() const {
    const int rank = expected_.rank;
    Result found = compare_table("counts", rank, expected_.counts, seen_.counts);
    if (!found) found = compare_table("wanted", rank, expected_.wanted, seen_.wanted);
    if (!found && !expected_.counts.empty()) found = compare_table("offsets", rank, expected_.offsets, seen_.offsets);
    if (!found) found = compare_table("rank_counts", rank, expected_.rank_counts, seen_.rank_counts);
    if (!found) found = compare_number("num_rows", rank, expected_.num_rows, seen_.num_rows);
    if (!found) found = compare_number("num_overflowed", rank, expected_.num_overflowed, seen_.num_overflowed);
    return found;
  }

  Result compare_sources() {
    const RowShape rank_shape{"src_rank", DType::i32, 1, 0};
    const RowShape token_shape{"src_token", DType::i32, 1, 0};
    Result found = compare_integers(rank_shape, seen_.src_rank, [](const ReceivedRow& row) { return row.src_rank; });
    if (found) return found;
    return compare_integers(
        token_shape, seen_.src_token, [](const ReceivedRow& row) { return static_cast<std::int32_t>(row.src_token); });
  }

  template <class ValueOf>
  Result compare_integers(const RowShape& shape, const ConstTensorView& seen, ValueOf value_of) const {
    constexpr std::int32_t kPadding = -1;
    std::int32_t value = 0;
    return compare_all(shape, seen, marked_padding(kPadding), [&](const ReceivedRow& row, std::size_t) {
      value = value_of(row);
      return std::as_bytes(std::span(&value, 1));
    });
  }

  Result compare_payload() const {
    const RowShape tokens{"tokens", received_dtype(config_), config_.hidden, 1};
    std::vector<std::byte> zeros;
    const auto padding = [&](std::size_t bytes) {
      zeros.assign(config_.zero_padding ? bytes : 0, std::byte{0});
      return std::span<const std::byte>(zeros);
    };
    Result found = compare_all(
        tokens, seen_.tokens, padding(received_row_bytes(config_)), [&](const ReceivedRow& row, std::size_t) {
          return expected_.token_bytes(row);
        });
    const std::size_t scale_bytes = scale_row_bytes(config_.hidden, config_.scale_format);
    if (!found && scale_bytes > 0) {
      const DType dtype = config_.scale_format == ScaleFormat::f32 ? DType::f32 : DType::i32;
      const RowShape scales{"scales", dtype, static_cast<std::int64_t>(scale_bytes / 4), 1};
      found = check_scale_order();
      if (!found) {
        found = compare_all(scales, seen_.scales, padding(scale_bytes), [&](const ReceivedRow& row, std::size_t) {
          return expected_.scale_bytes(row);
        });
      }
    }
    for (int s = 0; s < kMaxSideTensors; ++s) {
      const int side_bytes = config_.side_bytes[idx(s)];
      if (found || side_bytes == 0) continue;
      const RowShape side{s == 0 ? "side[0]" : "side[1]", DType::u8, side_bytes, 1};
      found = compare_all(side, seen_.side[idx(s)], padding(idx(side_bytes)), [&](const ReceivedRow& row, std::size_t) {
        return expected_.side_bytes(row, s);
      });
    }
    return found;
  }

  // Column-major: rows are neighbours, and columns start on 16 bytes.
  Result check_scale_order() const {
    const ConstTensorView& view = seen_.scales;
    if (config_.scale_order != ScaleOrder::column_major || num_positions_ == 0 || view.num_dims < 2)
      return std::nullopt;
    const std::int64_t row_stride = view.stride[idx(view.num_dims - 2)];
    const std::int64_t column_stride = view.stride[idx(view.num_dims - 1)];
    const std::int64_t num_rows = view.shape[idx(view.num_dims - 2)];
    if (row_stride == 1 && column_stride % 4 == 0 && column_stride >= num_rows) return std::nullopt;
    return whole(
        "scales",
        expected_.rank,
        "column-major: row stride 1, column stride a multiple of 4 elements and at least " + std::to_string(num_rows),
        "row stride " + std::to_string(row_stride) + ", column stride " + std::to_string(column_stride));
  }

  Result compare_choices() const {
    const std::int64_t topk = config_.num_topk;
    if (config_.layout == Layout::rank_major) {
      const RowShape ids{"topk_idx", DType::i32, topk, 1};
      Result found = compare_all(ids, seen_.topk_idx, {}, [&](const ReceivedRow&, std::size_t i) {
        return std::as_bytes(std::span(expected_.topk_idx).subspan(i * idx(topk), idx(topk)));
      });
      if (found) return found;
    } else if (seen_.topk_idx.is_given()) {
      return whole("topk_idx", expected_.rank, "not given in expert layouts", shape_text(seen_.topk_idx));
    }
    if (!expected_.has_weights) {
      if (!seen_.topk_weights.is_given()) return std::nullopt;
      return whole(
          "topk_weights", expected_.rank, "not given, since none were dispatched", shape_text(seen_.topk_weights));
    }
    return config_.layout == Layout::rank_major ? compare_rank_major_weights(topk) : compare_row_weights();
  }

  Result compare_rank_major_weights(std::int64_t topk) const {
    const RowShape weights{"topk_weights", DType::f32, topk, 1};
    return compare_all(weights, seen_.topk_weights, {}, [&](const ReceivedRow&, std::size_t i) {
      return std::as_bytes(std::span(expected_.topk_weights).subspan(i * idx(topk), idx(topk)));
    });
  }

  // What tables hold for rows of no token; expert_padded, whose padding is most of the result, leaves them undefined.
  template <class T>
  [[nodiscard]] std::span<const std::byte> marked_padding(const T& value) const {
    return is_padded_ ? std::span<const std::byte>() : std::as_bytes(std::span(&value, 1));
  }

  // A sum that is NaN may carry any payload.
  Result compare_row_weights() const {
    const RowShape weights{"topk_weights", DType::f32, 1, 0};
    constexpr float kPadding = 0.0F;
    float weight = 0;
    const Rows rows(seen_.topk_weights, 0);
    return compare_all(weights, seen_.topk_weights, marked_padding(kPadding), [&](const ReceivedRow& row, std::size_t) {
      float seen = 0;
      std::memcpy(&seen, rows.at(row.position, 0), sizeof(seen));
      weight = std::isnan(row.weight) && std::isnan(seen) ? seen : row.weight;
      return std::as_bytes(std::span(&weight, 1));
    });
  }

  // Compares every row of a tensor: kept rows with what `bytes_of` gives, all others with `padding` (empty: not looked
  // at).
  template <class BytesOf>
  Result compare_all(const RowShape& shape,
                     const ConstTensorView& seen,
                     std::span<const std::byte> padding,
                     BytesOf bytes_of) const {
    if (num_positions_ == 0) return std::nullopt;
    const Rows rows(seen, shape.inner);
    if (Result wrong = check_shape(shape, seen, rows)) return wrong;
    std::size_t next = 0;  // rows are ordered by position
    for (std::int64_t position = 0; position < num_positions_; ++position) {
      const bool is_row = next < expected_.rows.size() && expected_.rows[next].position == position;
      if (!is_row && padding.empty()) continue;
      const ReceivedRow* row = is_row ? &expected_.rows[next] : nullptr;
      const std::span<const std::byte> bytes = is_row ? bytes_of(*row, next) : padding;
      if (Result wrong = compare_row(shape, rows, position, bytes, row)) return wrong;
      if (is_row) ++next;
    }
    return std::nullopt;
  }

  Result check_shape(const RowShape& shape, const ConstTensorView& seen, const Rows& rows) const {
    const bool is_right = seen.is_given() && rows.has_shape() && seen.dtype == shape.dtype &&
                          rows.num_columns() == shape.num_columns && rows.num_rows() >= num_positions_ &&
                          (!is_padded_ || seen.num_dims == shape.inner + 1 || rows.rows_per_group() == capacity_);
    if (is_right) return std::nullopt;
    std::string expected = std::string(to_string(shape.dtype)) + " [";
    expected += is_padded_ ? std::to_string(expected_.counts.size()) + ", " + std::to_string(capacity_)
                           : std::to_string(num_positions_);
    expected += shape.inner == 0 ? "]" : ", " + std::to_string(shape.num_columns) + "]";
    return whole(shape.field, expected_.rank, expected, shape_text(seen));
  }

  Result compare_row(const RowShape& shape,
                     const Rows& rows,
                     std::int64_t position,
                     std::span<const std::byte> bytes,
                     const ReceivedRow* row) const {
    const std::byte* first = rows.at(position, 0);
    if (rows.has_contiguous_rows() && std::memcmp(first, bytes.data(), bytes.size()) == 0) return std::nullopt;
    const std::size_t element_bytes = size_of(shape.dtype);
    for (std::int64_t column = 0; column < shape.num_columns; ++column) {
      const std::byte* expected = bytes.data() + idx(column) * element_bytes;
      const std::byte* seen = rows.at(position, column);
      if (std::memcmp(expected, seen, element_bytes) == 0) continue;
      Difference difference =
          whole(shape.field, expected_.rank, element_text(expected, shape.dtype), element_text(seen, shape.dtype));
      difference.row = position;
      difference.column = column;
      difference.src_rank = row == nullptr ? -1 : row->src_rank;
      difference.src_token = row == nullptr ? -1 : row->src_token;
      difference.seen_row = rows.has_contiguous_rows() ? first : nullptr;
      return difference;
    }
    return std::nullopt;
  }

  const DispatchExpectation& expected_;
  const DispatchSeen& seen_;
  const ExchangeConfig& config_;
  bool is_padded_ = false;
  std::int64_t capacity_ = 0;
  std::int64_t num_positions_ = 0;
};

// Compares [T, columns] of a home rank.
Result compare_home_rows(const char* field,
                         const CombineExpectation& expected,
                         DType dtype,
                         std::int64_t num_columns,
                         const std::byte* bytes,
                         const ConstTensorView& seen) {
  if (expected.num_tokens == 0) return std::nullopt;
  if (seen.num_dims != 2 || seen.dtype != dtype || seen.shape[0] != expected.num_tokens ||
      seen.shape[1] != num_columns) {
    std::string wanted(to_string(dtype));
    wanted += " [" + std::to_string(expected.num_tokens) + ", " + std::to_string(num_columns) + "]";
    return whole(field, expected.rank, wanted, shape_text(seen));
  }
  const Rows rows(seen, 1);
  const std::size_t element_bytes = size_of(dtype);
  for (std::int64_t n = 0; n < expected.num_tokens; ++n) {
    const std::byte* row = bytes + idx(n * num_columns) * element_bytes;
    if (rows.has_contiguous_rows() && std::memcmp(row, rows.at(n, 0), idx(num_columns) * element_bytes) == 0) continue;
    for (std::int64_t c = 0; c < num_columns; ++c) {
      const std::byte* element = row + idx(c) * element_bytes;
      if (std::memcmp(element, rows.at(n, c), element_bytes) == 0) continue;
      Difference difference =
          whole(field, expected.rank, element_text(element, dtype), element_text(rows.at(n, c), dtype));
      difference.row = n;
      difference.src_rank = expected.rank;
      difference.src_token = n;
      difference.column = c;
      difference.seen_row = rows.has_contiguous_rows() ? rows.at(n, 0) : nullptr;
      return difference;
    }
  }
  return std::nullopt;
}

}  // namespace

std::string Difference::text() const {
  std::string line = field + " on rank " + std::to_string(rank);
  if (row >= 0) line += ", row " + std::to_string(row);
  if (src_rank >= 0) line += " (source rank " + std::to_string(src_rank) + ", token " + std::to_string(src_token) + ")";
  if (row >= 0 && src_rank < 0 && column >= 0) line += " (padding)";
  if (column >= 0) line += ", column " + std::to_string(column);
  return line + ": expected " + expected + ", seen " + seen;
}

std::optional<Difference> compare(const DispatchExpectation& expected, const DispatchSeen& seen) {
  return DispatchComparison(expected, seen).run();
}

std::optional<Difference> compare(const CombineExpectation& expected, const CombineSeen& seen) {
  const ExchangeConfig& config = expected.config;
  const int rank = expected.rank;
  Result found = compare_number("num_incomplete", rank, expected.num_incomplete, seen.num_incomplete);
  if (!found && (seen.missing.is_given() || expected.num_incomplete > 0)) {
    found = compare_table("missing", rank, expected.missing, seen.missing);
  }
  if (!found) {
    const DType dtype = config.combine_dtype;
    found = compare_home_rows("tokens", expected, dtype, combine_columns(config), expected.tokens.data(), seen.tokens);
  }
  if (!found && !expected.lane.empty()) {
    const auto* bytes = std::as_bytes(std::span(expected.lane)).data();
    found = compare_home_rows("lane", expected, DType::f32, config.num_topk, bytes, seen.lane);
  }
  return found;
}

}  // namespace moebus::oracle
