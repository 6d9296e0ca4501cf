// Signal words: what one rank tells another in 64 bits. One writer each, never cleared.
// Room: sync · host+device.
// Source: [ours] design 4.5: generation, epoch, operation, shape digest; epochs compare in a circle, so they may wrap.

#pragma once

#include <cstdint>

#include "sync/atomics.hpp"

namespace moebus::sync {

/// What a call is. 0 is no call, so that a zeroed word matches nothing.
enum class Operation : std::uint8_t {
  none = 0,
  dispatch_latency,
  dispatch_throughput,
  combine_latency,
  combine_throughput
};

/// Layout: generation 8 | epoch 32 | operation 4 | digest 20. What decides is in the call header; operation and digest
/// are here so that a dump of the words alone can be read.
struct Signal {
  std::uint8_t generation = 0;
  std::uint32_t epoch = 0;
  Operation operation = Operation::none;
  std::uint32_t digest = 0;  ///< low 20 bits of the exchange's shape digest
};

inline constexpr std::uint32_t kDigestMask = 0xFFFFF;

[[nodiscard]] constexpr Word encode(const Signal& signal) noexcept {
  return (Word{signal.generation} << 56) | (Word{signal.epoch} << 24) |
         (Word{static_cast<std::uint8_t>(signal.operation)} << 20) | (signal.digest & kDigestMask);
}

[[nodiscard]] constexpr Signal decode(Word word) noexcept {
  return {static_cast<std::uint8_t>(word >> 56),
          static_cast<std::uint32_t>(word >> 24),
          static_cast<Operation>((word >> 20) & 0xF),
          static_cast<std::uint32_t>(word & kDigestMask)};
}

/// Returns how far `epoch` is ahead of `base`, negative if behind; right across the wrap of 32 bits.
[[nodiscard]] constexpr std::int32_t epochs_ahead(std::uint32_t epoch, std::uint32_t base) noexcept {
  return static_cast<std::int32_t>(epoch - base);
}

/// True once the writer has reached `epoch` in this generation. Equality would deadlock: a peer may be one call ahead.
[[nodiscard]] constexpr bool has_reached(Word word, std::uint8_t generation, std::uint32_t epoch) noexcept {
  return static_cast<std::uint8_t>(word >> 56) == generation &&
         epochs_ahead(static_cast<std::uint32_t>(word >> 24), epoch) >= 0;
}

/// Words that count rounds inside a call: generation 8 | epoch 32 | count 24.
[[nodiscard]] constexpr Word encode_count(std::uint8_t generation, std::uint32_t epoch, std::uint32_t count) noexcept {
  return (Word{generation} << 56) | (Word{epoch} << 24) | (count & 0xFFFFFF);
}

/// True once the writer has counted `count` in `epoch`, or has gone on to a later one.
[[nodiscard]] constexpr bool has_counted(Word word,
                                         std::uint8_t generation,
                                         std::uint32_t epoch,
                                         std::uint32_t count) noexcept {
  if (static_cast<std::uint8_t>(word >> 56) != generation) return false;
  const std::int32_t ahead = epochs_ahead(static_cast<std::uint32_t>(word >> 24), epoch);
  return ahead > 0 || (ahead == 0 && (word & 0xFFFFFF) >= count);
}

}  // namespace moebus::sync
