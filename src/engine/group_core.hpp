// GroupCore: one rank's side of a group: who is in it, how long it waits for whom, and what happens when a wait ends
// badly. Room: engine · host. Source: [ours] design 6 (life), 7 (failure).

#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/backend.hpp"
#include "base/deadline.hpp"
#include "engine/call.hpp"
#include "engine/faults.hpp"
#include "model/shape.hpp"
#include "moebus/config.hpp"
#include "moebus/error.hpp"
#include "sync/control_block.hpp"
#include "sync/waiting.hpp"
#include "transport/store.hpp"
#include "transport/transport.hpp"

namespace moebus::engine {

class Context;

/// Throws Error{invalid_argument} for a limit that is not positive.
void check_limits(const GroupOptions& options);

/// A word that a rank waits for, in a context of its own.
struct WaitedWord {
  const Context& context;
  const Call& call;
  sync::WordName word;
  std::uint32_t count = 0;
};

class GroupCore : public std::enable_shared_from_this<GroupCore> {
 public:
  /// Takes over what the composition root chose and registers the group's block. Collective.
  GroupCore(std::unique_ptr<transport::Store> store,
            std::unique_ptr<transport::Transport> transport,
            std::unique_ptr<backend::Backend> backend,
            model::GroupFacts facts,
            const GroupOptions& options,
            int num_local_ranks);
  ~GroupCore();
  GroupCore(const GroupCore&) = delete;
  GroupCore& operator=(const GroupCore&) = delete;

  [[nodiscard]] int rank() const noexcept { return facts_.rank; }

  [[nodiscard]] int num_ranks() const noexcept { return facts_.topology.num_ranks(); }

  [[nodiscard]] const model::GroupFacts& facts() const noexcept { return facts_; }

  [[nodiscard]] backend::Backend& backend() const noexcept { return *backend_; }

  [[nodiscard]] transport::Transport& transport() const noexcept { return *transport_; }

  [[nodiscard]] std::string_view transport_name() const noexcept { return transport_name_; }

  [[nodiscard]] const GroupOptions& options() const noexcept { return options_; }

  void set_arrival_limit(std::chrono::milliseconds limit);
  void set_progress_limit(std::chrono::milliseconds limit);

  [[nodiscard]] std::chrono::milliseconds progress_limit() const noexcept {
    return std::chrono::milliseconds(progress_limit_ms_);
  }

  /// Exchanges set-up messages; see transport::Store::all_gather. Poisons nothing.
  std::vector<std::string> all_gather(std::string_view what, std::string_view value);

  void close() noexcept;

  /// Throws if the group cannot be used: closed, or poisoned (with the first cause).
  void check_usable() const;

  /// Returns the context, made at its first use. Collective.
  Context& context(int index);

  [[nodiscard]] bool is_any_result_held() const noexcept;

  // --- Posted calls ---

  /// Remembers a posted call, in the order of posts.
  void add_open_call(OpenCall* call) noexcept;

  [[nodiscard]] bool is_any_call_open() const noexcept { return num_open_ > 0; }

  /// Completes what was posted before `call`, then `call`. Earlier first, whoever asks: so ranks that wait in different
  /// orders cannot wait for each other in a ring.
  void complete_up_to(OpenCall* call) noexcept;

  // --- Waiting and giving up ---

  /// Stands still until `is_ready`; returns the time spent in nanoseconds.
  template <class Ready>
  std::uint64_t wait(const WaitedWord& waited, const Ready& is_ready) {
    if (is_ready()) return 0;
    const auto start = base::Clock::now();
    note_wait(waited, sync::StepKind::wait_begins);
    for (int spin = 0; spin < policy_.num_spins; ++spin) {
      sync::pause();
      if (needs_progress_) transport_->progress();
      if (is_ready()) return end_wait(waited, start);
    }
    for (int i = 0; i < policy_.num_yields; ++i) {
      sync::yield();
      if (needs_progress_) transport_->progress();
      if (is_ready()) return end_wait(waited, start);
    }
    Patience patience(start, limit_of(waited));
    while (!is_ready()) {
      look_for_trouble(waited, patience);
      if (is_ready()) break;
      sync::sleep_on(block(rank()).doorbell, policy_.max_sleep, is_ready);
    }
    stop_standing_still(patience);
    return end_wait(waited, start);
  }

  /// Ends the group: remembers the first cause, tells every peer, throws it.
  [[noreturn]] void poison(ErrorCode code, int culprit, const std::string& text);

