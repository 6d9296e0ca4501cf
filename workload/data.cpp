#include "workload/data.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "workload/random.hpp"

namespace moebus::workload {

namespace {

// A record, before it is mixed, from the lowest bit: rank 6, token 24, group of columns 16, part 2, set 6, check 10.
constexpr int kTokenShift = 6;
constexpr int kGroupShift = 30;
constexpr int kPartShift = 46;
constexpr int kSetShift = 48;
constexpr int kCheckShift = 54;
constexpr std::uint64_t kContentMask = (std::uint64_t{1} << kCheckShift) - 1;
constexpr std::uint64_t kFactor = 0xD6E8FEB86659FD93U;

constexpr std::uint64_t inverse_of(std::uint64_t odd) noexcept {
  std::uint64_t inverse = odd;                               // right in the lowest 3 bits
  for (int i = 0; i < 5; ++i) inverse *= 2 - odd * inverse;  // each step doubles them
  return inverse;
}

constexpr std::uint64_t kInverseFactor = inverse_of(kFactor);
static_assert(kFactor * kInverseFactor == 1);

// A bijection of 64-bit words, so that records look random and can still be read.
std::uint64_t mix(std::uint64_t x) noexcept {
  x = (x ^ (x >> 32U)) * kFactor;
  x = (x ^ (x >> 32U)) * kFactor;
  return x ^ (x >> 32U);
}

std::uint64_t unmix(std::uint64_t x) noexcept {
  x = (x ^ (x >> 32U)) * kInverseFactor;
  x = (x ^ (x >> 32U)) * kInverseFactor;
  return x ^ (x >> 32U);
}

std::uint64_t with_check(std::uint64_t content) noexcept {
  return content | (scramble(content) & 0x3FFU) << kCheckShift;
}

// Where a byte of a record sits in a float: sign, and the top 7 bits of the mantissa of +-[1, 2).
struct FloatForm {
  std::uint64_t one;  // bits of 1.0
  int sign_shift;
  int mantissa_shift;
};

template <class Word, class Encode>
void fill_records(std::span<std::byte> rows, std::int64_t columns, std::uint64_t row_content, Encode encode) noexcept {
  const std::size_t row_bytes = static_cast<std::size_t>(columns) * sizeof(Word);
  for (std::byte* row = rows.data(); row_bytes > 0 && row + row_bytes <= rows.data() + rows.size(); row += row_bytes) {
    for (std::int64_t column = 0; column < columns; column += kColumnsPerRecord) {
      const auto group = static_cast<std::uint64_t>(column / kColumnsPerRecord);
      std::uint64_t record = mix(with_check(row_content | group << kGroupShift));
      for (std::int64_t c = column; c < column + kColumnsPerRecord && c < columns; ++c, record >>= 8U) {
        const Word word = encode(record & 0xFFU);
        std::memcpy(row + static_cast<std::size_t>(c) * sizeof(Word), &word, sizeof(Word));
      }
    }
    row_content += std::uint64_t{1} << kTokenShift;
  }
}

// Calls visit(Word{}, encode, decode) with the element's word type and its translation from and to a byte of a record.
template <class Word, class Visit>
auto with_float(const FloatForm& form, Visit visit) {
  const auto encode = [form](std::uint64_t byte) {
    return static_cast<Word>(form.one | (byte >> 7U) << form.sign_shift | (byte & 0x7FU) << form.mantissa_shift);
  };
  const auto decode = [form](std::uint64_t bits) {
    return (bits >> form.sign_shift) << 7U | (bits >> form.mantissa_shift & 0x7FU);
  };
  return visit(Word{}, encode, decode);
}

template <class Word, class Visit>
auto with_integer(Visit visit) {
  const auto encode = [](std::uint64_t byte) { return static_cast<Word>(byte * 0x0101010101010101U); };
  const auto decode = [](std::uint64_t bits) { return bits & 0xFFU; };
  return visit(Word{}, encode, decode);
}

template <class Visit>
auto with_element(DType dtype, Visit visit) {
  switch (dtype) {
    case DType::bf16:
      return with_float<std::uint16_t>({0x3F80U, 15, 0}, visit);
    case DType::f16:
      return with_float<std::uint16_t>({0x3C00U, 15, 3}, visit);
    case DType::f32:
      return with_float<std::uint32_t>({0x3F800000U, 31, 16}, visit);
    case DType::f64:
      return with_float<std::uint64_t>({std::uint64_t{0x3FF0} << 48U, 63, 45}, visit);
    case DType::i16:
      return with_integer<std::uint16_t>(visit);
    case DType::i32:
      return with_integer<std::uint32_t>(visit);
    case DType::i64:
      return with_integer<std::uint64_t>(visit);
    case DType::u8:
    case DType::i8:
    case DType::e4m3:
    case DType::e5m2:
      break;
  }
  return with_integer<std::uint8_t>(visit);
}

// Random bits of a float with exponents -8..7 around 1, every sixteenth a zero.
template <class Word>
Word random_float(std::uint64_t bits, int exponent_bias, int mantissa_bits) noexcept {
  const std::uint64_t sign = bits >> 63U << (8 * sizeof(Word) - 1);
  if ((bits & 0xFU) == 0) return static_cast<Word>(sign);
  const std::uint64_t exponent = static_cast<std::uint64_t>(exponent_bias) - 8 + (bits >> 59U & 0xFU);
  const std::uint64_t mantissa = (bits >> 4U) & ((std::uint64_t{1} << mantissa_bits) - 1);
  return static_cast<Word>(sign | exponent << mantissa_bits | mantissa);
}

template <class Word, class Make>
void fill_each(std::span<std::byte> elements, std::uint64_t seed, Make make) noexcept {
  Random random(seed);
  for (std::size_t at = 0; at + sizeof(Word) <= elements.size(); at += sizeof(Word)) {
    const Word word = make(random.next());
    std::memcpy(elements.data() + at, &word, sizeof(Word));
  }
}

void fill_random_bytes(std::span<std::byte> bytes, std::uint64_t seed) noexcept {
  Random random(seed);
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(std::uint64_t)) {
    const std::uint64_t word = random.next();
    std::memcpy(bytes.data() + at, &word, std::min(sizeof(word), bytes.size() - at));
  }
}

std::string part_text(Part part) {
  constexpr std::array<const char*, 4> kNames = {"tokens", "scales", "side[0]", "side[1]"};
  return kNames[static_cast<std::size_t>(part)];
}

}  // namespace

