#include "engine/outbox.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/assert.hpp"
#include "base/math.hpp"
#include "engine/group_core.hpp"

namespace moebus::engine {

namespace {

constexpr std::size_t kAlign = 64;

}  // namespace

void Outbox::set_memory(std::uint32_t registration,
                        std::byte* window,
                        std::byte* memory,
                        std::size_t piece_bytes) noexcept {
  registration_ = registration;
  window_ = window;
  memory_ = memory;
  piece_bytes_ = piece_bytes / kAlign * kAlign;
  piece_ = 0;
  used_ = 0;
  ticket_ = {};
}

std::byte* Outbox::take(std::size_t size_bytes) {
  const std::size_t wanted = base::align_up(size_bytes, kAlign);
  MOEBUS_ASSERT(wanted <= piece_bytes_);
  if (used_ + wanted > piece_bytes_) {
    piece_ = (piece_ + 1) % kNumPieces;
    used_ = 0;
    const auto limit = group_.progress_limit();
    if (!group_.transport().flush(ticket_[piece_], base::Deadline(limit))) {
      group_.poison(
          ErrorCode::timeout,
          group_.rank(),
          fmt::format(
              "rank {} could not send what it had put within {} ms (progress limit): the transport stands still",
              group_.rank(),
              limit.count()));
    }
  }
  std::byte* room = memory_ + piece_ * piece_bytes_ + used_;
  used_ += wanted;
  return room;
}

void Outbox::put(int peer, const std::byte* place, const std::byte* source, std::size_t size_bytes) noexcept {
  if (group_.is_cut_off(peer)) return;
  const auto offset = static_cast<std::size_t>(place - window_);
  group_.transport().put(peer, {registration_, offset}, source, size_bytes);
  ticket_[piece_] = group_.transport().num_started();
}

void Outbox::write(int peer, const std::byte* place, const std::byte* source, std::size_t size_bytes) {
  while (size_bytes > 0) {
    const std::size_t part = std::min(size_bytes, piece_bytes_);
    std::byte* copy = take(part);
    std::memcpy(copy, source, part);
    put(peer, place, copy, part);
    place += part;
    source += part;
    size_bytes -= part;
  }
}

}  // namespace moebus::engine
