#include "engine/handles.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <thread>

#include "moebus/io.hpp"

namespace moebus::engine {
namespace {

model::Shape small_shape() {
  ExchangeConfig config;
  config.num_experts = 4;
  config.num_topk = 2;
  config.hidden = 8;
  config.max_tokens_per_rank = 16;
  config.layout = Layout::expert_major;
  return model::make_shape(config, 2);
}

TEST(HandlePool, GivesEverySlotOnceAndThenNone) {
  const auto pool = std::make_shared<HandlePool>(small_shape(), 2);
  HandleSlot* first = pool->take();
  HandleSlot* second = pool->take();
  ASSERT_NE(first, nullptr);
  ASSERT_NE(second, nullptr);
  EXPECT_NE(first, second);
  EXPECT_EQ(pool->take(), nullptr);
  let_go(first);
  EXPECT_EQ(pool->take(), first);
  let_go(first);
  let_go(second);
}

TEST(HandlePool, GetsASlotBackFromItsLastHolderOnly) {
  const auto pool = std::make_shared<HandlePool>(small_shape(), 1);
  HandleSlot* slot = pool->take();
  hold(slot);
  hold(slot);
  let_go(slot);
  EXPECT_EQ(pool->take(), nullptr);
  let_go(slot);
  EXPECT_EQ(pool->take(), nullptr);
  let_go(slot);
  EXPECT_EQ(pool->take(), slot);
  let_go(slot);
}

TEST(HandlePool, OutlivesItsOwnerWhileASlotIsHeld) {
  auto pool = std::make_shared<HandlePool>(small_shape(), 2);
  const std::weak_ptr<HandlePool> watch = pool;
  HandleSlot* slot = pool->take();
  HandleSlot* other = pool->take();
  pool.reset();
  ASSERT_FALSE(watch.expired());
  slot->send.ids[0] = 3;  // its memory is still there
  EXPECT_EQ(slot->send.ids[0], 3);
  let_go(other);
  EXPECT_FALSE(watch.expired());
  let_go(slot);
  EXPECT_TRUE(watch.expired());
}

TEST(HandlePool, KeepsNothingAliveOnceAllSlotsAreBack) {
  auto pool = std::make_shared<HandlePool>(small_shape(), 1);
  const std::weak_ptr<HandlePool> watch = pool;
  let_go(pool->take());
  pool.reset();
  EXPECT_TRUE(watch.expired());
}

TEST(HandlePool, GivesSlotsMemoryOfTheirOwn) {
  const auto shape = small_shape();
  const auto pool = std::make_shared<HandlePool>(shape, 2);
  HandleSlot* first = pool->take();
  HandleSlot* second = pool->take();
  std::memset(first->send.ids.data(), 0x11, first->send.ids.size_bytes());
  std::memset(first->receive.offsets.data(), 0x11, first->receive.offsets.size_bytes());
  EXPECT_EQ(second->send.ids.front(), 0);
  EXPECT_EQ(second->receive.offsets.back(), 0);
  EXPECT_EQ(first->send.ids.size(), 32U);
  EXPECT_EQ(first->receive.offsets.size(), 3U);
  let_go(first);
  let_go(second);
}

TEST(HandlePool, NeedsTwiceTheBytesForTwiceTheSlots) {
  const auto shape = small_shape();
  EXPECT_GT(HandlePool::bytes_needed(shape, 1), 0U);
  EXPECT_EQ(HandlePool::bytes_needed(shape, 6), 6 * HandlePool::bytes_needed(shape, 1));
}

TEST(HandlePool, MarksItsSlotsWithThePlanThatTheyHold) {
  const auto pool = std::make_shared<HandlePool>(small_shape(), 1);
  HandleSlot* slot = pool->take();
  EXPECT_EQ(slot->plan_digest, small_shape().plan_digest);
  EXPECT_NE(slot->plan_digest, 0U);
  let_go(slot);
}

TEST(HandlePool, NeverGivesASlotToTwoThreads) {
  const auto pool = std::make_shared<HandlePool>(small_shape(), 3);
  std::atomic<int> num_shared{0};
  const auto take_many = [&](std::int32_t name) {
    for (int i = 0; i < 5000; ++i) {
      HandleSlot* slot = pool->take();
      if (slot == nullptr) continue;
      slot->send.num_tokens = name;
      hold(slot);
      let_go(slot);
      if (slot->send.num_tokens != name) ++num_shared;
      let_go(slot);
    }
  };
  std::thread other(take_many, 1);
  take_many(2);
  other.join();
  EXPECT_EQ(num_shared, 0);
}

TEST(HoldAndLetGo, DoNothingForNoSlot) {
  hold(nullptr);
  let_go(nullptr);
  EXPECT_FALSE(DispatchHandle().is_valid());
}

}  // namespace
}  // namespace moebus::engine
