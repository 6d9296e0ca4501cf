// Steps: the points of the protocol at which a rank can be hurt. Every signal that a rank makes and every wait that it
// enters passes here, so that tests can reach all of them. Room: sync · host.

#pragma once

#include <cstddef>
#include <cstdint>

#include "sync/control_block.hpp"

namespace moebus::sync {

enum class StepKind : std::uint8_t {
  call_begins,
  signal_ahead,  ///< rows and tables are written, the word is not
  signal_made,
  wait_begins,
  wait_ends
};

inline constexpr std::size_t kNumStepKinds = 5;

struct Step {
  StepKind kind = StepKind::call_begins;
  int peer = 0;                  ///< whom the signal is for, or who must write the awaited word; own rank: call_begins
  Field field = Field::arrived;  ///< not with call_begins
};

/// Sees every step of one rank; tests plant faults with it.
class StepObserver {
 public:
  virtual ~StepObserver() = default;
  virtual void at(std::uint32_t epoch, const Step& step) noexcept = 0;

  /// True if the signal that is ahead must not be made.
  [[nodiscard]] virtual bool is_signal_lost(int peer) noexcept = 0;

  /// True if nothing comes from `peer` any more, and nothing reaches it.
  [[nodiscard]] virtual bool is_cut_off(int peer) const noexcept = 0;
};

/// Makes a signal of `field` for `peer` by calling `store`. Without an observer that is all.
template <class Store>
void make_signal(StepObserver* observer, std::uint32_t epoch, int peer, Field field, const Store& store) noexcept {
  if (observer == nullptr) {
    store();
    return;
  }
  observer->at(epoch, {StepKind::signal_ahead, peer, field});
  if (!observer->is_signal_lost(peer)) store();
  observer->at(epoch, {StepKind::signal_made, peer, field});
}

}  // namespace moebus::sync