  [[nodiscard]] Faults* faults() const noexcept { return faults_.get(); }

  [[nodiscard]] bool is_cut_off(int peer) const noexcept { return faults_ != nullptr && faults_->is_cut_off(peer); }

  [[nodiscard]] bool is_fence_skipped() const noexcept { return faults_ != nullptr && faults_->is_fence_skipped(); }

  [[nodiscard]] std::uint8_t generation() const noexcept { return generation_; }

  /// Wakes a peer that may sleep, if its memory is mapped; others look by themselves.
  void wake(int peer) noexcept;

 private:
  /// What a long wait keeps in mind.
  struct Patience {
    Patience(base::Clock::time_point wait_start, std::chrono::milliseconds wait_limit) noexcept
        : start(wait_start), limit(wait_limit) {}

    base::Clock::time_point start;
    std::chrono::milliseconds limit;
    std::chrono::nanoseconds next_line{std::chrono::seconds(5)};
    std::chrono::nanoseconds next_beat{0};
    std::uint32_t beat = 0;
    bool is_out_of_order = false;  ///< see sync::Standstill
    int num_rings = 0;             ///< how often a ring of ranks was seen that make their calls in different orders

    [[nodiscard]] std::chrono::nanoseconds waited() const noexcept { return base::Clock::now() - start; }
  };

  /// What a rank stands still for, and in which call.
  struct Standing {
    sync::Standstill standstill;
    std::uint32_t epoch = 0;
    int rank = 0;

    [[nodiscard]] std::uint64_t order() const noexcept {
      return sync::order_in_call(standstill.word, standstill.count);
    }

    [[nodiscard]] bool is_for_arrival() const noexcept { return sync::is_arrival(standstill.word); }
  };

  [[nodiscard]] sync::GroupBlock& block(int peer) const noexcept {
    return *reinterpret_cast<sync::GroupBlock*>(block_.peers[base::idx(peer)]);
  }

  [[nodiscard]] bool is_mapped(int peer) const noexcept { return block_.peers[base::idx(peer)] != nullptr; }

  [[nodiscard]] std::chrono::milliseconds limit_of(const WaitedWord& waited) const noexcept;
  void note_wait(const WaitedWord& waited, sync::StepKind kind) const noexcept;
  [[nodiscard]] std::uint64_t end_wait(const WaitedWord& waited, base::Clock::time_point start) const noexcept;
  void look_for_trouble(const WaitedWord& waited, Patience& patience);
  void look_for_aborts();
  void tell_standstill(const WaitedWord& waited, Patience& patience) noexcept;
  void stop_standing_still(const Patience& patience) noexcept;
  void write_peer_state(int peer, std::size_t offset, sync::Word value) noexcept;
  [[nodiscard]] std::optional<Standing> standing_of(int peer) const noexcept;
  [[nodiscard]] bool stands_still(int peer, const Standing& standing, const WaitedWord& waited, Patience& patience);
  [[nodiscard]] int turn_of(const Standing& standing, int own_context) const noexcept;
  [[nodiscard]] bool comes_before(const Standing& a, const Standing& b, int own_context) const noexcept;
  [[nodiscard]] int lost_in_ring(std::span<const Standing> ring, int own_context) const noexcept;
  [[nodiscard]] int end_of_chain(const WaitedWord& waited, Patience& patience);
  void check_order(const WaitedWord& waited, Patience& patience);
  [[nodiscard]] std::string describe_wait(const WaitedWord& waited, std::chrono::nanoseconds time) const;

  model::GroupFacts facts_;
  GroupOptions options_;
  std::atomic<std::int64_t> arrival_limit_ms_;
  std::atomic<std::int64_t> progress_limit_ms_;
  std::unique_ptr<transport::Store> store_;
  std::unique_ptr<transport::Transport> transport_;
  std::unique_ptr<backend::Backend> backend_;
  std::string transport_name_;
  sync::WaitPolicy policy_;
  bool needs_progress_ = false;
  std::unique_ptr<Faults> faults_;

  transport::Registration block_;
  std::array<std::unique_ptr<Context>, kMaxContexts> contexts_;
  std::array<OpenCall*, kMaxContexts> open_calls_{};  ///< in posting order
  std::size_t num_open_ = 0;

  std::uint8_t generation_ = 1;
  bool is_closed_ = false;
  std::optional<Error> cause_;  ///< first cause of a poisoned group
};

}  // namespace moebus::engine
