#include "engine/handles.hpp"

namespace moebus::engine {

namespace {

constexpr int kBeingFreed = -1;

void carve(base::Carver& carver, const model::Shape& shape, HandleSlot& slot) {
  slot.send.carve(carver, shape);
  slot.receive.carve(carver, shape);
  slot.relay.carve(carver, shape);
  const bool is_direct = shape.config.path == Path::throughput && shape.config.delivery == Delivery::direct;
  if (is_direct) slot.region.carve(carver, shape);
  slot.plan_digest = shape.plan_digest;
}

}  // namespace

std::size_t HandlePool::bytes_needed(const model::Shape& shape, int num_slots) {
  base::Carver counter;
  HandleSlot slot;
  for (int i = 0; i < num_slots; ++i) carve(counter, shape, slot);
  return counter.used_bytes();
}

HandlePool::HandlePool(const model::Shape& shape, int num_slots)
    : memory_(bytes_needed(shape, num_slots)), slots_(base::idx(num_slots)) {
  base::Carver carver(memory_.data());
  for (HandleSlot& slot : slots_) carve(carver, shape, slot);
}

HandleSlot* HandlePool::take() noexcept {
  for (HandleSlot& slot : slots_) {
    int free = 0;
    if (!slot.num_holders.compare_exchange_strong(free, 1, std::memory_order_acquire)) continue;
    slot.keep_alive = shared_from_this();
    return &slot;
  }
  return nullptr;
}

void hold(HandleSlot* slot) noexcept {
  if (slot != nullptr) slot->num_holders.fetch_add(1, std::memory_order_relaxed);
}

void let_go(HandleSlot* slot) noexcept {
  if (slot == nullptr) return;
  int holders = slot->num_holders.load(std::memory_order_acquire);
  while (!slot->num_holders.compare_exchange_weak(holders, holders == 1 ? kBeingFreed : holders - 1)) {
  }
  if (holders != 1) return;
  // Moved out before the slot is free again; when it was the pool's last hold, the pool and this slot end with `pool`.
  const std::shared_ptr<HandlePool> pool = std::move(slot->keep_alive);
  slot->num_holders.store(0, std::memory_order_release);
}

}  // namespace moebus::engine
