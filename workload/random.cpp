#include "workload/random.hpp"

namespace moebus::workload {

namespace {

constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15U;

std::uint64_t rotate_left(std::uint64_t value, int bits) noexcept { return (value << bits) | (value >> (64 - bits)); }

}  // namespace

std::uint64_t scramble(std::uint64_t value) noexcept {
  value = (value ^ (value >> 30U)) * 0xBF58476D1CE4E5B9U;
  value = (value ^ (value >> 27U)) * 0x94D049BB133111EBU;
  return value ^ (value >> 31U);
}

std::uint64_t hash_word(std::uint64_t hash, std::uint64_t word) noexcept {
  return scramble((hash ^ word) * kGolden + rotate_left(hash, 23));
}

std::uint64_t seed_from(std::uint64_t seed, std::uint64_t a, std::uint64_t b) noexcept {
  return hash_word(hash_word(scramble(seed + kGolden), a), b);
}

Random::Random(std::uint64_t seed) noexcept : state_{} {
  for (std::uint64_t& word : state_) {
    seed += kGolden;
    word = scramble(seed);
  }
}

std::uint64_t Random::next() noexcept {
  const std::uint64_t result = rotate_left(state_[1] * 5, 7) * 9;
  const std::uint64_t shifted = state_[1] << 17U;
  state_[2] ^= state_[0];
  state_[3] ^= state_[1];
  state_[1] ^= state_[2];
  state_[0] ^= state_[3];
  state_[2] ^= shifted;
  state_[3] = rotate_left(state_[3], 45);
  return result;
}

std::uint64_t Random::below(std::uint64_t limit) noexcept {
  const std::uint64_t unfair = (0 - limit) % limit;  // 2^64 mod limit values at the bottom would favour small results
  std::uint64_t value = next();
  while (value < unfair) value = next();
  return value % limit;
}

float Random::unit() noexcept { return static_cast<float>(next() >> 40U) * 0x1p-24F; }

}  // namespace moebus::workload
