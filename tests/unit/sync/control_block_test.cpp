#include "sync/control_block.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace moebus::sync {
namespace {

TEST(AbortWord, ComesBackAsItWas) {
  for (const std::uint32_t epoch : {0U, 1U, 0xFFFFFFFFU}) {
    for (const auto small : std::initializer_list<std::uint8_t>{0, 1, 63, 255}) {
      const Abort abort = decode_abort(encode(Abort{small, epoch, static_cast<std::uint8_t>(255 - small), 6}));
      EXPECT_EQ(abort.generation, small);
      EXPECT_EQ(abort.epoch, epoch);
      EXPECT_EQ(abort.culprit, 255 - small);
      EXPECT_EQ(abort.code, 6);
    }
  }
}

TEST(AbortWord, IsNeverZeroSoThatItIsSeenWhateverItsFields) { EXPECT_NE(encode(Abort{0, 0, 0, 0}), 0U); }

TEST(Note, KeepsAShortText) {
  Note note;
  EXPECT_EQ(note.view(), "");
  note.set("rank 3 left");
  EXPECT_EQ(note.view(), "rank 3 left");
  note.set("");
  EXPECT_EQ(note.view(), "");
}

TEST(Note, KeepsWhatFitsOfALongTextAndAlwaysEnds) {
  for (const std::size_t size : {kNoteBytes - 1, kNoteBytes, kNoteBytes + 1, 10 * kNoteBytes}) {
    Note note;
    std::string text(size, 'x');
    text[0] = 'a';
    note.set(text);
    EXPECT_EQ(note.view(), text.substr(0, kNoteBytes - 1)) << size;
    EXPECT_EQ(note.text.back(), 0) << size;
  }
}

TEST(Note, IsNeverReadPastItsEndWhateverAPeerWroteThere) {
  struct {
    Note note;
    std::array<char, 16> behind;
  } memory;

  memory.note.text.fill('z');
  memory.behind.fill('!');
  EXPECT_EQ(memory.note.view(), std::string(kNoteBytes, 'z'));
}

TEST(ControlBlock, IsInItsInitialStateWhenAllZero) {
  // Registered memory is handed out zeroed and never constructed.
  const ControlBlock block{};
  const auto* bytes = reinterpret_cast<const unsigned char*>(&block.from);
  EXPECT_TRUE(std::all_of(bytes, bytes + sizeof(block.from), [](unsigned char byte) { return byte == 0; }));
  EXPECT_EQ(block.call[1][kMaxRanks - 1].refusal.view(), "");
  EXPECT_EQ(block.doorbell.sleepers, 0U);
  EXPECT_EQ(block.waiting_for, 0U);
}

TEST(ControlBlock, GivesEveryWriterLinesOfItsOwn) {
  static_assert(sizeof(PeerLine) % 64 == 0 && alignof(PeerLine) >= 64);
  static_assert(sizeof(CallHeader) % 64 == 0 && alignof(CallHeader) >= 64);
  EXPECT_GE(offsetof(ControlBlock, waiting_for), offsetof(ControlBlock, doorbell) + 64);
  EXPECT_GE(offsetof(ControlBlock, from), offsetof(ControlBlock, waiting_for) + 64);
}

TEST(Standstill, SurvivesItsWord) {
  for (const Standstill& one :
       {Standstill{0, 0, 0, 0}, Standstill{63, 3, 0xFFFFFFFF, 0x3FFFFF}, Standstill{7, 2, 41, 5}}) {
    const Word word = encode(one);
    EXPECT_NE(word, 0U);
    const Standstill back = decode_standstill(word);
    EXPECT_EQ(back.peer, one.peer);
    EXPECT_EQ(back.line_word, one.line_word);
    EXPECT_EQ(back.epoch, one.epoch);
    EXPECT_EQ(back.count, one.count);
  }
}

}  // namespace
}  // namespace moebus::sync