std::string Origin::text() const {
  return "rank " + std::to_string(rank) + ", token " + std::to_string(token) + ", columns " +
         std::to_string(first_column) + ".." + std::to_string(first_column + kColumnsPerRecord - 1) + " of " +
         part_text(part) + ", set " + std::to_string(set);
}

void fill_identity(std::span<std::byte> rows,
                   DType dtype,
                   std::int64_t columns,
                   int rank,
                   std::int64_t first_token,
                   Part part,
                   int set) noexcept {
  const std::uint64_t content =
      static_cast<std::uint64_t>(rank) | static_cast<std::uint64_t>(first_token) << kTokenShift |
      static_cast<std::uint64_t>(part) << kPartShift | static_cast<std::uint64_t>(set) << kSetShift;
  with_element(dtype,
               [&](auto word, auto encode, auto) { fill_records<decltype(word)>(rows, columns, content, encode); });
}

std::optional<Origin> origin_of(std::span<const std::byte> row, DType dtype, std::int64_t column) noexcept {
  const auto columns = static_cast<std::int64_t>(row.size() / size_of(dtype));
  const std::int64_t group = std::min(column / kColumnsPerRecord, columns / kColumnsPerRecord - 1);
  if (group < 0 || column < 0 || column >= columns) return std::nullopt;
  std::uint64_t record = 0;
  bool is_record = true;
  with_element(dtype, [&](auto word, auto encode, auto decode) {
    for (int i = 0; i < kColumnsPerRecord; ++i) {
      const auto at = static_cast<std::size_t>(group * kColumnsPerRecord + i) * sizeof(word);
      std::memcpy(&word, row.data() + at, sizeof(word));
      const std::uint64_t byte = decode(word);
      is_record = is_record && encode(byte) == word;
      record |= byte << (8 * i);
    }
  });
  const std::uint64_t content = unmix(record);
  if (!is_record || with_check(content & kContentMask) != content) return std::nullopt;
  return Origin{static_cast<int>(content & 0x3FU),
                static_cast<std::int64_t>(content >> kTokenShift & 0xFFFFFFU),
                static_cast<std::int64_t>(content >> kGroupShift & 0xFFFFU) * kColumnsPerRecord,
                static_cast<Part>(content >> kPartShift & 0x3U),
                static_cast<int>(content >> kSetShift & 0x3FU)};
}

void fill_random(std::span<std::byte> elements, DType dtype, std::uint64_t seed) noexcept {
  if (dtype == DType::bf16) {
    fill_each<std::uint16_t>(
        elements, seed, [](std::uint64_t bits) { return random_float<std::uint16_t>(bits, 127, 7); });
  } else if (dtype == DType::f16) {
    fill_each<std::uint16_t>(
        elements, seed, [](std::uint64_t bits) { return random_float<std::uint16_t>(bits, 15, 10); });
  } else if (dtype == DType::f32) {
    fill_each<std::uint32_t>(
        elements, seed, [](std::uint64_t bits) { return random_float<std::uint32_t>(bits, 127, 23); });
  } else if (dtype == DType::f64) {
    fill_each<std::uint64_t>(
        elements, seed, [](std::uint64_t bits) { return random_float<std::uint64_t>(bits, 1023, 52); });
  } else {
    fill_random_bytes(elements, seed);
  }
}

void fill_poison(std::span<std::byte> memory) noexcept {
  if (!memory.empty()) std::memset(memory.data(), 0xFF, memory.size());
}

std::uint64_t hash_bytes(std::span<const std::byte> bytes) noexcept {
  std::uint64_t hash = bytes.size();
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(std::uint64_t)) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, std::min(sizeof(word), bytes.size() - at));
    hash = hash_word(hash, word);
  }
  return hash;
}

}  // namespace moebus::workload
