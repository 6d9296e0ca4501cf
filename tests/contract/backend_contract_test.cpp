// What backend.hpp promises, for every backend and level that this machine runs.
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
namespace {

constexpr std::byte kGuard{0xA5};
constexpr std::size_t kGuardBytes = 256;

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

model::DispatchRowFormat format_of(int hidden, DType dtype, Cast cast, ScaleFormat scales, std::array<int, 2> side) {
  ExchangeConfig config;
  config.hidden = hidden;
  config.dtype = dtype;
  config.cast = cast;
  config.scale_format = scales;
  config.side_bytes = side;
  return model::dispatch_row_format(config);
}

/// Row i of `num` to a place of its own that is not i.
std::vector<RowMove> scattered_moves(std::int32_t num, std::mt19937& random) {
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

// 13 rows stay in cache; the large count takes the batch past it.
TEST_P(BackendContract, BringsRowsOfEveryTypeThroughSlotsUnchanged) {
  for (const DType dtype : {DType::u8,
                            DType::i8,
                            DType::e4m3,
                            DType::e5m2,
                            DType::bf16,
                            DType::f16,
                            DType::i16,
                            DType::i32,
                            DType::f32,
                            DType::i64,
                            DType::f64}) {
    for (const int hidden : {1, 7, 64, 2880}) {
      const bool is_fp8 = dtype == DType::e4m3;
      const auto format = format_of(hidden, dtype, Cast::none, is_fp8 ? ScaleFormat::f32 : ScaleFormat::none, {3, 16});
      const std::int32_t num = hidden == 2880 && dtype == DType::bf16 ? 200 : 13;
      Tensors source(format, format.payload_bytes, num, is_fp8 ? Order::column_major : Order::row_major);
      Tensors sink(format, format.payload_bytes, num, Order::row_major);
      source.fill(random_);
      sink.fill(std::byte{0x5A});
      Tensors slots(format, format.payload_bytes, num, Order::row_major, 0);
      slots.fill(std::byte{0x5A});
      const auto there = scattered_moves(num, random_);
      std::vector<RowMove> back;
      for (const RowMove& move : there) back.push_back({move.dst, move.src});
      backend_->place(format, source.arrays(), slots.arrays(), there, stores_);
      backend_->copy_rows(format, slots.arrays(), sink.arrays(), back, stores_);
      for (std::int32_t r = 0; r < num; ++r) ASSERT_EQ(sink.row(r), source.row(r)) << to_string(dtype) << " row " << r;
      EXPECT_TRUE(sink.is_whole(std::byte{0x5A}));
      EXPECT_TRUE(slots.is_whole(std::byte{0x5A}));
    }
  }
}

TEST_P(BackendContract, CopiesRunsOfNeighboursWithoutGapsAsIfOneByOne) {
  for (const int hidden : {1, 7, 64, 2880}) {
    const auto format = format_of(hidden, DType::e4m3, Cast::none, ScaleFormat::f32, {3, 16});
    constexpr std::int32_t kRows = 40;
    Tensors source(format, format.payload_bytes, kRows, Order::row_major, 0);
    Tensors sink(format, format.payload_bytes, kRows, Order::row_major, 0);
    source.fill(random_);
    sink.fill(std::byte{0x5A});
    // Runs of 1, 2, 3 ... rows, each behind a jump on one side or the other.
    std::vector<RowMove> moves{{0, 0}, {2, 1}, {3, 2}, {4, 5}, {5, 6}, {6, 7}, {30, 9}, {31, 10}, {33, 11}, {39, 39}};
    backend_->copy_rows(format, source.arrays(), sink.arrays(), moves, stores_);
    std::vector<bool> is_written(kRows, false);
    for (const RowMove& move : moves) {
      is_written[static_cast<std::size_t>(move.dst)] = true;
      ASSERT_EQ(sink.row(move.dst), source.row(move.src)) << "hidden " << hidden << " row " << move.src;
    }
    for (std::int32_t r = 0; r < kRows; ++r) {
      if (is_written[static_cast<std::size_t>(r)]) continue;
      EXPECT_THAT(sink.row(r), testing::Each(std::byte{0x5A})) << "row " << r;
    }
    EXPECT_TRUE(sink.is_whole(std::byte{0x5A}));
  }
}

TEST_P(BackendContract, PlacesScalesInEveryOrder) {
  for (const ScaleFormat scales : {ScaleFormat::f32, ScaleFormat::ue8m0}) {
    for (const Order from : {Order::row_major, Order::column_major, Order::grouped}) {
      for (const Order to : {Order::row_major, Order::column_major, Order::grouped}) {
        const auto format = format_of(700, DType::e4m3, Cast::none, scales, {0, 5});
        Tensors source(format, format.payload_bytes, 12, from);
        Tensors sink(format, format.payload_bytes, 12, to);
        source.fill(random_);
        sink.fill(std::byte{0x5A});
        const auto moves = scattered_moves(12, random_);
        backend_->copy_rows(format, source.arrays(), sink.arrays(), moves, stores_);
        for (const RowMove& move : moves) ASSERT_EQ(sink.row(move.dst), source.row(move.src)) << "row " << move.src;
        EXPECT_TRUE(sink.is_whole(std::byte{0x5A}));
      }
    }
  }
}

TEST_P(BackendContract, CastsToTheSameBytesInPlaceAndThroughSlots) {
  for (const ScaleFormat scales : {ScaleFormat::f32, ScaleFormat::ue8m0}) {
    for (const int hidden : {1, 7, 64, 128, 129, 2880, 7168}) {
      for (const Order order : {Order::row_major, Order::column_major, Order::grouped}) {
        const auto format = format_of(hidden, DType::bf16, Cast::fp8, scales, {4, 0});
        const std::int32_t num = hidden == 7168 && order == Order::row_major ? 160 : 8;
        Tensors source(format, static_cast<std::size_t>(hidden) * 2, num, Order::row_major);
        Tensors direct(format, format.payload_bytes, num, order);
        Tensors through(format, format.payload_bytes, num, order);
        source.fill(random_);
        direct.fill(std::byte{0x5A});
        through.fill(std::byte{0x5A});
        Tensors slots(format, format.payload_bytes, num, Order::row_major, 0);
        const auto moves = scattered_moves(num, random_);
        std::vector<RowMove> same;
        for (std::int32_t r = 0; r < num; ++r) same.push_back({r, r});
        backend_->place(format, source.arrays(), direct.arrays(), moves, stores_);
        backend_->place(format, source.arrays(), slots.arrays(), moves, stores_);
        backend_->copy_rows(format, slots.arrays(), through.arrays(), same, stores_);
        for (std::int32_t r = 0; r < num; ++r)
          ASSERT_EQ(direct.row(r), through.row(r)) << "hidden " << hidden << " row " << r;
        EXPECT_TRUE(direct.is_whole(std::byte{0x5A}) && through.is_whole(std::byte{0x5A}) &&
                    slots.is_whole(std::byte{0x5A}));
      }
    }
  }
}

TEST_P(BackendContract, CastsEachValueByTheRuleOfItsBlock) {
  constexpr int kHidden = 2880;
  const auto format = format_of(kHidden, DType::bf16, Cast::fp8, ScaleFormat::f32, {0, 0});
  Tensors source(format, kHidden * 2, 1, Order::row_major);
  Tensors sink(format, format.payload_bytes, 1, Order::row_major);
  source.fill(random_);  // random bits: inf and NaN, subnormals and zeros among them
  const RowMove move{0, 0};
  backend_->place(format, source.arrays(), sink.arrays(), {&move, 1}, stores_);
  const auto value = [&](int c) {
    std::uint16_t bits = 0;
    std::memcpy(&bits, source.arrays().tokens + c * 2, 2);
    return bits;
  };
  for (int first = 0; first < kHidden; first += kScaleBlock) {
    float amax = model::kAmaxFloor;
    const int end = std::min(first + kScaleBlock, kHidden);
    for (int c = first; c < end; ++c) amax = model::amax_of(amax, value(c));
    const model::Fp8Block block = model::fp8_block_f32(amax);
    for (int c = first; c < end; ++c) {
      ASSERT_EQ(sink.arrays().tokens[c], std::byte{model::fp8_quantise(block, value(c))}) << "column " << c;
    }
    float scale = 0;
    std::memcpy(&scale, sink.arrays().scales + first / kScaleBlock * 4, 4);
    ASSERT_EQ(scale, block.scale);
  }
}

TEST_P(BackendContract, CopiesSlotsBetweenDifferentStrides) {
  for (const std::size_t content : {1UL, 700UL, 7392UL}) {
    const std::int32_t num = content == 7392 ? 300 : 9;
    const std::int64_t source_stride = static_cast<std::int64_t>(content) + 5;
    const std::int64_t sink_stride = static_cast<std::int64_t>(content) + 64;
    Guarded source(static_cast<std::size_t>(num * source_stride));
    Guarded sink(static_cast<std::size_t>(num * sink_stride));
    source.fill(random_);
    sink.fill(std::byte{0x5A});
    const auto moves = scattered_moves(num, random_);
    backend_->copy_slots(source.begin(), source_stride, sink.begin(), sink_stride, content, moves, stores_);
    for (const RowMove& move : moves) {
      const std::byte* const to = sink.begin() + move.dst * sink_stride;
      ASSERT_EQ(std::memcmp(to, source.begin() + move.src * source_stride, content), 0) << "slot " << move.src;
      for (std::size_t i = content; i < content + 64; ++i) ASSERT_EQ(to[i], std::byte{0x5A});
    }
    EXPECT_TRUE(sink.is_whole());
  }
}

TEST_P(BackendContract, ZeroesAllPartsOfTheRowsAskedForAndNoOthers) {
  for (const Order order : {Order::row_major, Order::column_major, Order::grouped}) {
    const auto format = format_of(300, DType::e4m3, Cast::none, ScaleFormat::f32, {2, 9});
    Tensors sink(format, format.payload_bytes, 10, order);
    sink.fill(std::byte{0x5A});
    backend_->zero_rows(format, sink.arrays(), 3, 4);
    for (std::int64_t r = 0; r < 10; ++r) {
      const std::byte expected = r >= 3 && r < 7 ? std::byte{0} : std::byte{0x5A};
      EXPECT_THAT(sink.row(r), testing::Each(expected)) << "row " << r;
    }
    EXPECT_TRUE(sink.is_whole(std::byte{0x5A}));
  }
}

TEST_P(BackendContract, CopiesPlainBytesOfAnyLength) {
  for (const std::size_t size : {0UL, 1UL, 1000UL, (1UL << 20) + 13}) {
    Guarded source(size);
    Guarded sink(size);
    source.fill(random_);
    backend_->copy_bytes(sink.begin(), source.begin(), size);
    EXPECT_EQ(std::memcmp(sink.begin(), source.begin(), size), 0) << size;
    EXPECT_TRUE(sink.is_whole()) << size;
  }
}

TEST_P(BackendContract, TakesNoRowsWithNullAddresses) {
  const auto format = format_of(128, DType::bf16, Cast::fp8, ScaleFormat::f32, {0, 0});
  backend_->place(format, {}, {}, {}, stores_);
  backend_->copy_rows(format, {}, {}, {}, stores_);
  backend_->copy_slots(nullptr, 0, nullptr, 0, 128, {}, stores_);
  backend_->zero_rows(format, {}, 0, 0);
  backend_->copy_bytes(nullptr, nullptr, 0);
  backend_->sum(SumJob{});
  backend_->scale_rows(ScaleJob{});
  backend_->dot_rows(DotJob{});
  SUCCEED() << "a crash is the failure";
}

/// A job of random rows, and what it must give.
class Sums {
 public:
  Sums(DType dtype, int hidden, std::int32_t num_outputs, bool is_weighted, int num_biases, std::mt19937& random)
      : dtype_(dtype),
        row_bytes_(static_cast<std::size_t>(hidden) * size_of(dtype)),
        output_(static_cast<std::size_t>(num_outputs) * row_bytes_) {
    std::vector<std::int32_t> counts;
    for (std::int32_t o = 0; o < num_outputs; ++o) {
      counts.push_back(static_cast<std::int32_t>(random() % 5));
      first_.push_back(first_.back() + counts.back());
    }
    const auto num_terms = static_cast<std::size_t>(first_.back());
    rows_.resize((num_terms + 2 * static_cast<std::size_t>(num_outputs)) * row_bytes_);
    std::normal_distribution<float> normal;
    for (std::size_t i = 0; i < rows_.size() / size_of(dtype); ++i) store(rows_.data(), i, normal(random));
    for (std::size_t t = 0; t < num_terms; ++t) {
      terms_.push_back(random() % 6 == 0 ? nullptr : rows_.data() + t * row_bytes_);
      weights_.push_back(normal(random));
    }
    job_ = {
        .dtype = dtype, .hidden = hidden, .num_outputs = num_outputs, .first = first_.data(), .term = terms_.data()};
    if (is_weighted) job_.weight = weights_.data();
    for (std::size_t b = 0; b < static_cast<std::size_t>(num_biases); ++b) {
      job_.bias[b] = rows_.data() + (num_terms + b * static_cast<std::size_t>(num_outputs)) * row_bytes_;
      job_.bias_stride_bytes[b] = static_cast<std::int64_t>(row_bytes_);
    }
    job_.output = output_.begin();
    job_.output_stride_bytes = static_cast<std::int64_t>(row_bytes_);
  }

  SumJob& job() { return job_; }

  Guarded& output() { return output_; }

  std::size_t row_bytes() const { return row_bytes_; }

  /// The sum of output o, column c, straight from the sentence in SumJob.
  std::uint32_t expected(std::int64_t o, int c) const {
    float acc = job_.bias[0] != nullptr ? load(job_.bias[0] + o * job_.bias_stride_bytes[0], c) : 0.0F;
    if (job_.bias[1] != nullptr) acc += load(job_.bias[1] + o * job_.bias_stride_bytes[1], c);
    for (std::int32_t t = job_.first[o]; t < job_.first[o + 1]; ++t) {
      if (job_.term[t] == nullptr) continue;
      const float term = load(job_.term[t], c);
      acc = job_.weight != nullptr ? std::fma(job_.weight[t], term, acc) : acc + term;
    }
    if (dtype_ == DType::bf16) return model::bf16_from_f32(acc);
    return dtype_ == DType::f16 ? model::f16_from_f32(acc) : model::bits_of(model::canonical_f32(acc));
  }

  std::uint32_t seen(const std::byte* row, int c) const {
    std::uint32_t bits = 0;
    std::memcpy(&bits, row + static_cast<std::size_t>(c) * size_of(dtype_), size_of(dtype_));
    return bits;
  }

 private:
  float load(const std::byte* row, int c) const {
    const std::uint32_t bits = seen(row, c);
    if (dtype_ == DType::bf16) return model::f32_from_bf16(static_cast<std::uint16_t>(bits));
    return dtype_ == DType::f16 ? model::f32_from_f16(static_cast<std::uint16_t>(bits)) : model::float_of(bits);
  }

  void store(std::byte* rows, std::size_t i, float value) const {
    const std::uint32_t bits = dtype_ == DType::bf16  ? model::bf16_from_f32(value)
                               : dtype_ == DType::f16 ? model::f16_from_f32(value)
                                                      : model::bits_of(value);
    std::memcpy(rows + i * size_of(dtype_), &bits, size_of(dtype_));
  }

  DType dtype_;
  std::size_t row_bytes_;
  std::vector<std::int32_t> first_{0};
  std::vector<std::byte> rows_;
  std::vector<const std::byte*> terms_;
  std::vector<float> weights_;
  Guarded output_;
  SumJob job_;
};

TEST_P(BackendContract, SumsInTheGivenOrderWithOneRounding) {
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
    for (const int hidden : {1, 7, 64, 2880}) {
      for (const bool is_weighted : {true, false}) {
        for (int num_biases = 0; num_biases <= 2; ++num_biases) {
          // The widest rows are enough to go past the caches.
          const std::int32_t num = hidden == 2880 && num_biases == 1 ? 200 : 12;
          Sums sums(dtype, hidden, num, is_weighted, num_biases, random_);
          sums.job().stores = stores_;
          backend_->sum(sums.job());
          for (std::int32_t o = 0; o < num; ++o) {
            const std::byte* const row = sums.output().begin() + static_cast<std::size_t>(o) * sums.row_bytes();
            for (int c = 0; c < hidden; ++c) {
              ASSERT_EQ(sums.seen(row, c), sums.expected(o, c))
                  << to_string(dtype) << " output " << o << " column " << c;
            }
          }
          EXPECT_TRUE(sums.output().is_whole());
        }
      }
    }
  }
}

TEST_P(BackendContract, SumsIntoTheRowsOfAListWhenOneIsGiven) {
  Sums sums(DType::bf16, 300, 6, true, 0, random_);
  std::vector<std::byte*> rows;
  for (std::size_t o = 0; o < 6; ++o) rows.push_back(sums.output().begin() + (5 - o) * sums.row_bytes());
  sums.job().output_row = rows.data();
  sums.job().output = nullptr;
  sums.job().stores = stores_;
  backend_->sum(sums.job());
  for (std::int32_t o = 0; o < 6; ++o) {
    for (int c = 0; c < 300; ++c) ASSERT_EQ(sums.seen(rows[static_cast<std::size_t>(o)], c), sums.expected(o, c));
  }
  EXPECT_TRUE(sums.output().is_whole());
}

TEST_P(BackendContract, AddsInFloat32SoThatSmallPartsAreNotLost) {
  constexpr int kHidden = 128;
  std::vector<std::uint16_t> rows(8 * kHidden, model::bf16_from_f32(1.0F));
  std::fill(rows.begin(), rows.begin() + kHidden, model::bf16_from_f32(256.0F));
  std::vector<const std::byte*> terms;
  for (std::size_t t = 0; t < 8; ++t) terms.push_back(reinterpret_cast<const std::byte*>(&rows[t * kHidden]));
  const std::array<std::int32_t, 2> first{0, 8};
  const std::vector<float> weights(8, 1.0F);
  std::vector<std::uint16_t> output(kHidden);
  SumJob job{
      .hidden = kHidden, .num_outputs = 1, .first = first.data(), .term = terms.data(), .weight = weights.data()};
  job.output = reinterpret_cast<std::byte*>(output.data());
  backend_->sum(job);
  EXPECT_THAT(output, testing::Each(model::bf16_from_f32(264.0F)));
}

TEST_P(BackendContract, GivesPlusZeroWithoutTermsAndForMinusZeroAlone) {
  constexpr int kHidden = 40;
  const std::vector<std::uint16_t> minus_zero(kHidden, 0x8000);
  const auto* const term = reinterpret_cast<const std::byte*>(minus_zero.data());
  const std::array<std::int32_t, 3> first{0, 0, 1};
  std::vector<std::uint16_t> output(2 * kHidden, 0x5A5A);
  SumJob job{.hidden = kHidden, .num_outputs = 2, .first = first.data(), .term = &term};
  job.output = reinterpret_cast<std::byte*>(output.data());
  job.output_stride_bytes = kHidden * 2;
  backend_->sum(job);
  EXPECT_THAT(output, testing::Each(0));
}

/// Rows of one summable type with a gap behind each; the values are known as floats, exactly.
class FloatRows {
 public:
  FloatRows(DType dtype, int hidden, std::int32_t num_rows, std::mt19937& random)
      : dtype_(dtype),
        hidden_(hidden),
        stride_(static_cast<std::size_t>(hidden) * size_of(dtype) + 6),
        memory_(static_cast<std::size_t>(num_rows) * stride_) {
    memory_.fill(std::byte{0x5A});
    std::normal_distribution<float> normal;
    for (std::int32_t r = 0; r < num_rows; ++r) {
      for (int c = 0; c < hidden; ++c) {
        const std::uint32_t bits = rounded(normal(random));
        std::memcpy(element(r, c), &bits, size_of(dtype));
      }
    }
  }

