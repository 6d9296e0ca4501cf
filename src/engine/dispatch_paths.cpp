// The ways a dispatch's rows take: latency path, direct delivery, staged delivery.

#include <algorithm>

#include "engine/dispatch_state.hpp"
#include "engine/peers.hpp"

namespace moebus::engine {

using base::idx;
using model::RowMove;

// --- Latency path ---

backend::RowArrays ExchangeCore::latency_slots(const Call& call, int at_rank, int of_rank) const noexcept {
  const std::int64_t tokens = shape_.config.max_tokens_per_rank;
  std::byte* slots =
      parity(call, at_rank) + layout_.slots_offset + idx(of_rank) * idx(tokens) * shape_.dispatch_row.stride_bytes;
  return slot_rows(shape_.dispatch_row, slots, tokens);
}

void ExchangeCore::dispatch_latency(const Call& call, DispatchState& state) {
  const model::SendPlan& send = state.handle.send;
  const model::ReceivePlan& receive = state.handle.receive;
  if (group_->faults().is_fence_skipped()) {
    finish(call);
    group_->at(Step::finished);
  }
  // Rows leave before anyone's routing is known. As soon as it is, the own rows of a block are placed while the block
  // is in the caches; those of the blocks before wait until the end.
  std::array<std::size_t, kMaxRanks> next{};
  bool is_planned = false;
  std::int64_t first_placed = send.num_tokens;
  for (std::int64_t first = 0; first < send.num_tokens; first += kSendBlock) {
    const std::int64_t last = std::min<std::int64_t>(first + kSendBlock, send.num_tokens);
    send_latency_block(call, state, first, last, next);
    if (!is_planned && has_everybody_arrived(call)) {
      plan_from_tables(call, state);
      is_planned = true;
      first_placed = first;
    }
    if (is_planned) place_own_rows(call, state, model::rows_of_tokens(receive, rank(), first, last));
  }
  group_->at(Step::rows_written);
  finish(call);
  group_->at(Step::finished);
  if (!is_planned) {
    wait_for_arrivals(call, state.part, nullptr);
    plan_from_tables(call, state);
  }
  place_own_rows(call, state, model::rows_of_tokens(receive, rank(), 0, first_placed));
  for_each_peer(rank(), shape_.num_ranks, [&](int src) {
    wait_for(call, src, Awaited::finished, 0, state.part);
    const std::size_t num = model::list_moves(shape_,
                                              receive,
                                              receive.first_row[idx(src)],
                                              receive.first_row[idx(src) + 1],
                                              model::MoveSource::token,
                                              scratch_.moves);
    group_->backend().copy_rows(
        shape_.dispatch_row, latency_slots(call, rank(), src), state.sink, scratch_.moves.first(num), state.stores);
  });
}

bool ExchangeCore::has_everybody_arrived(const Call& call) {
  for (int peer = 0; peer < shape_.num_ranks; ++peer) {
    if (peer != rank() && !group_->is_there(call, peer, Awaited::arrived)) return false;
  }
  for (int peer = 0; peer < shape_.num_ranks; ++peer) {
    // A refusal is for wait_for_arrivals to deal with.
    if (peer != rank() && group_->read_header(call, peer)) return false;
  }
  return true;
}

void ExchangeCore::send_latency_block(const Call& call,
                                      DispatchState& state,
                                      std::int64_t first,
                                      std::int64_t last,
                                      std::array<std::size_t, kMaxRanks>& next) {
  const model::SendPlan& send = state.handle.send;
  const bool has_cast = shape_.config.cast != Cast::none;
  if (has_cast) {
    // Cast once, into the own window; copies go out from there.
    std::size_t num = 0;
    for (auto token = static_cast<std::int32_t>(first); token < last; ++token) {
      if (send.num_ranks[idx(token)] > 0) scratch_.moves[num++] = {token, token};
    }
    group_->backend().place(shape_.dispatch_row,
                            state.source,
                            latency_slots(call, rank(), rank()),
                            scratch_.moves.first(num),
                            backend::Stores::cached);
  }
  for_each_peer(rank(), shape_.num_ranks, [&](int dst) {
    const std::span<const std::int32_t> tokens = send.tokens_for(shape_, dst);
    std::size_t num = 0;
    for (std::size_t& i = next[idx(dst)]; i < tokens.size() && tokens[i] < last; ++i) {
      scratch_.moves[num++] = {tokens[i], tokens[i]};
    }
    const std::span<const RowMove> moves = scratch_.moves.first(num);
    const backend::RowArrays slots = latency_slots(call, dst, rank());
    if (has_cast) {
      group_->backend().copy_rows(shape_.dispatch_row, latency_slots(call, rank(), rank()), slots, moves, state.stores);
    } else {
      group_->backend().place(shape_.dispatch_row, state.source, slots, moves, state.stores);
    }
  });
}

void ExchangeCore::place_own_rows(const Call& call, DispatchState& state, model::RowRange rows) {
  const std::size_t num =
      model::list_moves(shape_, state.handle.receive, rows.first, rows.last, model::MoveSource::token, scratch_.moves);
  const std::span<const RowMove> moves = scratch_.moves.first(num);
  if (shape_.config.cast != Cast::none && shape_.config.path == Path::latency) {
    // Cast already, on the way to the peers.
    group_->backend().copy_rows(
        shape_.dispatch_row, latency_slots(call, rank(), rank()), state.sink, moves, state.stores);
  } else {
    group_->backend().place(shape_.dispatch_row, state.source, state.sink, moves, state.stores);
  }
}

// --- Throughput path, direct ---

void ExchangeCore::dispatch_direct(const Call& call, DispatchState& state) {
  wait_for_arrivals(call, state.part, nullptr);
  std::array<const std::int32_t*, kMaxRanks> all_counts{};
  std::array<std::int64_t, kMaxRanks> granted{};
  for (int peer = 0; peer < shape_.num_ranks; ++peer) {
    all_counts[idx(peer)] = counts(call, rank(), peer);
    granted[idx(peer)] = std::min(facts(call, rank(), peer).granted_rows, shape_.capacity_rows);
  }
  const std::size_t ranks = idx(shape_.num_ranks);
  model::plan_region(
      shape_, state.handle.send, rank(), {all_counts.data(), ranks}, {granted.data(), ranks}, scratch_.region);
  if (group_->faults().is_fence_skipped()) {
    finish(call);
    group_->at(Step::finished);
  }
  send_direct_rows(state);
  finish(call);
  group_->at(Step::finished);
  plan_from_tables(call, state);
  const model::ReceivePlan& receive = state.handle.receive;
  const auto fan_out = [&](int src) {
    const std::size_t num = model::list_fan_out(
        shape_, receive, receive.first_row[idx(src)], receive.first_row[idx(src) + 1], scratch_.moves);
    if (num > 0)
      group_->backend().copy_rows(shape_.dispatch_row, state.sink, state.sink, scratch_.moves.first(num), state.stores);
  };
  fan_out(rank());
  for_each_peer(rank(), shape_.num_ranks, [&](int src) {
    wait_for(call, src, Awaited::finished, 0, state.part);
    fan_out(src);
  });
}

void ExchangeCore::send_direct_rows(DispatchState& state) {
  const model::SendPlan& send = state.handle.send;
  const bool has_cast = shape_.config.cast != Cast::none;
  const backend::RowArrays cast_rows = slot_rows(shape_.dispatch_row, scratch_.cast_rows.data(), kSendBlock);
  std::array<std::size_t, kMaxRanks> next{};
  for (std::int64_t first = 0; first < send.num_tokens; first += kSendBlock) {
    const std::int64_t last = std::min<std::int64_t>(first + kSendBlock, send.num_tokens);
    if (has_cast) {
      std::size_t num = 0;
      for (std::int64_t token = first; token < last; ++token) {
        scratch_.moves[num++] = {static_cast<std::int32_t>(token), static_cast<std::int32_t>(token - first)};
      }
      group_->backend().place(
          shape_.dispatch_row, state.source, cast_rows, scratch_.moves.first(num), backend::Stores::cached);
    }
    const auto send_to = [&](int dst) {
      const std::span<const std::int32_t> tokens = send.tokens_for(shape_, dst);
      const std::int32_t* positions =
          scratch_.region.positions.data() + idx(dst) * idx(shape_.config.max_tokens_per_rank);
      std::size_t num = 0;
      for (std::size_t& i = next[idx(dst)]; i < tokens.size() && tokens[i] < last; ++i) {
        if (positions[i] < 0) continue;
        const auto from = has_cast ? static_cast<std::int32_t>(tokens[i] - first) : tokens[i];
        scratch_.moves[num++] = {from, positions[i]};
      }
      const backend::RowArrays sink = result_rows(shape_, result_layout_, region(dst));
      if (has_cast) {
        group_->backend().copy_rows(shape_.dispatch_row, cast_rows, sink, scratch_.moves.first(num), state.stores);
      } else {
        group_->backend().place(shape_.dispatch_row, state.source, sink, scratch_.moves.first(num), state.stores);
      }
    };
    for_each_peer(rank(), shape_.num_ranks, send_to);
    send_to(rank());
  }
  group_->at(Step::rows_written);
}

// --- Throughput path, staged ---

backend::RowArrays ExchangeCore::dispatch_round_slots(int at_rank, int of_rank, std::int64_t round) const noexcept {
  const std::size_t share = idx(of_rank) * 2 + idx(round % 2);
  std::byte* slots = stage(at_rank) + share * idx(layout_.dispatch_round_rows) * shape_.dispatch_row.stride_bytes;
  return slot_rows(shape_.dispatch_row, slots, layout_.dispatch_round_rows);
}

void ExchangeCore::dispatch_staged(const Call& call, DispatchState& state) {
  wait_for_arrivals(call, state.part, nullptr);
  plan_from_tables(call, state);
  place_own_rows(call, state, model::rows_of_tokens(state.handle.receive, rank(), 0, state.handle.send.num_tokens));
  const model::ReceivePlan& receive = state.handle.receive;
  // Sends of round r and takes of round r - 1 alternate, so both halves of a share are in use and nobody waits for
  // itself.
  std::int64_t most_rows = 0;
  for (int peer = 0; peer < shape_.num_ranks; ++peer) {
    if (peer == rank()) continue;
    most_rows = std::max<std::int64_t>(most_rows, state.handle.send.num_rows_to[idx(peer)]);
    most_rows = std::max<std::int64_t>(most_rows, receive.first_row[idx(peer) + 1] - receive.first_row[idx(peer)]);
  }
  const std::int64_t num_rounds = base::ceil_div(most_rows, layout_.dispatch_round_rows);
  for (std::int64_t round = 0; round <= num_rounds; ++round) {
    if (round < num_rounds) send_staged_round(call, state, round);
    if (round > 0) take_staged_round(call, state, round - 1);
  }
  finish(call);
  group_->at(Step::finished);
  wait_for_finishes(call, state.part);
}

void ExchangeCore::send_staged_round(const Call& call, DispatchState& state, std::int64_t round) {
  const model::SendPlan& send = state.handle.send;
  const std::int64_t most = layout_.dispatch_round_rows;
  for_each_peer(rank(), shape_.num_ranks, [&](int dst) {
    const std::span<const std::int32_t> tokens = send.tokens_for(shape_, dst);
    const std::int64_t first = round * most;
    if (first >= static_cast<std::int64_t>(tokens.size())) return;
    const std::int64_t last = std::min<std::int64_t>(first + most, static_cast<std::int64_t>(tokens.size()));
    // The half that this round goes to held round - 2.
    if (round >= 2) wait_for(call, dst, Awaited::taken, static_cast<std::uint32_t>(round - 1), state.part);
    const auto count = static_cast<std::uint32_t>(round + 1);
    if (group_->faults().is_fence_skipped()) {
      group_->signal_rounds(call, dst, count);
      group_->at(Step::finished);
    }
    for (std::int64_t i = first; i < last; ++i) {
      scratch_.moves[idx(i - first)] = {tokens[idx(i)], static_cast<std::int32_t>(i - first)};
    }
    group_->backend().place(shape_.dispatch_row,
                            state.source,
                            dispatch_round_slots(dst, rank(), round),
                            scratch_.moves.first(idx(last - first)),
                            backend::Stores::cached);
    group_->at(Step::rows_written);
    group_->signal_rounds(call, dst, count);
  });
}

void ExchangeCore::take_staged_round(const Call& call, DispatchState& state, std::int64_t round) {
  const model::ReceivePlan& receive = state.handle.receive;
  for_each_peer(rank(), shape_.num_ranks, [&](int src) {
    const std::int64_t begin = receive.first_row[idx(src)] + round * layout_.dispatch_round_rows;
    const std::int64_t end =
        std::min<std::int64_t>(begin + layout_.dispatch_round_rows, receive.first_row[idx(src) + 1]);
    if (begin >= end) return;
    wait_for(call, src, Awaited::rounds, static_cast<std::uint32_t>(round + 1), state.part);
    const std::size_t num = model::list_moves(shape_,
                                              receive,
                                              static_cast<std::int32_t>(begin),
                                              static_cast<std::int32_t>(end),
                                              model::MoveSource::wire_index,
                                              scratch_.moves);
    group_->backend().copy_rows(shape_.dispatch_row,
                                dispatch_round_slots(rank(), src, round),
                                state.sink,
                                scratch_.moves.first(num),
                                state.stores);
    group_->signal_taken(call, src, static_cast<std::uint32_t>(round + 1));
  });
}

}  // namespace moebus::engine
