#include "transport/unruly/held_traffic.hpp"

#include <algorithm>
#include <utility>

#include "base/assert.hpp"

namespace moebus::transport {
namespace {

bool is_overdue(const Moment& since, const Moment& now) noexcept {
  return now.time - since.time >= HeldTraffic::kMaxHeldTime ||
         now.call_idx - since.call_idx >= HeldTraffic::kMaxHeldCalls;
}

}  // namespace

void HeldTraffic::add_pieces(const Parcel& whole, const Moment& now) {
  std::vector<std::size_t> cuts{0, whole.size_bytes};
  for (std::uint64_t i = random_below(4); i > 0; --i) cuts.push_back(random_below(whole.size_bytes + 1));
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  std::vector<Parcel> pieces;
  for (std::size_t i = 1; i < cuts.size(); ++i) {
    Parcel piece = whole;
    piece.sink.offset_bytes += cuts[i - 1];
    piece.source += cuts[i - 1];
    piece.size_bytes = cuts[i] - cuts[i - 1];
    pieces.push_back(std::move(piece));
  }
  std::shuffle(pieces.begin(), pieces.end(), random_);
  *whole.num_pieces_left += pieces.size();
  for (Parcel& piece : pieces) add(std::move(piece), now);
}

void HeldTraffic::add(Parcel parcel, const Moment& now) {
  Track& track = tracks_[random_below(tracks_.size())];
  if (track.held.empty()) track.next_call_idx = now.call_idx + random_stall();
  ++num_held_[era_];
  track.held.push_back({std::move(parcel), era_, now});
}

void HeldTraffic::copy_sources(std::uint64_t ticket) {
  for (Track& track : tracks_) {
    for (Held& held : track.held) {
      Parcel& parcel = held.parcel;
      if (parcel.ticket > ticket || parcel.is_signal || !parcel.copy.empty()) continue;
      parcel.copy.assign(parcel.source, parcel.source + parcel.size_bytes);
      parcel.source = parcel.copy.data();
    }
  }
}

void HeldTraffic::release_some(const Moment& now, const Deliver& deliver) {
  release_if(
      [&](const Track& track) {
        return track.next_call_idx <= now.call_idx || is_overdue(track.held.front().since, now);
      },
      now,
      deliver);
}

void HeldTraffic::release_overdue(const Moment& now, const Deliver& deliver) {
  release_if([&](const Track& track) { return is_overdue(track.held.front().since, now); }, now, deliver);
}

void HeldTraffic::release_all(const Deliver& deliver) {
  release_if([](const Track&) { return true; }, Moment{}, deliver);
  // Whatever waits waits for something that was added before it, so nothing can be left.
  MOEBUS_ASSERT(is_empty());
}

/// Often none, mostly some calls, seldom until it is overdue: the peer then sees what came later for a long time.
std::uint64_t HeldTraffic::random_stall() {
  const std::uint64_t kind = random_below(100);
  if (kind < 35) return 0;
  if (kind < 70) return 1 + random_below(8);
  if (kind < 98) return 8 + random_below(60);
  return kMaxHeldCalls;
}

bool HeldTraffic::may_leave(const Held& held) const noexcept {
  const bool is_behind_fence = held.era != num_held_.begin()->first;
  const Parcel& parcel = held.parcel;
  const bool has_own_bytes_ahead = parcel.is_signal && *parcel.num_pieces_left > 0;
  return !is_behind_fence && !has_own_bytes_ahead;
}

void HeldTraffic::release_if(const IsDue& is_due, const Moment& now, const Deliver& deliver) {
  for (;;) {
    std::array<Track*, std::tuple_size_v<decltype(tracks_)>> ready{};
    std::size_t num_ready = 0;
    for (Track& track : tracks_) {
      if (!track.held.empty() && may_leave(track.held.front()) && is_due(track)) ready[num_ready++] = &track;
    }
    if (num_ready == 0) return;
    Track& track = *ready[random_below(num_ready)];
    const Held held = std::move(track.held.front());
    track.held.pop_front();
    track.next_call_idx = now.call_idx + random_stall();
    deliver(held.parcel);
    if (!held.parcel.is_signal) --*held.parcel.num_pieces_left;
    const auto of_era = num_held_.find(held.era);
    if (--of_era->second == 0) num_held_.erase(of_era);
  }
}

}  // namespace moebus::transport
