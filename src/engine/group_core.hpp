// GroupCore: one rank's side of a group: memory, signals, epochs, limits, and what happens when a wait ends badly.
// Room: engine · host.
// Source: [ours] design 4.5 (contexts, epochs, signals), 6 (life), 7 (failure); checked with the protocol models.

#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "backend/backend.hpp"
#include "base/deadline.hpp"
#include "base/local_memory.hpp"
#include "engine/faults.hpp"
#include "model/layout.hpp"
#include "moebus/config.hpp"
#include "moebus/error.hpp"
#include "sync/control_block.hpp"
#include "sync/signal_word.hpp"
#include "sync/waiting.hpp"
#include "transport/store.hpp"
#include "transport/transport.hpp"

namespace moebus::engine {

class GroupCore;

/// Why a rank will not carry out a call: an argument error found before anything was sent.
struct Refusal {
  ErrorCode code = ErrorCode::invalid_argument;
  std::string text;
};

/// Result memory of the library that one result can hold at a time.
struct ResultHold {
  std::atomic<bool> is_held{false};
  std::shared_ptr<GroupCore> keep_alive;  ///< set while held: the memory outlives the group's user
};

/// Words of a peer that a rank can wait for; at most four, see sync::Standstill.
enum class Awaited : std::uint8_t { arrived, finished, rounds, taken };

/// One call of the context: taken by every rank in the same order.
struct Call {
  std::uint32_t epoch = 0;
  sync::Operation operation = sync::Operation::none;
  std::uint64_t digest = 0;
};

/// Throws Error{invalid_argument} for a limit that is not positive.
void check_limits(const GroupOptions& options);

class GroupCore : public std::enable_shared_from_this<GroupCore> {
 public:
  /// Takes over what the composition root chose and registers the control block. Collective.
  GroupCore(std::unique_ptr<transport::Store> store,
            std::unique_ptr<transport::Transport> transport,
            std::unique_ptr<backend::Backend> backend,
            const GroupOptions& options,
            int num_local_ranks);
  ~GroupCore();
  GroupCore(const GroupCore&) = delete;
  GroupCore& operator=(const GroupCore&) = delete;

  [[nodiscard]] int rank() const noexcept { return rank_; }

  [[nodiscard]] int num_ranks() const noexcept { return num_ranks_; }

  [[nodiscard]] backend::Backend& backend() const noexcept { return *backend_; }

  [[nodiscard]] std::string_view transport_name() const noexcept { return transport_name_; }

  [[nodiscard]] const GroupOptions& options() const noexcept { return options_; }

  void set_arrival_limit(std::chrono::milliseconds limit);
  void set_progress_limit(std::chrono::milliseconds limit);

  /// Exchanges set-up messages; see transport::Store::all_gather. Poisons nothing.
  std::vector<std::string> all_gather(std::string_view what, std::string_view value);

  void close() noexcept;

  /// Throws if the group cannot be used: closed, or poisoned (with the first cause).
  void check_usable() const;

  // --- Memory ---

  /// What exchanges of this group need of the shared memory; grown collectively, see cover().
  struct MemoryNeeds {
    model::WindowBytes window;
    std::size_t result_bytes = 0;   ///< local results
    std::size_t combine_bytes = 0;  ///< local results of combine
    void cover(const MemoryNeeds& other) noexcept;
  };

  struct CoverTimes {
    double allocate_us = 0;
    double map_us = 0;
  };

  /// Makes sure that the group's memory covers `needs`. Collective; no result may be held. All ranks' needs are equal.
  CoverTimes cover(const MemoryNeeds& needs);

  [[nodiscard]] const model::WindowBytes& window_bytes() const noexcept { return needs_.window; }

  /// Start of the peer's window (own rank included).
  [[nodiscard]] std::byte* window(int peer) const noexcept { return windows_.peers[base::idx(peer)]; }

  [[nodiscard]] std::byte* results() const noexcept { return results_.data(); }

  [[nodiscard]] std::byte* combine_results() const noexcept { return combine_results_.data(); }

