// Context: one sequence of calls over a group, with its own windows, words and epochs. Says which word stands for what;
// how a rank waits and gives up is GroupCore's. Room: engine · host.
// Source: [ours] design 4.5 (contexts, epochs, signals); checked with the protocol models (tests/model).

#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <optional>

#include "base/local_memory.hpp"
#include "engine/call.hpp"
#include "engine/group_core.hpp"
#include "engine/outbox.hpp"
#include "model/layout.hpp"

namespace moebus::engine {

/// Result memory of the library that one result can hold at a time.
struct ResultHold {
  std::atomic<bool> is_held{false};
  std::shared_ptr<GroupCore> keep_alive;  ///< set while held: the memory outlives the group's user
};

/// What exchanges of a context need of the memory that they share; grown collectively.
struct MemoryNeeds {
  model::WindowBytes window;
  std::size_t result_bytes = 0;   ///< local results
  std::size_t combine_bytes = 0;  ///< local results of combine
  std::size_t outbox_piece_bytes = 0;
  void cover(const MemoryNeeds& other) noexcept;
};

class Context {
 public:
  /// Registers the words. Collective.
  Context(GroupCore& group, int index);
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  /// Gives all memory back. The object stays: results and posted calls may know it until the group's end.
  void close() noexcept;

  [[nodiscard]] GroupCore& group() const noexcept { return group_; }

  [[nodiscard]] int index() const noexcept { return index_; }

  // --- Memory ---

  struct CoverTimes {
    double allocate_us = 0;
    double map_us = 0;
  };

  /// Makes sure that the memory covers `needs`. Collective; no result may be held. All ranks' needs are equal.
  CoverTimes cover(const MemoryNeeds& needs);

  [[nodiscard]] const model::WindowBytes& window_bytes() const noexcept { return needs_.window; }

  /// Returns the peer's window, or for a peer that is not mapped the own one, where places lie at the same offsets.
  [[nodiscard]] std::byte* window(int peer) const noexcept {
    std::byte* mapped = windows_.peers[base::idx(peer)];
    return mapped != nullptr ? mapped : windows_.local.data;
  }

  [[nodiscard]] bool is_mapped(int peer) const noexcept { return windows_.peers[base::idx(peer)] != nullptr; }

  /// Where rows for peers that are not mapped are made.
  [[nodiscard]] Outbox& outbox() noexcept { return outbox_; }

  /// Copies bytes to the place in the peer's window that `place` (inside window(peer)) stands for.
  void write(int peer, std::byte* place, const std::byte* source, std::size_t size_bytes);

  [[nodiscard]] std::byte* results() const noexcept { return results_.data(); }

  [[nodiscard]] std::byte* combine_results() const noexcept { return combine_results_.data(); }

  [[nodiscard]] ResultHold& region_hold() noexcept { return region_hold_; }

  [[nodiscard]] ResultHold& result_hold() noexcept { return result_hold_; }

  [[nodiscard]] bool is_any_result_held() const noexcept { return region_hold_.is_held || result_hold_.is_held; }

  // --- Calls ---

  /// Takes the next epoch.
  Call begin_call(sync::Operation operation, std::uint64_t digest) noexcept;

  [[nodiscard]] std::uint32_t epoch() const noexcept { return epoch_; }

  /// Tells one peer (or oneself) that this rank has made the call; what it refuses goes along.
  void signal_arrived(const Call& call, int peer, const Refusal* refusal) noexcept;

  /// Makes a signal in a word of `peer`'s block that this rank writes; `count` for fields that count. What was written
  /// to the peer before is visible to whoever sees it.
  void signal(const Call& call, int peer, const sync::WordName& word, std::uint32_t count = 0) noexcept;

  // Names of words. Of this rank in a peer's block:
  [[nodiscard]] sync::WordName own(sync::Field field) const noexcept;
  /// In a neighbour's block, on behalf of a far rank.
  [[nodiscard]] sync::WordName on_behalf_of(int far, sync::Field field) const noexcept;
  /// In the gateway's block, about rows from or to a far rank.
  [[nodiscard]] sync::WordName at_gateway(int far, sync::Field field) const noexcept;
  // In this rank's own block:
  [[nodiscard]] static sync::WordName of(int peer, sync::Field field) noexcept;
  [[nodiscard]] sync::WordName relayed(int far, sync::Field field) const noexcept;
  [[nodiscard]] static sync::WordName of_neighbour(int far, int neighbour, sync::Field field) noexcept;

  /// True if the wait would not stand still.
  [[nodiscard]] bool is_there(const Call& call, const sync::WordName& word, std::uint32_t count = 0) const noexcept;

  /// Stands still until the word is there; returns the time spent in nanoseconds (0 if it was there at once).
  /// Errors:  timeout, peer_lost, or what another rank aborted with; the group is poisoned before it throws.
  std::uint64_t wait(const Call& call, const sync::WordName& word, std::uint32_t count = 0);

  /// Stands still until `is_ready`; `word` is what trouble is looked for at. `is_ready` is true if that word is there.
  template <class Ready>
  std::uint64_t wait_until(const Call& call, const sync::WordName& word, std::uint32_t count, const Ready& is_ready) {
    return group_.wait({*this, call, word, count}, is_ready);
  }

  /// After wait(arrived): checks that the peer made the same call (poisons otherwise), and returns its refusal, if any.
  std::optional<Refusal> read_header(const Call& call, int peer);

  /// After read_header: true if the peer sends rows of the call without waiting for arrivals.
  [[nodiscard]] bool does_peer_send_ahead(const Call& call, int peer) const noexcept;

  /// True if the word of `owner`'s block is there; only for mapped owners (tells why a chain of waits ends).
  [[nodiscard]] bool is_there_at(int owner, const Call& call, const sync::WordName& word, std::uint32_t count) const;

  [[nodiscard]] sync::Word load(const sync::WordName& word) const noexcept;

  // --- Posted calls: Q = 1 ---

  [[nodiscard]] OpenCall* open_call() const noexcept { return open_call_; }

  void set_open_call(OpenCall* call) noexcept { open_call_ = call; }

 private:
  [[nodiscard]] sync::ContextBlock* block(int peer) const noexcept {
    // Registered memory of this type's size and alignment, zeroed: all-zero is the initial state of every field.
    return reinterpret_cast<sync::ContextBlock*>(block_.peers[base::idx(peer)]);
  }

  [[nodiscard]] static const sync::Word& word_in(const std::byte* block, const sync::WordName& word) noexcept;
  [[nodiscard]] bool is_reached(sync::Word word,
                                const Call& call,
                                sync::Field field,
                                std::uint32_t count) const noexcept;

  GroupCore& group_;
  int index_;
  transport::Registration block_;
  transport::Registration windows_;
  MemoryNeeds needs_;
  Outbox outbox_;
  base::LocalMemory results_;
  base::LocalMemory combine_results_;
  ResultHold region_hold_;
  ResultHold result_hold_;
  std::uint32_t epoch_ = 0;
  OpenCall* open_call_ = nullptr;
};

}  // namespace moebus::engine
