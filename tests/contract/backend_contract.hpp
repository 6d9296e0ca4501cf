// Backend contract: guarded memory, and the suite's fixture over every backend and level.
// Room: tests · host.

#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "backend/cpu/backend_cpu.hpp"
#include "model/codec.hpp"

namespace moebus::backend {

inline constexpr std::byte kGuard{0xA5};
inline constexpr std::size_t kGuardBytes = 256;

/// Memory with guards on both sides; says afterwards whether anybody wrote beyond it.
class Guarded {
 public:
  explicit Guarded(std::size_t size) : bytes_(size + 2 * kGuardBytes, kGuard) {}

  std::byte* begin() { return bytes_.data() + kGuardBytes; }

  std::size_t size() const { return bytes_.size() - 2 * kGuardBytes; }

  void fill(std::mt19937& random) {
    for (std::size_t i = 0; i < size(); ++i) begin()[i] = static_cast<std::byte>(random());
  }

  void fill(std::byte value) { std::fill(begin(), begin() + size(), value); }

  bool is_whole() const {
    const auto is_guard = [](std::byte b) { return b == kGuard; };
    return std::all_of(bytes_.begin(), bytes_.begin() + kGuardBytes, is_guard) &&
           std::all_of(bytes_.end() - kGuardBytes, bytes_.end(), is_guard);
  }

 private:
  std::vector<std::byte> bytes_;
};

enum class Order { row_major, column_major, grouped };

/// Rows as separate tensors, with odd strides between rows.
class Tensors {
 public:
  Tensors(const model::DispatchRowFormat& format,
          std::size_t row_bytes,
          std::int64_t num_rows,
          Order order,
          std::size_t gap_bytes = 6)
      : gap_bytes_(gap_bytes),
        format_(format),
        row_bytes_(row_bytes),
        num_rows_(num_rows),
        tokens_(static_cast<std::size_t>(num_rows) * (row_bytes + gap_bytes)),
        scales_(static_cast<std::size_t>(num_rows + kGroupRows) * (format.scales_bytes + 4)),
        side_{Guarded(static_cast<std::size_t>(num_rows) * format.side_bytes[0]),
              Guarded(static_cast<std::size_t>(num_rows) * format.side_bytes[1])} {
    arrays_.tokens = tokens_.begin();
    arrays_.token_stride_bytes = static_cast<std::int64_t>(row_bytes + gap_bytes);
    arrays_.scales = scales_.begin();
    if (order == Order::row_major) {
      arrays_.scale_row_stride_bytes = format.scale_items * 4;
      arrays_.scale_item_stride_bytes = 4;
    } else {
      const std::int64_t column = order == Order::grouped ? kGroupRows : num_rows;
      arrays_.scale_row_stride_bytes = 4;
      arrays_.scale_item_stride_bytes = column * 4;
      arrays_.scale_group_rows = order == Order::grouped ? kGroupRows : 0;
      arrays_.scale_group_stride_bytes = kGroupRows * format.scale_items * 4;
    }
    for (std::size_t s = 0; s < kMaxSideTensors; ++s) {
      arrays_.side[s] = side_[s].begin();
      arrays_.side_stride_bytes[s] = static_cast<std::int64_t>(format.side_bytes[s]);
    }
  }

  const RowArrays& arrays() const { return arrays_; }

  void fill(std::mt19937& random) {
    tokens_.fill(random);
    scales_.fill(random);
    for (Guarded& side : side_) side.fill(random);
  }

  void fill(std::byte value) {
    tokens_.fill(value);
    scales_.fill(value);
    for (Guarded& side : side_) side.fill(value);
  }

  /// Bytes of row r: payload, scale items, sides.
  std::vector<std::byte> row(std::int64_t r) const {
    std::vector<std::byte> bytes;
    append(bytes, arrays_.tokens + r * arrays_.token_stride_bytes, row_bytes_);
    for (int i = 0; i < format_.scale_items; ++i) append(bytes, item(r, i), 4);
    for (std::size_t s = 0; s < kMaxSideTensors; ++s) {
      append(bytes, arrays_.side[s] + r * arrays_.side_stride_bytes[s], format_.side_bytes[s]);
    }
    return bytes;
  }

  /// True if nothing lies outside of the tensors and the gaps between token rows hold `value`.
  bool is_whole(std::byte value) const {
    bool is_clean = tokens_.is_whole() && scales_.is_whole() && side_[0].is_whole() && side_[1].is_whole();
    for (std::int64_t r = 0; r < num_rows_; ++r) {
      const std::byte* const gap = arrays_.tokens + r * arrays_.token_stride_bytes + row_bytes_;
      for (std::size_t i = 0; i < gap_bytes_; ++i) is_clean = is_clean && gap[i] == value;
    }
    return is_clean;
  }

 private:
  static constexpr std::int64_t kGroupRows = 4;

  static void append(std::vector<std::byte>& bytes, const std::byte* from, std::size_t size) {
    bytes.insert(bytes.end(), from, from + size);
  }

  const std::byte* item(std::int64_t r, int i) const {
    const std::int64_t group = arrays_.scale_group_rows > 0 ? r / arrays_.scale_group_rows : 0;
    return arrays_.scales + group * arrays_.scale_group_stride_bytes +
           (r - group * arrays_.scale_group_rows) * arrays_.scale_row_stride_bytes +
           i * arrays_.scale_item_stride_bytes;
  }

  std::size_t gap_bytes_;
  model::DispatchRowFormat format_;
  std::size_t row_bytes_;
  std::int64_t num_rows_;
  Guarded tokens_;
  Guarded scales_;
  std::array<Guarded, kMaxSideTensors> side_;
  RowArrays arrays_;
};

inline model::DispatchRowFormat format_of(
    int hidden, DType dtype, Cast cast, ScaleFormat scales, std::array<int, 2> side) {
  ExchangeConfig config;
  config.hidden = hidden;
  config.dtype = dtype;
  config.cast = cast;
  config.scale_format = scales;
  config.side_bytes = side;
  return model::dispatch_row_format(config);
}

/// Row i of `num` to a place of its own that is not i.
inline std::vector<RowMove> scattered_moves(std::int32_t num, std::mt19937& random) {
  std::vector<RowMove> moves;
  for (std::int32_t i = 0; i < num; ++i) moves.push_back({i, (i * 7 + 3) % num});
  std::shuffle(moves.begin(), moves.end(), random);
  return moves;
}

struct Implementation {
  std::string name;
  bool (*is_here)();
  std::unique_ptr<Backend> (*make)();
  Stores stores;
};

template <SimdLevel kLevel, Stores kStores>
Implementation cpu() {
  return {"cpu_" + std::string(to_string(kLevel)) + (kStores == Stores::cached ? "_cached" : "_streamed"),
          [] { return has_simd_level(kLevel); },
          [] { return make_cpu_backend(kLevel); },
          kStores};
}

class BackendContract : public testing::TestWithParam<Implementation> {
 protected:
  void SetUp() override {
    if (!GetParam().is_here()) GTEST_SKIP() << GetParam().name << " is not supported by this machine";
    backend_ = GetParam().make();
    stores_ = GetParam().stores;
  }

  std::unique_ptr<Backend> backend_;
  Stores stores_ = Stores::cached;
  std::mt19937 random_{17};
};

}  // namespace moebus::backend
