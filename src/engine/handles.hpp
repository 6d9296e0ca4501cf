// Handles: the pool of dispatch plans that combines may still need. Sized once; taking one allocates nothing.
// Room: engine · host.

#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "base/local_memory.hpp"
#include "model/receive_plan.hpp"
#include "model/relay_plan.hpp"
#include "model/send_plan.hpp"

namespace moebus::engine {

class HandlePool;

/// The plan of one dispatch, on this rank as home (send), as owner (receive) and as gateway (relay).
struct HandleSlot {
  model::SendPlan send;
  model::ReceivePlan receive;
  model::RelayPlan relay;
  model::RegionPlan region;       ///< direct delivery
  bool has_region = false;        ///< `region` is filled
  std::uint64_t plan_digest = 0;  ///< of the exchange that made it
  std::uint64_t placement_digest = 0;
  std::uint64_t id = 0;  ///< of the dispatch, equal on all ranks: calls on handles of different dispatches do not match
  const void* group = nullptr;  ///< identity only
  std::atomic<int> num_holders{0};
  std::shared_ptr<HandlePool> keep_alive;  ///< set while held
};

class HandlePool : public std::enable_shared_from_this<HandlePool> {
 public:
  HandlePool(const model::Shape& shape, int num_slots);

  /// Returns the bytes that a pool of this size takes.
  [[nodiscard]] static std::size_t bytes_needed(const model::Shape& shape, int num_slots);

  /// Returns a free slot with one holder, or null.
  [[nodiscard]] HandleSlot* take() noexcept;

  [[nodiscard]] int size() const noexcept { return static_cast<int>(slots_.size()); }

 private:
  base::LocalMemory memory_;
  std::vector<HandleSlot> slots_;
};

/// One more, and one less, holder.
void hold(HandleSlot* slot) noexcept;
void let_go(HandleSlot* slot) noexcept;

}  // namespace moebus::engine
