// Outbox: registered memory where bytes for peers that are not mapped are made, and the puts that carry them away.
// Room: engine · host.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "transport/transport.hpp"

namespace moebus::engine {

class GroupCore;

/// A ring of a few pieces. What take() gave stays as it is until as many further pieces were taken, and longer if its
/// puts need it: a piece is only given again when its puts' sources are free.
class Outbox {
 public:
  static constexpr std::size_t kNumPieces = 4;

  explicit Outbox(GroupCore& group) noexcept : group_(group) {}

  /// `memory` is the outbox area of the own window, of registration `registration`.
  void set_memory(std::uint32_t registration, std::byte* window, std::byte* memory, std::size_t piece_bytes) noexcept;

  /// Returns room for `size_bytes`, at most a piece, aligned to 64. Waits for earlier puts if it must; their not
  /// leaving within the progress limit poisons the group.
  [[nodiscard]] std::byte* take(std::size_t size_bytes);

  /// Puts bytes of the outbox to `place`: an address in the own window that stands for the same offset in the peer's.
  void put(int peer, const std::byte* place, const std::byte* source, std::size_t size_bytes) noexcept;

  /// Copies bytes of any length from anywhere into the outbox and puts them.
  void write(int peer, const std::byte* place, const std::byte* source, std::size_t size_bytes);

  [[nodiscard]] std::size_t piece_bytes() const noexcept { return piece_bytes_; }

 private:
  GroupCore& group_;
  std::uint32_t registration_ = 0;
  std::byte* window_ = nullptr;
  std::byte* memory_ = nullptr;
  std::size_t piece_bytes_ = 0;
  std::size_t piece_ = 0;                           ///< being filled
  std::size_t used_ = 0;                            ///< of it
  std::array<std::uint64_t, kNumPieces> ticket_{};  ///< of each piece's last put
};

}  // namespace moebus::engine
