#include "sync/waiting.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <thread>

namespace moebus::sync {
namespace {

// Longer than any test may take: a sleep that nobody ends hangs into the time limit of the test.
constexpr std::chrono::minutes kForever{10};

TEST(WaitPolicy, NeverSpinsWithMoreRanksThanCores) {
  const auto cores = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  EXPECT_EQ(wait_policy(cores + 1).num_spins, 0);
  EXPECT_GT(wait_policy(cores + 1).num_yields, 0);
  EXPECT_GT(wait_policy(cores + 1).max_sleep.count(), 0);
}

TEST(WaitPolicy, SpinsWithARankAlone) { EXPECT_GT(wait_policy(1).num_spins, 0); }

TEST(Doorbell, IsNotTouchedByARingWhileNobodySleeps) {
  Doorbell doorbell;
  ring(doorbell);
  EXPECT_EQ(doorbell.bell, 0U);
  EXPECT_EQ(doorbell.sleepers, 0U);
}

TEST(Doorbell, LetsNobodySleepWhoseWordIsThereAlready) {
  Doorbell doorbell;
  bool is_asked = false;
  sleep_on(doorbell, kForever, [&] { return is_asked = true; });
  EXPECT_TRUE(is_asked);
  EXPECT_EQ(doorbell.sleepers, 0U);
}

TEST(Doorbell, AsksOnlyAfterTheSleeperIsAnnounced) {
  Doorbell doorbell;
  std::uint32_t sleepers = 0;
  sleep_on(doorbell, kForever, [&] {
    sleepers = doorbell.sleepers;
    return true;
  });
  EXPECT_EQ(sleepers, 1U);
}

TEST(Doorbell, EndsASleepThatNobodyRingsForAtItsLimit) {
  Doorbell doorbell;
  int num_asked = 0;
  sleep_on(doorbell, std::chrono::microseconds(1), [&] {
    ++num_asked;
    return false;
  });
  EXPECT_EQ(num_asked, 1);
  EXPECT_EQ(doorbell.sleepers, 0U);
}

TEST(Doorbell, RingsBetweenTheLastLookAndTheSleepAreNotLost) {
  Doorbell doorbell;
  sleep_on(doorbell, kForever, [&] {
    ring(doorbell);  // as a poster would, just after this look
    return false;
  });
  EXPECT_EQ(doorbell.sleepers, 0U);
}

/// One side of a conversation: waits for the other's word, asleep, and answers with its own.
struct Side {
  Word word = 0;
  Doorbell doorbell;
};

void answer(Side& own, Side& other, Word num_words, bool begins) {
  for (Word n = 1; n <= num_words; ++n) {
    if (begins) {
      store_release(other.word, n);
      ring(other.doorbell);
    }
    const auto is_there = [&] { return load_acquire(own.word) >= n; };
    while (!is_there()) sleep_on(own.doorbell, kForever, is_there);
    if (!begins) {
      store_release(other.word, n);
      ring(other.doorbell);
    }
  }
}

TEST(Doorbell, NeverLosesARingBetweenTwoThreadsThatTakeTurns) {
  constexpr Word kNumWords = 3000;
  Side left;
  Side right;
  std::thread other([&] { answer(right, left, kNumWords, false); });
  answer(left, right, kNumWords, true);
  other.join();
  EXPECT_EQ(left.word, kNumWords);
  EXPECT_EQ(right.word, kNumWords);
  EXPECT_EQ(left.doorbell.sleepers, 0U);
  EXPECT_EQ(right.doorbell.sleepers, 0U);
}

TEST(Doorbell, WakesAllThatSleepOnIt) {
  Word word = 0;
  Doorbell doorbell;
  const auto sleep_until_there = [&] {
    const auto is_there = [&] { return load_acquire(word) == 1; };
    while (!is_there()) sleep_on(doorbell, kForever, is_there);
  };
  std::thread one(sleep_until_there);
  std::thread two(sleep_until_there);
  store_release(word, 1);
  ring(doorbell);
  one.join();
  two.join();
  EXPECT_EQ(doorbell.sleepers, 0U);
}

}  // namespace
}  // namespace moebus::sync
