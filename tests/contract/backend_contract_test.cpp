// What backend.hpp promises of rows that are moved and cast, for every backend and level that this machine runs.

#include "tests/contract/backend_contract.hpp"

namespace moebus::backend {
namespace {

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
