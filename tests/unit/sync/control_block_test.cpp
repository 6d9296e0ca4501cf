#include "sync/control_block.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>
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

TEST(ContextBlock, IsInItsInitialStateWhenAllZero) {
  // Registered memory is handed out zeroed and never constructed.
  const auto block = std::make_unique<ContextBlock>();
  const auto* bytes = reinterpret_cast<const unsigned char*>(block.get());
  EXPECT_TRUE(std::all_of(bytes, bytes + sizeof(ContextBlock), [](unsigned char byte) { return byte == 0; }));
}

TEST(GroupBlock, IsInItsInitialStateWhenAllZero) {
  const auto block = std::make_unique<GroupBlock>();
  EXPECT_EQ(block->peer[kMaxRanks - 1].cause.view(), "");
  EXPECT_EQ(block->peer[0].aborted, 0U);
  EXPECT_EQ(block->doorbell.sleepers, 0U);
  static_assert(offsetof(GroupBlock, peer) >= 64);
}

TEST(ContextBlock, GivesEveryWriterLinesOfItsOwn) {
  static_assert(sizeof(WordLine) % 64 == 0 && alignof(WordLine) >= 64);
  static_assert(sizeof(CallHeader) % 64 == 0 && alignof(CallHeader) >= 64);
  static_assert(sizeof(PeerState) % 64 == 0 && alignof(PeerState) >= 64);
}

TEST(WordName, NamesEveryWordOnceAndInsideTheBlock) {
  std::set<std::size_t> offsets;
  const auto add = [&](const WordName& name) {
    const std::size_t offset = offset_of(name);
    EXPECT_EQ(offset % sizeof(Word), 0U);
    EXPECT_LE(offset + sizeof(Word), sizeof(ContextBlock));
    EXPECT_TRUE(offsets.insert(offset).second) << offset;
  };
  for (int about = 0; about < kMaxRanks; ++about) {
    const auto rank = static_cast<std::uint8_t>(about);
    for (const Field field : {Field::arrived, Field::finished, Field::rounds, Field::taken}) {
      add({Line::direct, field, rank, rank});
      add({Line::relayed, field, rank, 0});
    }
    for (const Field field : {Field::rounds, Field::taken}) {
      for (int writer = 0; writer < kMaxRanks; ++writer) {
        add({Line::relay, field, rank, static_cast<std::uint8_t>(writer)});
      }
    }
  }
}

TEST(WordName, LiesApartFromHeaders) {
  for (const std::uint32_t epoch : {0U, 1U, 0xFFFFFFFFU}) {
    EXPECT_GE(offset_of_header(epoch, 0), offsetof(ContextBlock, call));
    EXPECT_LE(offset_of_header(epoch, kMaxRanks - 1) + sizeof(CallHeader), offsetof(ContextBlock, relay));
  }
  EXPECT_NE(offset_of_header(1, 5), offset_of_header(2, 5));
  EXPECT_EQ(offset_of_header(1, 5), offset_of_header(3, 5));
}

TEST(OrderInCall, PutsAWordBehindWhatItsWriterWaitsFor) {
  const auto order = [](Line line, Field field, std::uint32_t count) {
    return order_in_call({line, field, 1, 2}, count);
  };
  EXPECT_LT(order(Line::relayed, Field::arrived, 0), order(Line::relay, Field::rounds, 1));
  EXPECT_LT(order(Line::relay, Field::rounds, 1), order(Line::direct, Field::rounds, 1));
  EXPECT_LT(order(Line::direct, Field::rounds, 1), order(Line::relayed, Field::rounds, 1));
  EXPECT_LT(order(Line::relayed, Field::rounds, 1), order(Line::relay, Field::taken, 1));
  EXPECT_LT(order(Line::relayed, Field::taken, 1), order(Line::relay, Field::rounds, 2));
  EXPECT_LT(order(Line::relayed, Field::taken, 0xFFFFFF), order(Line::direct, Field::finished, 0));
}

TEST(Standstill, SurvivesItsWord) {
  for (const Standstill& one : {Standstill{{Line::direct, Field::arrived, 0, 0}, 0, 0},
                                Standstill{{Line::relay, Field::taken, 63, 62}, 7, 0xFFFFFF},
                                Standstill{{Line::relayed, Field::rounds, 7, 2}, 1, 5, true}}) {
    const Word word = encode(one);
    EXPECT_NE(word, 0U);
    const Standstill back = decode_standstill(word);
    EXPECT_EQ(back.word, one.word);
    EXPECT_EQ(back.context, one.context);
    EXPECT_EQ(back.count, one.count);
    EXPECT_EQ(back.is_out_of_order, one.is_out_of_order);
  }
}

TEST(Standstill, NamesAWordInsideABlockWhateverWasWritten) {
  for (const Word word : {~Word{0}, Word{0xFFFF01}, Word{0x02FF'FF01}, Word{0x03FF'FF01}, Word{0x33FF'FF01}}) {
    const WordName name = decode_standstill(word).word;
    EXPECT_LE(offset_of(name) + sizeof(Word), sizeof(ContextBlock)) << std::hex << word;
  }
}

}  // namespace
}  // namespace moebus::sync
