// Control blocks: the signals of one rank, written by its peers. They lie apart from windows, where no caller can reach
// them: one block a group (who gave up, who stands still), one a context (words and headers of calls).
// Room: sync · host+device layout.
// Source: [engines-note] section 8: one writer a line, so that no two ranks share one; waiter flag so that a poster can
// skip the system call.

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

// --- Words of a context ---

/// The words of one line, in their order there.
enum class Field : std::uint8_t {
  arrived,   ///< Signal: the call was made; its header and tables lie ready
  finished,  ///< Signal: all rows of the call lie ready
  rounds,    ///< counted: rounds of rows that lie ready
  taken      ///< counted: rounds that were taken out, so that their place is free
};

inline constexpr std::size_t kNumFields = 4;

/// Who tells whose words to whom.
enum class Line : std::uint8_t {
  direct,   ///< a peer, of itself
  relayed,  ///< this node's gateway for a peer of another node, on its behalf
  relay     ///< a neighbour to its gateway, of rows that pass through it from or to another node
};

/// Identifies a word of a rank's context block. One writer each.
struct WordName {
  Line line = Line::direct;
  Field field = Field::arrived;
  std::uint8_t about = 0;   ///< rank whose call, rows or places it speaks of
  std::uint8_t writer = 0;  ///< rank that writes it; direct: the same as `about`

  friend bool operator==(const WordName&, const WordName&) = default;
};

/// True for a peer's word that it has made the call; for all others it has, and owes bytes.
[[nodiscard]] constexpr bool is_arrival(const WordName& word) noexcept {
  return word.line == Line::direct && word.field == Field::arrived;
}

/// Orders the words of one call (and the counts that they reach) so that what a word's writer waits for comes before
/// it.
[[nodiscard]] constexpr std::uint64_t order_in_call(const WordName& word, std::uint32_t count) noexcept {
  const std::uint64_t phase = word.field == Field::arrived ? 0 : word.field == Field::finished ? 2 : 1;
  // What a gateway gets comes before what it says itself, and that before what neighbours hear from it.
  const std::uint64_t line = word.line == Line::relay ? 0 : word.line == Line::direct ? 1 : 2;
  return (phase << 40) | (std::uint64_t{count} << 8) | (static_cast<std::uint64_t>(word.field) << 4) | line;
}

struct alignas(64) WordLine {
  std::array<Word, kNumFields> words{};
  std::array<Word, 4> unused{};
};

/// Words of one neighbour about one far rank, at the gateway between them. No cache line of its own: a gateway looks at
/// all neighbours of one far rank in one go.
struct RelayLine {
  Word rounds = 0;
  Word taken = 0;
};

/// What is said of one call before its arrival is signalled. Two of them, by the epoch's parity: the signal words of a
/// peer that is one call ahead are already the next call's, so a refusal that lay in the word alone could be overtaken
/// unread (tests/model/refusal.pml).
struct alignas(64) CallHeader {
  std::uint64_t digest = 0;
  std::uint32_t epoch = 0;
  std::uint8_t operation = 0;
  std::uint8_t is_refused = 0;
  std::uint8_t reason = 0;       ///< ErrorCode of the refusal
  std::uint8_t sends_ahead = 0;  ///< rows leave, and `finished` is signalled, before anyone's arrival was waited for
  Note refusal;                  ///< written only with is_refused
};

/// Bytes of a header that say everything if nothing is refused.
inline constexpr std::size_t kBareHeaderBytes = offsetof(CallHeader, refusal);

struct ContextBlock {
  std::array<WordLine, kMaxRanks> direct;                         // [peer]
  std::array<WordLine, kMaxRanks> relayed;                        // [peer of another node]
  std::array<std::array<CallHeader, kMaxRanks>, 2> call;          // [parity][source]
  std::array<std::array<RelayLine, kMaxRanks>, kMaxRanks> relay;  // [far rank][neighbour]
};

[[nodiscard]] constexpr std::size_t offset_of(const WordName& name) noexcept {
  const std::size_t field = static_cast<std::size_t>(name.field) * sizeof(Word);
  switch (name.line) {
    case Line::direct:
      return offsetof(ContextBlock, direct) + name.about * sizeof(WordLine) + field;
    case Line::relayed:
      return offsetof(ContextBlock, relayed) + name.about * sizeof(WordLine) + field;
    case Line::relay:
      break;
  }
  const std::size_t line = (std::size_t{name.about} * kMaxRanks + name.writer) * sizeof(RelayLine);
  return offsetof(ContextBlock, relay) + line + (name.field == Field::rounds ? 0 : sizeof(Word));
}

[[nodiscard]] constexpr std::size_t offset_of_header(std::uint32_t epoch, int source) noexcept {
  return offsetof(ContextBlock, call) +
         (std::size_t{epoch % 2} * kMaxRanks + static_cast<std::size_t>(source)) * sizeof(CallHeader);
}

// --- The group's block ---

/// Wakes a sleeping rank. `sleepers` is set by the owner before it sleeps; a poster that sees it bumps `bell` and
/// wakes.
struct alignas(128) Doorbell {
  std::uint32_t sleepers = 0;
  std::uint32_t bell = 0;
};

/// Where a peer stands still, and that it gave up. Lets a rank whose time is over follow the chain of waiting ranks to
/// its end, so that it names the culprit and not its first victim.
struct alignas(64) PeerState {
  Word waits_for = 0;    ///< Standstill; 0 = does not stand still
  Word waits_since = 0;  ///< epoch 32 | beat 32: goes on while the peer lives and waits
  Word aborted = 0;      ///< Abort; sticky
  std::array<Word, 5> unused{};
  Note cause;  ///< written before `aborted`
};

struct GroupBlock {
  Doorbell doorbell;
  std::array<PeerState, kMaxRanks> peer;  // [writer]
};

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

/// What a rank stands still for: a word of its own context block, to reach `count` if it counts.
/// Layout: count 24 | context 8 | field 4 | line 4 | about 8 | writer 8 | out of order, written 8.
struct Standstill {
  WordName word;
  std::uint8_t context = 0;
  std::uint32_t count = 0;
  bool is_out_of_order = false;  ///< somebody waits, in another context, for a call that this rank has not made
};

[[nodiscard]] constexpr Word encode(const Standstill& standstill) noexcept {
  return (Word{standstill.count & 0xFFFFFF} << 40) | (Word{standstill.context} << 32) |
         (Word{static_cast<std::uint8_t>(standstill.word.field)} << 28) |
         (Word{static_cast<std::uint8_t>(standstill.word.line)} << 24) | (Word{standstill.word.about} << 16) |
         (Word{standstill.word.writer} << 8) | (standstill.is_out_of_order ? 3 : 1);
}

/// Whatever a peer wrote there: the word that it names lies in a context block.
[[nodiscard]] constexpr Standstill decode_standstill(Word word) noexcept {
  Standstill standstill;
  standstill.count = static_cast<std::uint32_t>(word >> 40);
  standstill.context = static_cast<std::uint8_t>(word >> 32);
  standstill.word.field = static_cast<Field>((word >> 28) & 3);
  standstill.word.line = static_cast<Line>((word >> 24) & 3);
  standstill.word.about = static_cast<std::uint8_t>((word >> 16) % kMaxRanks);
  standstill.word.writer = static_cast<std::uint8_t>((word >> 8) % kMaxRanks);
  standstill.is_out_of_order = (word >> 1 & 1) != 0;
  return standstill;
}

}  // namespace moebus::sync