  [[nodiscard]] ResultHold& region_hold() noexcept { return region_hold_; }

  [[nodiscard]] ResultHold& result_hold() noexcept { return result_hold_; }

  [[nodiscard]] bool is_any_result_held() const noexcept { return region_hold_.is_held || result_hold_.is_held; }

  // --- Calls ---

  /// Takes the next epoch.
  Call begin_call(sync::Operation operation, std::uint64_t digest) noexcept;

  /// Tells one peer (or oneself) that this rank has made the call; what it refuses goes along.
  void signal_arrived(const Call& call, int peer, const Refusal* refusal) noexcept;
  void signal_finished(const Call& call, int peer) noexcept;
  void signal_rounds(const Call& call, int peer, std::uint32_t count) noexcept;
  void signal_taken(const Call& call, int peer, std::uint32_t count) noexcept;

  /// True if the wait would not stand still.
  [[nodiscard]] bool is_there(const Call& call, int peer, Awaited what, std::uint32_t count = 0) const noexcept;

  /// Stands still until the peer's word is there; returns the time spent in nanoseconds (0 if it was there at once).
  /// Errors:  timeout, peer_lost, or what another rank aborted with; the group is poisoned before it throws.
  std::uint64_t wait(const Call& call, int peer, Awaited what, std::uint32_t count = 0);

  /// After wait(arrived): checks that the peer made the same call (poisons otherwise), and returns its refusal, if any.
  std::optional<Refusal> read_header(const Call& call, int peer);

  void at(Step step) noexcept {
    if (faults_.is_any()) faults_.at(step);
  }

  [[nodiscard]] const Faults& faults() const noexcept { return faults_; }

  /// Ends the group: remembers the first cause, tells every peer, throws it.
  [[noreturn]] void poison(ErrorCode code, int culprit, const std::string& text);

 private:
  struct WaitState;

  [[nodiscard]] sync::ControlBlock& control(int peer) const noexcept {
    // Registered memory of this type's size and alignment, zeroed: all-zero is the initial state of every field.
    return *reinterpret_cast<sync::ControlBlock*>(control_.peers[base::idx(peer)]);
  }

  [[nodiscard]] bool is_word_there(sync::Word word, const Call& call, Awaited what, std::uint32_t count) const noexcept;
  [[nodiscard]] const sync::Word& word(int peer, Awaited what) const noexcept;
  /// The word that `peer` writes for `owner`.
  [[nodiscard]] const sync::Word& word_at(int owner, int peer, Awaited what) const noexcept;
  void stand_still(const Call& call, int peer, Awaited what, std::uint32_t count);
  void look_for_trouble(const Call& call, int peer, Awaited what, std::uint32_t count, const base::Deadline& deadline);
  void look_for_aborts();
  [[nodiscard]] int end_of_chain(int peer) const noexcept;
  [[nodiscard]] std::string describe_wait(const Call& call,
                                          int peer,
                                          Awaited what,
                                          std::chrono::nanoseconds waited) const;

  int rank_;
  int num_ranks_;
  GroupOptions options_;
  std::atomic<std::int64_t> arrival_limit_ms_;
  std::atomic<std::int64_t> progress_limit_ms_;
  std::unique_ptr<transport::Store> store_;
  std::unique_ptr<transport::Transport> transport_;
  std::unique_ptr<backend::Backend> backend_;
  std::string transport_name_;
  sync::WaitPolicy policy_;
  Faults faults_;

  transport::Registration control_;
  transport::Registration windows_;
  MemoryNeeds needs_;
  base::LocalMemory results_;
  base::LocalMemory combine_results_;
  ResultHold region_hold_;
  ResultHold result_hold_;

  std::uint8_t generation_ = 1;
  std::uint32_t epoch_ = 0;
  bool is_closed_ = false;
  std::optional<Error> cause_;  ///< first cause of a poisoned group
};

/// Returns an operation's name for messages.
[[nodiscard]] std::string_view to_string(sync::Operation operation) noexcept;

}  // namespace moebus::engine
