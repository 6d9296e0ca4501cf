// Held traffic: puts on their way to one peer, in tracks that overtake each other wherever no fence forbids it.
// Room: transport · host. Knows no threads and no clock of its own.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "transport/transport.hpp"

namespace moebus::transport {

/// When something was or is: by the clock, and in calls of this rank.
struct Moment {
  base::Clock::time_point time;
  std::uint64_t call_idx = 0;
};

/// What travels as one: a piece of a put's bytes, or a signal's word.
struct Parcel {
  std::uint64_t ticket = 0;
  RemoteAddress sink;
  const std::byte* source = nullptr;
  std::size_t size_bytes = 0;
  bool is_signal = false;
  sync::Word value = 0;
  std::shared_ptr<std::size_t> num_pieces_left;  ///< of the put that it belongs to; its signal waits for 0
  std::vector<std::byte> copy;                   ///< of the source, once flushed; `source` then points into it
};

/// Threads: one caller at a time.
class HeldTraffic {
 public:
  using Deliver = std::function<void(const Parcel&)>;

  explicit HeldTraffic(std::uint64_t seed) : random_(seed) {}

  /// Holds a put of `size_bytes` in up to four pieces; `whole` says where it comes from and goes to.
  void add_pieces(const Parcel& whole, const Moment& now);

  /// Holds one parcel.
  void add(Parcel parcel, const Moment& now);

  /// What is added from now on stays behind what is held.
  void fence() noexcept { ++era_; }

  /// Copies the sources of what is held of the first `ticket` puts, which may then be reused.
  void copy_sources(std::uint64_t ticket);

  /// Lets go what chance picks, and what is overdue.
  void release_some(const Moment& now, const Deliver& deliver);

  void release_overdue(const Moment& now, const Deliver& deliver);

  void release_all(const Deliver& deliver);

  [[nodiscard]] bool is_empty() const noexcept { return num_held_.empty(); }

  static constexpr std::chrono::milliseconds kMaxHeldTime{2};
  static constexpr std::uint64_t kMaxHeldCalls = 2000;

 private:
  struct Held {
    Parcel parcel;
    std::uint64_t era = 0;
    Moment since;
  };

  /// First in, first out; overtaking is between tracks.
  struct Track {
    std::deque<Held> held;
    std::uint64_t next_call_idx = 0;  ///< nothing leaves by chance before this call
  };

  using IsDue = std::function<bool(const Track&)>;

  std::uint64_t random_below(std::uint64_t limit) { return random_() % limit; }

  [[nodiscard]] std::uint64_t random_stall();
  [[nodiscard]] bool may_leave(const Held& held) const noexcept;
  void release_if(const IsDue& is_due, const Moment& now, const Deliver& deliver);

  std::mt19937_64 random_;
  std::array<Track, 4> tracks_;
  std::uint64_t era_ = 0;                          ///< fences so far
  std::map<std::uint64_t, std::size_t> num_held_;  ///< by era, no zeros
};

}  // namespace moebus::transport
