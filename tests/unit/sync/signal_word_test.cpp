#include "sync/signal_word.hpp"

#include <gtest/gtest.h>

namespace moebus::sync {
namespace {

constexpr std::uint32_t kLastEpoch = 0xFFFFFFFF;

Word word_of(std::uint8_t generation, std::uint32_t epoch) {
  return encode(Signal{generation, epoch, Operation::dispatch_latency, 0x12345});
}

TEST(Signal, ComesBackFromItsWordAsItWas) {
  for (const auto generation : std::initializer_list<std::uint8_t>{0, 1, 255}) {
    for (const std::uint32_t epoch : {0U, 1U, 0x80000000U, kLastEpoch}) {
      for (const Operation operation : {Operation::none,
                                        Operation::dispatch_throughput,
                                        Operation::combine_latency,
                                        Operation::combine_throughput}) {
        for (const std::uint32_t digest : {0U, 1U, kDigestMask}) {
          const Signal signal = decode(encode({generation, epoch, operation, digest}));
          EXPECT_EQ(signal.generation, generation);
          EXPECT_EQ(signal.epoch, epoch);
          EXPECT_EQ(signal.operation, operation);
          EXPECT_EQ(signal.digest, digest);
        }
      }
    }
  }
}

TEST(Signal, KeepsALongDigestOutOfTheOtherFields) {
  const Signal signal = decode(encode({3, 9, Operation::none, 0xFFFFFFFF}));
  EXPECT_EQ(signal.operation, Operation::none);
  EXPECT_EQ(signal.epoch, 9U);
  EXPECT_EQ(signal.digest, kDigestMask);
}

TEST(Epochs, AreComparedInACircle) {
  EXPECT_EQ(epochs_ahead(5, 3), 2);
  EXPECT_EQ(epochs_ahead(3, 5), -2);
  EXPECT_EQ(epochs_ahead(1, kLastEpoch), 2);
  EXPECT_EQ(epochs_ahead(kLastEpoch, 0), -1);
}

TEST(HasReached, IsTrueAtTheEpochAndOneCallAhead) {
  EXPECT_FALSE(has_reached(word_of(1, 6), 1, 7));
  EXPECT_TRUE(has_reached(word_of(1, 7), 1, 7));
  EXPECT_TRUE(has_reached(word_of(1, 8), 1, 7));
}

TEST(HasReached, HoldsAcrossTheWrapOfEpochs) {
  EXPECT_TRUE(has_reached(word_of(1, 0), 1, kLastEpoch));
  EXPECT_TRUE(has_reached(word_of(1, kLastEpoch), 1, kLastEpoch));
  EXPECT_FALSE(has_reached(word_of(1, kLastEpoch), 1, 0));
}

TEST(HasReached, IsFalseInAnotherGenerationWhateverTheEpoch) {
  EXPECT_FALSE(has_reached(word_of(1, 7), 2, 7));
  EXPECT_FALSE(has_reached(word_of(2, 7), 1, 7));
  EXPECT_FALSE(has_reached(word_of(2, 1000), 1, 7));
}

TEST(HasReached, IsFalseForAZeroedWordInAGroupOfTheFirstGeneration) { EXPECT_FALSE(has_reached(0, 1, 1)); }

TEST(HasCounted, ComparesTheCountWithinTheEpochOnly) {
  EXPECT_FALSE(has_counted(encode_count(1, 7, 2), 1, 7, 3));
  EXPECT_TRUE(has_counted(encode_count(1, 7, 3), 1, 7, 3));
  EXPECT_TRUE(has_counted(encode_count(1, 7, 4), 1, 7, 3));
  EXPECT_FALSE(has_counted(encode_count(1, 6, 100), 1, 7, 3));
}

TEST(HasCounted, IsTrueOnceTheWriterHasGoneOnToALaterCall) {
  EXPECT_TRUE(has_counted(encode_count(1, 8, 0), 1, 7, 3));
  EXPECT_TRUE(has_counted(encode_count(1, 0, 0), 1, kLastEpoch, 3));
  EXPECT_FALSE(has_counted(encode_count(1, kLastEpoch, 9), 1, 0, 1));
}

TEST(HasCounted, IsFalseInAnotherGeneration) {
  EXPECT_FALSE(has_counted(encode_count(2, 8, 9), 1, 7, 3));
  EXPECT_FALSE(has_counted(0, 1, 1, 0));
}

TEST(EncodedCount, NeverSpillsIntoTheEpoch) {
  EXPECT_EQ(encode_count(1, 7, 0x1000002) >> 24, encode_count(1, 7, 2) >> 24);
}

}  // namespace
}  // namespace moebus::sync
