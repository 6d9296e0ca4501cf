// The waiting side of GroupCore: look for trouble, follow the chain of waiting ranks, give up with a reason.

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "base/log.hpp"
#include "engine/context.hpp"
#include "engine/group_core.hpp"

namespace moebus::engine {

using base::idx;
using sync::Field;
using sync::Line;
using sync::WordName;

namespace {

// A rank says that it stands still only after a while, and then that it still does: cheap against any limit.
constexpr std::chrono::milliseconds kFirstBeat{2};
constexpr std::chrono::milliseconds kBeat{20};

// A ring of ranks that is seen twice, a beat apart, is not one word that is still on its way.
constexpr int kRingsSeen = 2;

std::string_view to_string(Field field) noexcept {
  switch (field) {
    case Field::arrived:
      return "to make the call (signal 'arrived')";
    case Field::finished:
      return "to finish sending its rows (signal 'finished')";
    case Field::rounds:
      return "to send the next round of rows (signal 'rounds')";
    case Field::taken:
      return "to take out a round of rows (signal 'taken')";
  }
  return "";
}

std::string about(const WordName& word) {
  switch (word.line) {
    case Line::direct:
      return {};
    case Line::relayed:
      return fmt::format(", on behalf of rank {}", word.about);
    case Line::relay:
      return fmt::format(", between nodes, for rank {}", word.about);
  }
  return {};
}

double seconds(std::chrono::nanoseconds time) noexcept { return std::chrono::duration<double>(time).count(); }

}  // namespace

std::chrono::milliseconds GroupCore::limit_of(const WaitedWord& waited) const noexcept {
  return std::chrono::milliseconds(sync::is_arrival(waited.word) ? arrival_limit_ms_ : progress_limit_ms_);
}

void GroupCore::note_wait(const WaitedWord& waited, sync::StepKind kind) const noexcept {
  if (faults_ != nullptr) faults_->at(waited.call.epoch, {kind, waited.word.writer, waited.word.field});
}

std::uint64_t GroupCore::end_wait(const WaitedWord& waited, base::Clock::time_point start) const noexcept {
  note_wait(waited, sync::StepKind::wait_ends);
  return static_cast<std::uint64_t>((base::Clock::now() - start).count());
}

void GroupCore::wake(int peer) noexcept {
  if (is_mapped(peer)) sync::ring(block(peer).doorbell);
}

void GroupCore::look_for_trouble(const WaitedWord& waited, Patience& patience) {
  if (needs_progress_) transport_->progress();
  look_for_aborts();
  const int peer = waited.word.writer;
  const auto is_there = [&] { return waited.context.is_there(waited.call, waited.word, waited.count); };
  const transport::PeerStatus status = is_cut_off(peer) ? transport::PeerStatus{} : transport_->peer_status(peer);
  if (status.state != transport::PeerState::alive && !is_there()) {
    // A peer that gave up says why before it leaves: its cause counts, not its leaving.
    look_for_aborts();
    const std::string_view how = status.state == transport::PeerState::closed ? "left the group" : "died";
    poison(ErrorCode::peer_lost,
           peer,
           fmt::format("rank {} {} ({}) while rank {} waited for it {}{} in call {} ({})",
                       peer,
                       how,
                       status.reason,
                       rank(),
                       to_string(waited.word.field),
                       about(waited.word),
                       waited.call.epoch,
                       engine::to_string(waited.call.operation)));
  }
  const auto time = patience.waited();
  if (time >= patience.next_beat) {
    tell_standstill(waited, patience);
    check_order(waited, patience);
  }
  if (waited.word.field == Field::arrived && time >= patience.next_line) {
    base::log().warn(describe_wait(waited, time));
    patience.next_line *= 2;
  }
  if (time < patience.limit || is_there()) return;
  const int culprit = end_of_chain(waited, patience);
  // That may have taken a while.
  look_for_aborts();
  if (is_there()) return;
  std::string text = describe_wait(waited, time);
  if (culprit != peer) text += fmt::format("; rank {} itself waits for rank {}, where the chain ends", peer, culprit);
  poison(ErrorCode::timeout, culprit, text);
}

void GroupCore::look_for_aborts() {
  for (int peer = 0; peer < num_ranks(); ++peer) {
    if (peer == rank() || is_cut_off(peer)) continue;
    const sync::PeerState& state = block(rank()).peer[idx(peer)];
    const sync::Word word = sync::load_acquire(state.aborted);
    if (word == 0) continue;
    const sync::Abort abort = sync::decode_abort(word);
    poison(error_code_of(abort.code),
           abort.culprit,
           fmt::format("rank {} gave the group up: {}", peer, state.cause.view()));
  }
}

// --- Standing still ---

void GroupCore::write_peer_state(int peer, std::size_t offset, sync::Word value) noexcept {
  if (is_cut_off(peer)) return;
  const std::size_t at = offsetof(sync::GroupBlock, peer) + idx(rank()) * sizeof(sync::PeerState) + offset;
  if (std::byte* mapped = block_.peers[idx(peer)]) {
    sync::store_release(*reinterpret_cast<sync::Word*>(mapped + at), value);
    return;
  }
  transport_->fence(peer);
  transport_->put_signal(peer, {}, nullptr, 0, {block_.id, at}, value);
}

void GroupCore::tell_standstill(const WaitedWord& waited, Patience& patience) noexcept {
  if (patience.waited() < kFirstBeat) return;
  const sync::Standstill standstill{
      waited.word, static_cast<std::uint8_t>(waited.context.index()), waited.count, patience.is_out_of_order};
  ++patience.beat;
  const sync::Word since = (sync::Word{waited.call.epoch} << 32) | patience.beat;
  for (int peer = 0; peer < num_ranks(); ++peer) {
    if (peer == rank()) continue;
    write_peer_state(peer, offsetof(sync::PeerState, waits_since), since);
    write_peer_state(peer, offsetof(sync::PeerState, waits_for), sync::encode(standstill));
  }
  patience.next_beat = patience.waited() + kBeat;
}

void GroupCore::stop_standing_still(const Patience& patience) noexcept {
  if (patience.beat == 0) return;
  for (int peer = 0; peer < num_ranks(); ++peer) {
    if (peer != rank()) write_peer_state(peer, offsetof(sync::PeerState, waits_for), 0);
  }
}

std::optional<GroupCore::Standing> GroupCore::standing_of(int peer) const noexcept {
  const sync::PeerState& state = block(rank()).peer[idx(peer)];
  const sync::Word waits_for = sync::load_acquire(state.waits_for);
  if (waits_for == 0) return std::nullopt;
  const Standing standing{sync::decode_standstill(waits_for),
                          static_cast<std::uint32_t>(sync::load_acquire(state.waits_since) >> 32),
                          peer};
  const int writer = standing.standstill.word.writer;
  const bool is_known = standing.standstill.context < kMaxContexts && contexts_[standing.standstill.context] != nullptr;
  if (!is_known || writer >= num_ranks() || writer == peer) return std::nullopt;
  return standing;
}

bool GroupCore::stands_still(int peer, const Standing& standing, const WaitedWord& waited, Patience& patience) {
  // A rank that was stopped says for ever that it waits. If what it waits for lies there, or it says no more, it is the
  // one that stands still.
  const Context& context = *contexts_[standing.standstill.context];
  const Call call{standing.epoch, sync::Operation::none, 0};
  if (is_mapped(peer) && context.is_there_at(peer, call, standing.standstill.word, standing.standstill.count))
    return false;
  const sync::PeerState& state = block(rank()).peer[idx(peer)];
  const sync::Word before = sync::load_acquire(state.waits_since);
  const base::Deadline deadline(10 * kBeat);
  while (!deadline.is_over()) {
    if (sync::load_acquire(state.waits_since) != before) return true;
    transport_->progress();
    // Others look at this rank in the same way, and some know the cause already.
    look_for_aborts();
    if (patience.waited() >= patience.next_beat) tell_standstill(waited, patience);
    std::this_thread::sleep_for(kBeat / 4);
  }
  return false;
}

int GroupCore::turn_of(const Standing& standing, int own_context) const noexcept {
  if (standing.standstill.context == own_context) return 1;
  // Calls are completed in the order in which they were posted: what is complete here came before, the rest comes
  // after.
  const Context& context = *contexts_[standing.standstill.context];
  const std::int32_t ahead = sync::epochs_ahead(context.epoch(), standing.epoch);
  const bool is_open = context.open_call() != nullptr && !context.open_call()->is_done();
  return ahead > 0 || (ahead == 0 && !is_open) ? 0 : 2;
}

bool GroupCore::comes_before(const Standing& a, const Standing& b, int own_context) const noexcept {
  const int turn_a = turn_of(a, own_context);
  const int turn_b = turn_of(b, own_context);
  if (turn_a != turn_b) return turn_a < turn_b;
  if (a.standstill.context != b.standstill.context) return false;
  if (a.epoch != b.epoch) return sync::epochs_ahead(a.epoch, b.epoch) < 0;
  return a.order() < b.order();
}

int GroupCore::lost_in_ring(std::span<const Standing> ring, int own_context) const noexcept {
  // Each of the ring has not made the word that the one before it waits for, because it waits itself: for a word that
  // is made before that one. Where it is made after, the word of the one before was made, and is lost.
  const Standing* lost = nullptr;
  for (std::size_t i = 0; i < ring.size(); ++i) {
    const Standing& next = ring[(i + 1) % ring.size()];
    if (!comes_before(ring[i], next, own_context)) continue;
    if (lost == nullptr || comes_before(ring[i], *lost, own_context)) lost = &ring[i];
  }
  return (lost != nullptr ? *lost : ring.front()).standstill.word.writer;
}

int GroupCore::end_of_chain(const WaitedWord& waited, Patience& patience) {
  const int context = waited.context.index();
  std::vector<Standing> chain{
      {{waited.word, static_cast<std::uint8_t>(context), waited.count}, waited.call.epoch, rank()}};
  for (;;) {
    const int at = chain.back().standstill.word.writer;
    const auto ring = std::find_if(chain.begin(), chain.end(), [at](const Standing& one) { return one.rank == at; });
    if (ring != chain.end()) {
      return lost_in_ring({&*ring, static_cast<std::size_t>(chain.end() - ring)}, context);
    }
    if (is_cut_off(at)) return at;
    const auto standing = standing_of(at);
    if (!standing || !stands_still(at, *standing, waited, patience)) return at;
    chain.push_back(*standing);
  }
}

void GroupCore::check_order(const WaitedWord& waited, Patience& patience) {
  const auto context = static_cast<std::uint8_t>(waited.context.index());
  if (!sync::is_arrival(waited.word)) return;
  // Calls are posted and completed in one order on all ranks, so whoever waits for a call that this rank has not made
  // is one of a ring only if orders differ. Each of the ring knows that of itself, and says so.
  bool is_out_of_order = false;
  for (int peer = 0; peer < num_ranks(); ++peer) {
    const auto standing = peer == rank() ? std::nullopt : standing_of(peer);
    if (!standing || !standing->is_for_arrival() || standing->standstill.word.writer != rank()) continue;
    const auto other = standing->standstill.context;
    is_out_of_order |= other != context && sync::epochs_ahead(contexts_[other]->epoch(), standing->epoch) < 0;
  }
  patience.is_out_of_order = is_out_of_order;
  if (!is_out_of_order) return;
  Standing first;  // of whom this rank waits for
  int at = waited.word.writer;
  for (int hops = 0; hops < num_ranks() && at != rank(); ++hops) {
    const auto standing = standing_of(at);
    if (!standing || !standing->is_for_arrival() || !standing->standstill.is_out_of_order) return;
    if (hops == 0) first = *standing;
    at = standing->standstill.word.writer;
  }
  if (at != rank() || ++patience.num_rings < kRingsSeen) return;
  poison(ErrorCode::invalid_argument,
         waited.word.writer,
         fmt::format(
             "ranks make their calls in different orders: rank {} is at call {} ({}) of context {} and waits there "
             "for rank {}, which is at call {} of context {} and waits there for rank {}. All ranks must make "
             "the same calls in the same order, through all contexts",
             rank(),
             waited.call.epoch,
             engine::to_string(waited.call.operation),
             context,
             waited.word.writer,
             first.epoch,
             first.standstill.context,
             first.standstill.word.writer));
}

std::string GroupCore::describe_wait(const WaitedWord& waited, std::chrono::nanoseconds time) const {
  const sync::Word seen = waited.context.load(waited.word);
  return fmt::format(
      "rank {} has waited {:.1f} s for rank {} {}{} in call {} ({}): expected epoch {}, seen {} (word {:016x}); {} "
      "limit "
      "{} ms",
      rank(),
      seconds(time),
      waited.word.writer,
      to_string(waited.word.field),
      about(waited.word),
      waited.call.epoch,
      engine::to_string(waited.call.operation),
      waited.call.epoch,
      static_cast<std::uint32_t>(seen >> 24),
      seen,
      sync::is_arrival(waited.word) ? "arrival" : "progress",
      limit_of(waited).count());
}

// --- Giving up ---

void GroupCore::poison(ErrorCode code, int culprit, const std::string& text) {
  Error error(code, text, culprit);
  if (!cause_) cause_ = error;
  const sync::Abort abort{generation_, 0, static_cast<std::uint8_t>(culprit), static_cast<std::uint8_t>(code)};
  sync::PeerState& own = block(rank()).peer[idx(rank())];
  if (sync::load_acquire(own.aborted) == 0) {  // sticky: the first cause stays
    own.cause.set(text);
    sync::store_release(own.aborted, sync::encode(abort));
    for (int peer = 0; peer < num_ranks(); ++peer) {
      if (peer == rank() || is_cut_off(peer)) continue;
      const std::size_t at =
          offsetof(sync::GroupBlock, peer) + idx(rank()) * sizeof(sync::PeerState) + offsetof(sync::PeerState, cause);
      if (is_mapped(peer)) {
        block(peer).peer[idx(rank())].cause.set(text);
      } else {
        transport_->put(peer, {block_.id, at}, reinterpret_cast<const std::byte*>(&own.cause), sizeof(sync::Note));
      }
      write_peer_state(peer, offsetof(sync::PeerState, aborted), sync::encode(abort));
      wake(peer);
    }
  }
  throw error;
}

}  // namespace moebus::engine
