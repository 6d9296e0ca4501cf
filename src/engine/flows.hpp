// Flows: streams of rounds that run side by side in one call. A rank advances whichever can move and stands still only
// when none can: waiting for one while another could move would let ranks wait for each other in a ring
// (tests/model/exchange.pml, BLOCKING). Room: engine · host.

#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "moebus/types.hpp"
#include "sync/control_block.hpp"

namespace moebus::engine {

/// What a flow's next round waits for: a word of this rank's block, and the count that it must reach.
struct Blocker {
  sync::WordName word;
  std::uint32_t count = 0;
  bool is_own = false;  ///< no word: another flow of this rank must move first

  [[nodiscard]] std::uint64_t order() const noexcept { return sync::order_in_call(word, count); }

  friend bool operator==(const Blocker&, const Blocker&) = default;
};

struct Flow {
  enum class Kind : std::uint8_t {
    send,  ///< own rows to `peer` (combine: for the home `peer`)
    take,  ///< rows of source `peer` (combine: sums of own tokens)
    relay  ///< rows that pass through here from (combine: to) the far rank with index `peer` among those served
  };

  Kind kind = Kind::send;
  int peer = 0;
  std::int64_t next = 0;  ///< round
  std::int64_t end = 0;
};

/// The flows of one call.
class FlowList {
 public:
  void add(Flow::Kind kind, int peer, std::int64_t num_rounds) noexcept {
    if (num_rounds > 0) flows_[num_++] = {kind, peer, 0, num_rounds};
  }

  void clear() noexcept { num_ = 0; }

  [[nodiscard]] Flow* begin() noexcept { return flows_.data(); }

  [[nodiscard]] Flow* end() noexcept { return flows_.data() + num_; }

  [[nodiscard]] const Flow* begin() const noexcept { return flows_.data(); }

  [[nodiscard]] const Flow* end() const noexcept { return flows_.data() + num_; }

  /// Returns the next round of a flow; its end, or 0, if there is none such.
  [[nodiscard]] std::int64_t next_of(Flow::Kind kind, int peer) const noexcept {
    for (const Flow& flow : *this) {
      if (flow.kind == kind && flow.peer == peer) return flow.next;
    }
    return 0;
  }

 private:
  std::array<Flow, std::size_t{3} * kMaxRanks> flows_{};
  std::size_t num_ = 0;
};

/// Runs flows to their ends. `blocker(flow)` tells what the flow's next round waits for, nothing if it can go;
/// `step(flow)` makes that round; `stand_still(blocker, is_over)` waits until a flow can go, or this one waits for
/// something else.
template <class BlockerOf, class Step, class StandStill>
void run_flows(FlowList& flows, const BlockerOf& blocker, const Step& step, const StandStill& stand_still) {
  for (;;) {
    bool has_moved = false;
    const Flow* waiting = nullptr;
    Blocker first;
    for (Flow& flow : flows) {
      if (flow.next == flow.end) continue;
      if (const auto blocked = blocker(flow)) {
        // Of several words the one that is made first holds up the others: trouble is looked for there.
        if (!blocked->is_own && (waiting == nullptr || blocked->order() < first.order())) {
          waiting = &flow;
          first = *blocked;
        }
        continue;
      }
      step(flow);
      ++flow.next;
      has_moved = true;
    }
    if (has_moved) continue;
    if (waiting == nullptr) return;
    stand_still(first, [&] {
      for (const Flow& flow : flows) {
        if (flow.next == flow.end) continue;
        const std::optional<Blocker> now = blocker(flow);
        // Trouble is looked for at one word: once it is there, and the flow waits for another, that one counts.
        if (!now || (&flow == waiting && *now != first)) return true;
      }
      return false;
    });
  }
}

}  // namespace moebus::engine
