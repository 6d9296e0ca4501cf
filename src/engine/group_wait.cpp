// The waiting side of GroupCore: spin, yield, sleep; look for trouble; give up with a reason.

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "base/log.hpp"
#include "engine/group_core.hpp"

namespace moebus::engine {

using base::idx;

namespace {

constexpr std::chrono::seconds kFirstProgressLine{5};

std::string_view to_string(Awaited what) noexcept {
  switch (what) {
    case Awaited::arrived:
      return "to make the call (signal 'arrived')";
    case Awaited::finished:
      return "to finish sending its rows (signal 'finished')";
    case Awaited::rounds:
      return "to send the next round of rows (signal 'rounds')";
    case Awaited::taken:
      return "to take out a round of rows (signal 'taken')";
  }
  return "";
}

double seconds(std::chrono::nanoseconds time) noexcept { return std::chrono::duration<double>(time).count(); }

}  // namespace

const sync::Word& GroupCore::word(int peer, Awaited what) const noexcept { return word_at(rank_, peer, what); }

const sync::Word& GroupCore::word_at(int owner, int peer, Awaited what) const noexcept {
  const sync::PeerLine& line = control(owner).from[idx(peer)];
  switch (what) {
    case Awaited::arrived:
      return line.arrived;
    case Awaited::finished:
      return line.finished;
    case Awaited::rounds:
      return line.rounds;
    case Awaited::taken:
      return line.taken;
  }
  return line.arrived;
}

bool GroupCore::is_word_there(sync::Word word, const Call& call, Awaited what, std::uint32_t count) const noexcept {
  switch (what) {
    case Awaited::arrived:
    case Awaited::finished: {
      // Greater or equal: a peer may be one call ahead already; waiting for equality would deadlock.
      const std::uint32_t epoch = faults_.is_epoch_stale() && what == Awaited::finished ? call.epoch - 1 : call.epoch;
      return sync::has_reached(word, generation_, epoch) || (epoch == 0 && word == 0);
    }
    case Awaited::rounds:
    case Awaited::taken:
      return sync::has_counted(word, generation_, call.epoch, count);
  }
  return false;
}

bool GroupCore::is_there(const Call& call, int peer, Awaited what, std::uint32_t count) const noexcept {
  return is_word_there(sync::load_acquire(word(peer, what)), call, what, count);
}

std::uint64_t GroupCore::wait(const Call& call, int peer, Awaited what, std::uint32_t count) {
  if (is_there(call, peer, what, count)) return 0;
  const auto start = base::Clock::now();
  for (int spin = 0; spin < policy_.num_spins; ++spin) {
    sync::pause();
    if (is_there(call, peer, what, count)) {
      return static_cast<std::uint64_t>((base::Clock::now() - start).count());
    }
  }
  stand_still(call, peer, what, count);
  return static_cast<std::uint64_t>((base::Clock::now() - start).count());
}

void GroupCore::stand_still(const Call& call, int peer, Awaited what, std::uint32_t count) {
  const auto& limit_ms = what == Awaited::arrived ? arrival_limit_ms_ : progress_limit_ms_;
  const base::Deadline deadline{std::chrono::milliseconds(limit_ms)};
  const auto is_ready = [&] { return is_there(call, peer, what, count); };
  for (int i = 0; i < policy_.num_yields; ++i) {
    sync::yield();
    if (is_ready()) return;
  }
  sync::ControlBlock& own = control(rank_);
  const sync::Standstill standstill{
      static_cast<std::uint8_t>(peer), static_cast<std::uint8_t>(what), call.epoch, count};
  sync::store_release(own.waiting_for, sync::encode(standstill));
  auto next_line = kFirstProgressLine;
  while (!is_ready()) {
    look_for_trouble(call, peer, what, count, deadline);
    if (what == Awaited::arrived && deadline.waited() >= next_line) {
      base::log().warn(describe_wait(call, peer, what, deadline.waited()));
      next_line *= 2;
    }
    sync::sleep_on(own.doorbell, policy_.max_sleep, is_ready);
  }
  sync::store_release(own.waiting_for, 0);
}

void GroupCore::look_for_trouble(
    const Call& call, int peer, Awaited what, std::uint32_t count, const base::Deadline& deadline) {
  look_for_aborts();
  const transport::PeerStatus status = transport_->peer_status(peer);
  if (status.state != transport::PeerState::alive && !is_there(call, peer, what, count)) {
    // A peer that gave up says why before it leaves: its cause counts, not its leaving.
    look_for_aborts();
    const std::string_view how = status.state == transport::PeerState::closed ? "left the group" : "died";
    poison(ErrorCode::peer_lost,
           peer,
           fmt::format("rank {} {} ({}) while rank {} waited for it {} in call {} ({})",
                       peer,
                       how,
                       status.reason,
                       rank_,
                       to_string(what),
                       call.epoch,
                       engine::to_string(call.operation)));
  }
  if (!deadline.is_over() || is_there(call, peer, what, count)) return;
  const int culprit = end_of_chain(peer);
  std::string text = describe_wait(call, peer, what, deadline.waited());
  if (culprit != peer) text += fmt::format("; rank {} itself waits for rank {}, where the chain ends", peer, culprit);
  poison(ErrorCode::timeout, culprit, text);
}

void GroupCore::look_for_aborts() {
  for (int peer = 0; peer < num_ranks_; ++peer) {
    if (peer == rank_) continue;
    const sync::Word word = sync::load_acquire(control(rank_).from[idx(peer)].aborted);
    if (word == 0) continue;
    const sync::Abort abort = sync::decode_abort(word);
    poison(static_cast<ErrorCode>(abort.code),
           abort.culprit,
           fmt::format("rank {} gave the group up: {}", peer, control(rank_).abort_cause[idx(peer)].view()));
  }
}

int GroupCore::end_of_chain(int peer) const noexcept {
  int at = peer;
  for (int hops = 0; hops < num_ranks_; ++hops) {
    const sync::Word waiting = sync::load_acquire(control(at).waiting_for);
    if (waiting == 0) return at;
    const sync::Standstill standstill = sync::decode_standstill(waiting);
    if (standstill.peer == rank_ || standstill.peer >= num_ranks_) return at;
    // A rank that was stopped says for ever that it waits. If what it waits for lies there, it is the one that stands
    // still.
    const auto what = static_cast<Awaited>(standstill.line_word);
    const Call call{standstill.epoch, sync::Operation::none, 0};
    if (is_word_there(sync::load_acquire(word_at(at, standstill.peer, what)), call, what, standstill.count)) return at;
    at = standstill.peer;
  }
  return peer;  // a ring of waiting ranks: nobody is the end
}

std::string GroupCore::describe_wait(const Call& call, int peer, Awaited what, std::chrono::nanoseconds waited) const {
  const sync::Word seen = sync::load_acquire(word(peer, what));
  const bool is_arrival = what == Awaited::arrived;
  return fmt::format(
      "rank {} has waited {:.1f} s for rank {} {} in call {} ({}): expected epoch {}, seen {} (word {:016x}); {} limit "
      "{} ms",
      rank_,
      seconds(waited),
      peer,
      to_string(what),
      call.epoch,
      engine::to_string(call.operation),
      call.epoch,
      static_cast<std::uint32_t>(seen >> 24),
      seen,
      is_arrival ? "arrival" : "progress",
      is_arrival ? arrival_limit_ms_.load() : progress_limit_ms_.load());
}

void GroupCore::poison(ErrorCode code, int culprit, const std::string& text) {
  Error error(code, text, culprit);
  if (!cause_) cause_ = error;
  const sync::Abort abort{generation_, epoch_, static_cast<std::uint8_t>(culprit), static_cast<std::uint8_t>(code)};
  for (int peer = 0; peer < num_ranks_; ++peer) {
    if (peer == rank_) continue;
    sync::ControlBlock& block = control(peer);
    if (sync::load_acquire(block.from[idx(rank_)].aborted) != 0) continue;  // sticky: the first cause stays
    block.abort_cause[idx(rank_)].set(text);
    sync::store_release(block.from[idx(rank_)].aborted, sync::encode(abort));
    sync::ring(block.doorbell);
  }
  throw error;
}

}  // namespace moebus::engine
