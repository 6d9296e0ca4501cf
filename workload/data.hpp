// Data: rows that say of themselves where they belong, random finite rows, and poison.
// Room: workload · host.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "moebus/types.hpp"

namespace moebus::workload {

/// Which tensor of a dispatch a row belongs to.
enum class Part : std::uint8_t { tokens = 0, scales = 1, side0 = 2, side1 = 3 };

/// Where a group of kColumnsPerRecord neighbouring elements was made for.
struct Origin {
  int rank = 0;
  std::int64_t token = 0;
  std::int64_t first_column = 0;  ///< of the group
  Part part = Part::tokens;
  int set = 0;  ///< which of several input sets, 0..63

  /// Returns e.g. "rank 3, token 17, columns 8..15 of tokens, set 0".
  [[nodiscard]] std::string text() const;
};

/// Neighbouring elements that together hold one origin.
inline constexpr int kColumnsPerRecord = 8;

/// Fills rows with elements that follow from (rank, token, column, part, set) alone and look random. bf16, f16, f32,
/// f64: +-[1, 2), finite, the same values in each type; other types: bytes.
///
/// Shape: rows [num_tokens, columns] contiguous, token n first_token + n; tokens below 2^24, columns below 2^19.
void fill_identity(std::span<std::byte> rows,
                   DType dtype,
                   std::int64_t columns,
                   int rank,
                   std::int64_t first_token = 0,
                   Part part = Part::tokens,
                   int set = 0) noexcept;

/// Tells where the element at `column` of a row was made for, from the record around it (the last full one for a tail).
/// Nothing if the bytes are no such record: damaged, or other data.
[[nodiscard]] std::optional<Origin> origin_of(std::span<const std::byte> row,
                                              DType dtype,
                                              std::int64_t column) noexcept;

/// Fills with finite values of both signs over a range of magnitudes (2^-8 to 2^8, some zeros); other types: random
/// bytes.
void fill_random(std::span<std::byte> elements, DType dtype, std::uint64_t seed) noexcept;

/// Fills with bytes that are a NaN in every float type of the library (all ones).
void fill_poison(std::span<std::byte> memory) noexcept;

/// Returns a hash of bytes, to print beside results.
[[nodiscard]] std::uint64_t hash_bytes(std::span<const std::byte> bytes) noexcept;

}  // namespace moebus::workload
