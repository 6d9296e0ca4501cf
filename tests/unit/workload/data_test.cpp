#include "workload/data.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <set>
#include <vector>

namespace moebus::workload {
namespace {

constexpr DType kAllTypes[] = {DType::u8,
                               DType::i8,
                               DType::e4m3,
                               DType::e5m2,
                               DType::bf16,
                               DType::f16,
                               DType::i16,
                               DType::i32,
                               DType::f32,
                               DType::i64,
                               DType::f64};

std::vector<std::byte> identity(
    DType dtype, std::int64_t num_tokens, std::int64_t columns, int rank, std::int64_t first_token = 0) {
  std::vector<std::byte> rows(static_cast<std::size_t>(num_tokens * columns) * size_of(dtype));
  fill_identity(rows, dtype, columns, rank, first_token);
  return rows;
}

TEST(IdentityData, TellsWhereEveryElementWasMadeFor) {
  constexpr std::int64_t kColumns = 100;
  for (const DType dtype : kAllTypes) {
    const auto rows = identity(dtype, 4, kColumns, 63, 16777000);
    const std::size_t row_bytes = kColumns * size_of(dtype);
    for (std::size_t n = 0; n < 4; ++n) {
      for (std::int64_t column = 0; column < kColumns; ++column) {
        const auto origin = origin_of(std::span(rows).subspan(n * row_bytes, row_bytes), dtype, column);
        ASSERT_TRUE(origin) << to_string(dtype) << " column " << column;
        ASSERT_EQ(origin->rank, 63);
        ASSERT_EQ(origin->token, 16777000 + static_cast<std::int64_t>(n));
        ASSERT_EQ(origin->first_column, std::min<std::int64_t>(column / 8, 11) * 8);
        ASSERT_EQ(origin->part, Part::tokens);
      }
    }
  }
}

TEST(IdentityData, IsFiniteAndTheSameValuesInEveryFloatType) {
  const auto f32 = identity(DType::f32, 3, 64, 1);
  const auto bf16 = identity(DType::bf16, 3, 64, 1);
  std::set<float> different;
  for (std::size_t i = 0; i < f32.size() / 4; ++i) {
    float value = 0;
    std::uint32_t widened = 0;
    std::memcpy(&value, f32.data() + 4 * i, 4);
    std::memcpy(reinterpret_cast<std::byte*>(&widened) + 2, bf16.data() + 2 * i, 2);
    ASSERT_EQ(std::bit_cast<float>(widened), value);
    ASSERT_GE(std::fabs(value), 1.0F);
    ASSERT_LT(std::fabs(value), 2.0F);
    different.insert(value);
  }
  EXPECT_GT(different.size(), 100U);
}

TEST(IdentityData, DiffersByRankTokenPartAndSet) {
  std::set<std::vector<std::byte>> rows;
  for (int rank = 0; rank < 3; ++rank) {
    for (std::int64_t token = 0; token < 3; ++token) {
      for (int part = 0; part < 4; ++part) {
        for (int set = 0; set < 3; ++set) {
          std::vector<std::byte> row(8);
          fill_identity(row, DType::u8, 8, rank, token, static_cast<Part>(part), set);
          const auto origin = origin_of(row, DType::u8, 0);
          ASSERT_TRUE(origin);
          EXPECT_EQ(origin->part, static_cast<Part>(part));
          EXPECT_EQ(origin->set, set);
          rows.insert(row);
        }
      }
    }
  }
  EXPECT_EQ(rows.size(), 108U);
}

TEST(IdentityData, SaysSoInWords) {
  EXPECT_EQ((Origin{3, 17, 8, Part::side1, 2}.text()), "rank 3, token 17, columns 8..15 of side[1], set 2");
}

TEST(OriginOf, RefusesDamagedForeignAndShortRows) {
  auto row = identity(DType::bf16, 1, 16, 2);
  EXPECT_TRUE(origin_of(row, DType::bf16, 9));
  row[18] ^= std::byte{1};
  EXPECT_FALSE(origin_of(row, DType::bf16, 9));
  EXPECT_TRUE(origin_of(row, DType::bf16, 0));
  EXPECT_FALSE(origin_of(std::vector<std::byte>(32, std::byte{0}), DType::bf16, 0));
  std::vector<std::byte> poison(32);
  fill_poison(poison);
  EXPECT_FALSE(origin_of(poison, DType::bf16, 0));
  EXPECT_FALSE(origin_of(identity(DType::u8, 1, 7, 2), DType::u8, 0));
  EXPECT_FALSE(origin_of(row, DType::bf16, 16));
}

TEST(RandomData, IsFiniteOfBothSignsAndManyMagnitudes) {
  std::vector<float> values(4096);
  fill_random(std::as_writable_bytes(std::span(values)), DType::f32, 5);
  int num_negative = 0;
  std::set<int> exponents;
  for (const float value : values) {
    ASSERT_TRUE(std::isfinite(value));
    ASSERT_LT(std::fabs(value), 256.0F);
    num_negative += std::signbit(value);
    if (value != 0) exponents.insert(std::ilogb(value));
  }
  EXPECT_NEAR(num_negative, 2048, 200);
  EXPECT_EQ(exponents.size(), 16U);
  EXPECT_TRUE(std::count(values.begin(), values.end(), 0.0F) > 100);
}

TEST(RandomData, IsFiniteInShortFloatsToo) {
  std::vector<std::uint16_t> values(4096);
  fill_random(std::as_writable_bytes(std::span(values)), DType::bf16, 5);
  for (const std::uint16_t bits : values) ASSERT_NE(bits & 0x7F80, 0x7F80);
  fill_random(std::as_writable_bytes(std::span(values)), DType::f16, 5);
  for (const std::uint16_t bits : values) ASSERT_NE(bits & 0x7C00, 0x7C00);
}

TEST(RandomData, FillsEveryTypeToItsEndAndRepeats) {
  for (const DType dtype : kAllTypes) {
    std::vector<std::byte> a(24), b(24), c(24);
    fill_random(a, dtype, 1);
    fill_random(b, dtype, 1);
    fill_random(c, dtype, 2);
    EXPECT_EQ(a, b);
    EXPECT_NE(a, c);
  }
  std::vector<std::byte> odd(13, std::byte{0});
  fill_random(odd, DType::u8, 3);
  EXPECT_NE(odd, std::vector<std::byte>(13, std::byte{0}));
}

TEST(HashBytes, DependsOnEveryByteAndTheLength) {
  std::vector<std::byte> bytes(21, std::byte{0});
  std::set<std::uint64_t> hashes = {hash_bytes(bytes), hash_bytes(std::span(bytes).first(20))};
  for (std::byte& byte : bytes) {
    byte = std::byte{1};
    hashes.insert(hash_bytes(bytes));
    byte = std::byte{0};
  }
  EXPECT_EQ(hashes.size(), 23U);
}

}  // namespace
}  // namespace moebus::workload