  std::uint32_t rounded(float value) const {
    if (dtype_ == DType::bf16) return model::bf16_from_f32(value);
    return dtype_ == DType::f16 ? model::f16_from_f32(value) : model::bits_of(model::canonical_f32(value));
  }

  std::uint32_t bits(std::int32_t r, int c) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, element(r, c), size_of(dtype_));
    return bits;
  }

  float value(std::int32_t r, int c) {
    const std::uint32_t pattern = bits(r, c);
    if (dtype_ == DType::bf16) return model::f32_from_bf16(static_cast<std::uint16_t>(pattern));
    return dtype_ == DType::f16 ? model::f32_from_f16(static_cast<std::uint16_t>(pattern)) : model::float_of(pattern);
  }

  std::byte* rows() { return memory_.begin(); }

  std::int64_t stride_bytes() const { return static_cast<std::int64_t>(stride_); }

  /// True if nothing was written behind row `r`.
  bool is_gap_whole(std::int32_t r) {
    const std::byte* const gap = element(r, hidden_);
    return memory_.is_whole() && std::all_of(gap, gap + 6, [](std::byte b) { return b == std::byte{0x5A}; });
  }

 private:
  std::byte* element(std::int32_t r, int c) {
    return memory_.begin() + static_cast<std::size_t>(r) * stride_ + static_cast<std::size_t>(c) * size_of(dtype_);
  }

  DType dtype_;
  int hidden_;
  std::size_t stride_;
  Guarded memory_;
};

