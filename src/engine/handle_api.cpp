// Bodies of the small owning values of moebus/io.hpp.

#include <utility>

#include "engine/context.hpp"
#include "engine/handles.hpp"
#include "moebus/io.hpp"

namespace moebus {

DispatchHandle::DispatchHandle(const DispatchHandle& other) noexcept : slot_(other.slot_) { engine::hold(slot_); }

DispatchHandle::DispatchHandle(DispatchHandle&& other) noexcept : slot_(std::exchange(other.slot_, nullptr)) {}

DispatchHandle& DispatchHandle::operator=(DispatchHandle other) noexcept {
  std::swap(slot_, other.slot_);
  return *this;
}

DispatchHandle::~DispatchHandle() { engine::let_go(slot_); }

ResultLease::ResultLease(ResultLease&& other) noexcept : hold_(std::exchange(other.hold_, nullptr)) {}

ResultLease& ResultLease::operator=(ResultLease&& other) noexcept {
  if (this != &other) {
    reset();
    hold_ = std::exchange(other.hold_, nullptr);
  }
  return *this;
}

ResultLease::~ResultLease() { reset(); }

void ResultLease::reset() noexcept {
  if (hold_ == nullptr) return;
  engine::ResultHold* hold = std::exchange(hold_, nullptr);
  // The group may end with its last holder, and the hold with it: give the memory free before that.
  const std::shared_ptr<engine::GroupCore> group = std::move(hold->keep_alive);
  hold->is_held = false;
}

}  // namespace moebus
