// Control block: the signals of one rank, written by its peers. Lies apart from windows, where no caller can reach it.
// Room: sync · host+device layout.
// Source: [engines-note] section 8: one 128-byte line per slot and direction; waiter flag so that a poster can skip the
// system call.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "moebus/types.hpp"
#include "sync/atomics.hpp"

namespace moebus::sync {

/// Text of a refusal or an abort, for people; always ends with a zero byte.
inline constexpr std::size_t kNoteBytes = 512;

/// What one peer (the only writer) tells this rank.
struct alignas(128) PeerLine {
  Word arrived = 0;   ///< Signal: the peer has made the call; its tables or counts lie ready
  Word finished = 0;  ///< Signal: all the peer's rows of the call lie ready
  Word rounds = 0;    ///< counted: rounds of rows that lie ready (staged calls)
  Word taken = 0;     ///< counted: rounds of this rank's rows that the peer has taken out
  Word aborted = 0;   ///< generation 8 | epoch 32 | culprit 8 | code 8: the peer gave the group up; sticky
  std::array<Word, 11> unused{};
};

static_assert(sizeof(PeerLine) == 128);

struct Note {
  std::array<char, kNoteBytes> text{};

  /// Keeps what fits.
  void set(std::string_view value) noexcept {
    const std::size_t size = value.size() < kNoteBytes ? value.size() : kNoteBytes - 1;
    std::memcpy(text.data(), value.data(), size);
    text[size] = 0;
  }

  /// Never reads past the note, whatever a peer wrote there.
  [[nodiscard]] std::string_view view() const noexcept { return {text.data(), ::strnlen(text.data(), kNoteBytes)}; }
};

/// What a peer says of one call before it signals arrival. Two of them, by the epoch's parity: the signal words of a
/// peer that is one call ahead are already the next call's, so a refusal that lay in the word alone could be overtaken
/// unread.
struct alignas(64) CallHeader {
  std::uint64_t digest = 0;
  std::uint32_t epoch = 0;
  std::uint8_t operation = 0;
  std::uint8_t is_refused = 0;
  std::uint8_t reason = 0;  ///< ErrorCode of the refusal
  Note refusal;             ///< written only with is_refused
};

/// Wakes a sleeping rank. `sleepers` is set by the owner before it sleeps; a poster that sees it bumps `bell` and
/// wakes.
struct alignas(128) Doorbell {
  std::uint32_t sleepers = 0;
  std::uint32_t bell = 0;
};

struct ControlBlock {
  Doorbell doorbell;
  /// A Standstill, written by the owner while it stands still; 0 = it does not. Lets others follow a chain of waiting
  /// ranks to its end, so that a time-out names the culprit and not its first victim.
  alignas(128) Word waiting_for = 0;
  std::array<PeerLine, kMaxRanks> from;                   // [source rank]
  std::array<std::array<CallHeader, kMaxRanks>, 2> call;  // [parity][source rank]
  std::array<Note, kMaxRanks> abort_cause;                // [source rank]
};

static_assert(offsetof(ControlBlock, from) == 256);

/// An abort word: who gave up, because of whom.
struct Abort {
  std::uint8_t generation = 0;
  std::uint32_t epoch = 0;
  std::uint8_t culprit = 0;
  std::uint8_t code = 0;
};

/// Bit 0 marks the word as written, whatever the fields.
[[nodiscard]] constexpr Word encode(const Abort& abort) noexcept {
  return (Word{abort.generation} << 56) | (Word{abort.epoch} << 24) | (Word{abort.culprit} << 16) |
         (Word{abort.code} << 8) | 1;
}

[[nodiscard]] constexpr Abort decode_abort(Word word) noexcept {
  return {static_cast<std::uint8_t>(word >> 56),
          static_cast<std::uint32_t>(word >> 24),
          static_cast<std::uint8_t>(word >> 16),
          static_cast<std::uint8_t>(word >> 8)};
}

/// What a rank stands still for: a word of `peer` in its own control block, identified by `line_word` (see engine),
/// `epoch` and `count`. Layout: count 22 | epoch 32 | line word 2 | peer + 1 in 8.
struct Standstill {
  std::uint8_t peer = 0;
  std::uint8_t line_word = 0;
  std::uint32_t epoch = 0;
  std::uint32_t count = 0;
};

[[nodiscard]] constexpr Word encode(const Standstill& standstill) noexcept {
  return (Word{standstill.count & 0x3FFFFF} << 42) | (Word{standstill.epoch} << 10) |
         (Word{standstill.line_word & 3U} << 8) | (Word{standstill.peer} + 1);
}

/// `word` is not 0.
[[nodiscard]] constexpr Standstill decode_standstill(Word word) noexcept {
  return {static_cast<std::uint8_t>((word & 0xFF) - 1),
          static_cast<std::uint8_t>((word >> 8) & 3),
          static_cast<std::uint32_t>(word >> 10),
          static_cast<std::uint32_t>(word >> 42)};
}

}  // namespace moebus::sync