TEST_P(BackendContract, MultipliesTheRowsOfAListWithOneRoundingAndLeavesTheOthers) {
  constexpr std::int32_t kRows = 7;
  const std::vector<std::int32_t> list{5, 0, 3};
  const std::vector<float> factors{0.3F, -1.7F, 0.0F};
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
    for (const int hidden : {1, 7, 64, 2881}) {
      FloatRows rows(dtype, hidden, kRows, random_);
      FloatRows before = rows;
      backend_->scale_rows({dtype, hidden, rows.rows(), rows.stride_bytes(), list, factors.data()});
      for (std::int32_t r = 0; r < kRows; ++r) {
        const auto at = std::find(list.begin(), list.end(), r);
        for (int c = 0; c < hidden; ++c) {
          const float product = at != list.end()
                                    ? factors[static_cast<std::size_t>(at - list.begin())] * before.value(r, c)
                                    : before.value(r, c);
          ASSERT_EQ(rows.bits(r, c), before.rounded(product)) << to_string(dtype) << " row " << r << " column " << c;
        }
        EXPECT_TRUE(rows.is_gap_whole(r)) << r;
      }
    }
  }
}

TEST_P(BackendContract, FormsDotProductsInTheGivenOrder) {
  const std::vector<std::int32_t> list{2, 4, 2, 0};
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
    for (const int hidden : {1, 15, 16, 33, 700, 2881}) {
      FloatRows left(dtype, hidden, 5, random_);
      FloatRows right(dtype, hidden + 3, 5, random_);  // another stride
      std::vector<float> dots(list.size(), -1.0F);
      backend_->dot_rows(
          {dtype, hidden, left.rows(), left.stride_bytes(), right.rows(), right.stride_bytes(), list, dots.data()});
      for (std::size_t i = 0; i < list.size(); ++i) {
        // Written out as the sentence in DotJob says it.
        std::array<float, 16> s{};
        for (int j = 0; j < 16; ++j) {
          for (int c = j; c < hidden; c += 16) {
            s[static_cast<std::size_t>(j)] =
                std::fma(left.value(list[i], c), right.value(list[i], c), s[static_cast<std::size_t>(j)]);
          }
        }
        const float dot = (((s[0] + s[8]) + (s[4] + s[12])) + ((s[2] + s[10]) + (s[6] + s[14]))) +
                          (((s[1] + s[9]) + (s[5] + s[13])) + ((s[3] + s[11]) + (s[7] + s[15])));
        ASSERT_EQ(model::bits_of(dots[i]), model::bits_of(dot)) << to_string(dtype) << " hidden " << hidden;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends,
                         BackendContract,
                         testing::Values(cpu<SimdLevel::scalar, Stores::cached>(),
                                         cpu<SimdLevel::scalar, Stores::streamed>(),
                                         cpu<SimdLevel::avx2, Stores::cached>(),
                                         cpu<SimdLevel::avx2, Stores::streamed>(),
                                         cpu<SimdLevel::avx512, Stores::cached>(),
                                         cpu<SimdLevel::avx512, Stores::streamed>()),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace moebus::backend
