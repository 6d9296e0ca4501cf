// Latency path of dispatch: rows leave for their slots before anyone's routing is known, and are placed as they come.

#include <algorithm>

#include "engine/dispatch_state.hpp"
#include "engine/peers.hpp"

namespace moebus::engine {

using base::idx;
using model::RowMove;
using sync::Field;

SlotArray ExchangeCore::latency_slots(const Call& call, int at_rank, int of_rank) const noexcept {
  const std::int64_t tokens = shape_.config.max_tokens_per_rank;
  return {parity(call, at_rank) + layout_.slots_offset + idx(of_rank) * idx(tokens) * shape_.dispatch_row.stride_bytes,
          tokens};
}

void ExchangeCore::finish_to_links(const Call& call) {
  for_each_linked([&](int peer) { context_->signal(call, peer, context_->own(Field::finished)); });
}

void ExchangeCore::send_latency_rows(DispatchState& state) {
  const model::SendPlan& send = state.handle->send;
  if (group_->is_fence_skipped()) finish_to_links(state.call);
  // Rows leave before anyone's routing is known. As soon as it is, the own rows of a block are placed while the block
  // is in the caches; those of the blocks before wait until the end.
  state.first_placed = state.is_planned ? 0 : send.num_tokens;
  for (std::int64_t first = 0; first < send.num_tokens; first += kSendBlock) {
    const std::int64_t last = std::min<std::int64_t>(first + kSendBlock, send.num_tokens);
    send_latency_block(state, first, last);
    if (!state.is_planned && !shape_.has_gateways && has_everybody_arrived(state.call)) {
      plan_from_tables(state);
      state.first_placed = first;
    }
    if (state.is_planned) {
      place_own_rows(state, model::rows_of_tokens(state.handle->receive, rank(), first, last));
    }
  }
  finish_to_links(state.call);
}

bool ExchangeCore::has_everybody_arrived(const Call& call) {
  for (int peer = 0; peer < shape_.num_ranks; ++peer) {
    if (peer != rank() && !context_->is_there(call, Context::of(peer, Field::arrived))) return false;
  }
  for (int peer = 0; peer < shape_.num_ranks; ++peer) {
    // A refusal is for wait_for_arrivals to deal with.
    if (peer != rank() && context_->read_header(call, peer)) return false;
  }
  return true;
}

void ExchangeCore::send_latency_block(DispatchState& state, std::int64_t first, std::int64_t last) {
  const model::SendPlan& send = state.handle->send;
  const bool has_cast = shape_.config.cast != Cast::none;
  const SlotArray own = latency_slots(state.call, rank(), rank());
  const backend::RowArrays own_rows = slot_rows(shape_.dispatch_row, own.data, own.num);
  if (has_cast) {
    // Cast once, into the own window; copies go out from there.
    std::size_t num = 0;
    for (auto token = static_cast<std::int32_t>(first); token < last; ++token) {
      if (send.num_hops[idx(token)] > 0) scratch_.moves[num++] = {token, token};
    }
    group_->backend().place(
        shape_.dispatch_row, state.source, own_rows, scratch_.moves.first(num), backend::Stores::cached);
  }
  for_each_linked([&](int hop) {
    const std::span<const std::int32_t> tokens = send.tokens_for(shape_, hop);
    std::size_t num = 0;
    for (std::size_t& i = state.next[idx(hop)]; i < tokens.size() && tokens[i] < last; ++i) {
      scratch_.moves[num++] = {tokens[i], tokens[i]};
    }
    const backend::ConstRowArrays source = has_cast ? backend::ConstRowArrays(own_rows) : state.source;
    write_rows(hop, source, latency_slots(state.call, hop, rank()), scratch_.moves.first(num), has_cast, state.stores);
  });
}

void ExchangeCore::place_own_rows(DispatchState& state, model::RowRange rows) {
  const std::size_t num =
      model::list_moves(shape_, state.handle->receive, rows.first, rows.last, model::MoveSource::token, scratch_.moves);
  const std::span<const RowMove> moves = scratch_.moves.first(num);
  if (shape_.config.cast != Cast::none && !is_throughput(shape_)) {
    // Cast already, on the way to the peers.
    const SlotArray own = latency_slots(state.call, rank(), rank());
    group_->backend().copy_rows(
        shape_.dispatch_row, slot_rows(shape_.dispatch_row, own.data, own.num), state.sink, moves, state.stores);
  } else {
    group_->backend().place(shape_.dispatch_row, state.source, state.sink, moves, state.stores);
  }
}

void ExchangeCore::take_latency_rows(DispatchState& state) {
  if (!state.is_planned) plan_from_tables(state);
  const model::ReceivePlan& receive = state.handle->receive;
  place_own_rows(state, model::rows_of_tokens(receive, rank(), 0, state.first_placed));
  relay_latency_rows(state);
  for_each_peer(rank(), shape_.num_ranks, [&](int src) {
    wait_for(state.call, heard(src, Field::finished), 0, stats_.dispatch, stats_.dispatch_peers);
    const std::size_t num = model::list_moves(shape_,
                                              receive,
                                              receive.first_row[idx(src)],
                                              receive.first_row[idx(src) + 1],
                                              model::MoveSource::token,
                                              scratch_.moves);
    const SlotArray slots = latency_slots(state.call, rank(), src);
    group_->backend().copy_rows(shape_.dispatch_row,
                                slot_rows(shape_.dispatch_row, slots.data, slots.num),
                                state.sink,
                                scratch_.moves.first(num),
                                state.stores);
  });
}

void ExchangeCore::relay_latency_rows(DispatchState& state) {
  const model::RelayPlan& relay = state.handle->relay;
  for (int index = 0; index < relay.num_served(); ++index) {
    const int src = relay.served[idx(index)];
    wait_for(state.call, Context::of(src, Field::finished), 0, stats_.dispatch, stats_.dispatch_peers);
    const SlotArray here = latency_slots(state.call, rank(), src);
    const backend::RowArrays source = slot_rows(shape_.dispatch_row, here.data, here.num);
    for_each_neighbour([&](int neighbour) {
      const std::size_t num = model::list_forwards(relay,
                                                   index,
                                                   relay.first_row[idx(index)],
                                                   relay.first_row[idx(index) + 1],
                                                   neighbour,
                                                   model::MoveSource::token,
                                                   0,
                                                   scratch_.moves);
      write_rows(
          neighbour, source, latency_slots(state.call, neighbour, src), scratch_.moves.first(num), true, state.stores);
      // Only now: a neighbour that saw this word earlier would take rows that are not there (tests/model/gateway.pml).
      context_->signal(state.call, neighbour, context_->on_behalf_of(src, Field::finished));
    });
  }
}

}  // namespace moebus::engine
