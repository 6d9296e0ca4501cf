// Random: one small generator, so that the same seed gives the same inputs with every compiler and standard library.
// Room: workload · host.
// Source: [splitmix64] seeding, [xoshiro256] generator.

#pragma once

#include <array>
#include <cstdint>

namespace moebus::workload {

/// Scrambles a 64-bit value; different inputs give different outputs.
[[nodiscard]] std::uint64_t scramble(std::uint64_t value) noexcept;

/// Makes a seed from several numbers; every one of them matters, and so does their order.
[[nodiscard]] std::uint64_t seed_from(std::uint64_t seed, std::uint64_t a, std::uint64_t b = 0) noexcept;

/// Continues a hash over 64-bit words.
[[nodiscard]] std::uint64_t hash_word(std::uint64_t hash, std::uint64_t word) noexcept;

/// xoshiro256**.
class Random {
 public:
  explicit Random(std::uint64_t seed) noexcept;

  [[nodiscard]] std::uint64_t next() noexcept;

  /// Returns a value in [0, limit), each equally likely; limit > 0.
  [[nodiscard]] std::uint64_t below(std::uint64_t limit) noexcept;

  /// Returns a multiple of 2^-24 in [0, 1).
  [[nodiscard]] float unit() noexcept;

 private:
  std::array<std::uint64_t, 4> state_;
};

}  // namespace moebus::workload
