// Throughput path of dispatch: counts and grants first, then rows straight to their final places, or in rounds through
// the stage: staged delivery, peers that are not mapped, and what gateways forward.

#include <algorithm>

#include "engine/dispatch_state.hpp"
#include "engine/peers.hpp"

namespace moebus::engine {

using base::idx;
using model::Arrival;
using sync::Field;

void ExchangeCore::dispatch_throughput(DispatchState& state) {
  // Nothing is written into a region before its owner's arrival, which grants it (tests/model/exchange.pml, NO_GRANT).
  if (is_direct(shape_) && !state.is_cached) plan_straight_rows(state);
  if (is_direct(shape_)) send_straight_rows(state);
  if (!state.is_planned) plan_from_tables(state);
  if (!is_direct(shape_)) {
    const std::int64_t num_tokens = state.handle->send.num_tokens;
    place_own_rows(state, model::rows_of_tokens(state.handle->receive, rank(), 0, num_tokens));
  }
  if (shape_.has_dispatch_rounds()) run_dispatch_rounds(state);
  if (is_direct(shape_)) take_straight_rows(state);
}

// --- Straight to final places ---

void ExchangeCore::plan_straight_rows(DispatchState& state) {
  std::array<const std::int32_t*, kMaxRanks> all_counts{};
  std::array<std::int64_t, kMaxRanks> granted{};
  for (int peer = 0; peer < shape_.num_ranks; ++peer) {
    // Laid out by model/layout: 64-byte aligned arrays of i32.
    all_counts[idx(peer)] = reinterpret_cast<const std::int32_t*>(counts(state.call, rank(), peer));
    granted[idx(peer)] = std::min(facts_of(state.call, peer).granted_rows, shape_.capacity_rows);
  }
  const std::size_t ranks = idx(shape_.num_ranks);
  model::plan_region(
      shape_, state.handle->send, rank(), {all_counts.data(), ranks}, {granted.data(), ranks}, state.handle->region);
  state.handle->has_region = true;
}

void ExchangeCore::send_straight_rows(DispatchState& state) {
  const model::SendPlan& send = state.handle->send;
  const bool has_cast = shape_.config.cast != Cast::none;
  const auto finish = [&] {
    for_each_peer(rank(), shape_.num_ranks, [&](int dst) {
      if (shape_.arrival_from(dst) == Arrival::straight) {
        context_->signal(state.call, dst, context_->own(Field::finished));
      }
    });
  };
  if (group_->is_fence_skipped()) finish();
  const backend::RowArrays cast_rows = slot_rows(shape_.dispatch_row, scratch_.cast_rows.data(), kSendBlock);
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
      if (shape_.arrival_from(dst) != Arrival::straight) return;
      const std::span<const std::int32_t> tokens = send.tokens_for(shape_, dst);
      const std::int32_t* positions =
          state.handle->region.positions.data() + idx(dst) * idx(shape_.config.max_tokens_per_rank);
      std::size_t num = 0;
      for (std::size_t& i = state.next[idx(dst)]; i < tokens.size() && tokens[i] < last; ++i) {
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
  finish();
}

void ExchangeCore::take_straight_rows(DispatchState& state) {
  const model::ReceivePlan& receive = state.handle->receive;
  const auto fan_out = [&](int src) {
    const std::size_t num = model::list_fan_out(
        shape_, receive, receive.first_row[idx(src)], receive.first_row[idx(src) + 1], scratch_.moves);
    if (num == 0) return;
    group_->backend().copy_rows(shape_.dispatch_row, state.sink, state.sink, scratch_.moves.first(num), state.stores);
  };
  fan_out(rank());
  for_each_peer(rank(), shape_.num_ranks, [&](int src) {
    if (shape_.arrival_from(src) != Arrival::straight) return;
    wait_for(state.call, Context::of(src, Field::finished), 0, stats_.dispatch, stats_.dispatch_peers);
    fan_out(src);
  });
}

// --- In rounds ---

SlotArray ExchangeCore::round_slots(int at_rank, int of_rank, std::int64_t round) const noexcept {
  const std::size_t share = idx(of_rank) * 2 + idx(round % 2);
  return {stage(at_rank) + share * idx(layout_.dispatch_round_rows) * shape_.dispatch_row.stride_bytes,
          layout_.dispatch_round_rows};
}

void ExchangeCore::run_dispatch_rounds(DispatchState& state) {
  const model::ReceivePlan& receive = state.handle->receive;
  const model::RelayPlan& relay = state.handle->relay;
  const auto rounds_of = [&](std::int64_t num_rows) { return base::ceil_div(num_rows, layout_.dispatch_round_rows); };
  for_each_linked([&](int dst) {
    if (shape_.arrival_from(dst) != Arrival::rounds) return;
    state.flows.add(Flow::Kind::send, dst, rounds_of(state.handle->send.num_rows_to[idx(dst)]));
  });
  for_each_peer(rank(), shape_.num_ranks, [&](int src) {
    if (shape_.arrival_from(src) != Arrival::rounds) return;
    // What passes through here is taken and forwarded in one step: its half is free only after both.
    const auto served = std::find(relay.served.begin(), relay.served.end(), src);
    const std::int64_t rounds = rounds_of(receive.num_table_rows[idx(src)]);
    if (served != relay.served.end()) {
      state.flows.add(Flow::Kind::relay, static_cast<int>(served - relay.served.begin()), rounds);
    } else {
      state.flows.add(Flow::Kind::take, src, rounds);
    }
  });
  run_flows(
      state.flows,
      [&](const Flow& flow) { return blocker_of_dispatch(state, flow); },
      [&](const Flow& flow) { step_dispatch(state, flow); },
      [&](const Blocker& blocker, const auto& is_any_free) {
        wait_until(state.call, blocker, stats_.dispatch, stats_.dispatch_peers, is_any_free);
      });
}

std::optional<Blocker> ExchangeCore::blocker_of_dispatch(const DispatchState& state, const Flow& flow) const {
  const auto count = static_cast<std::uint32_t>(flow.next + 1);
  const auto missing = [&](const sync::WordName& word, std::uint32_t wanted) -> std::optional<Blocker> {
    if (context_->is_there(state.call, word, wanted)) return std::nullopt;
    return Blocker{word, wanted};
  };
  switch (flow.kind) {
    case Flow::Kind::send:
      // The half that this round goes to held round - 2.
      return flow.next < 2 ? std::nullopt : missing(Context::of(flow.peer, Field::taken), count - 2);
    case Flow::Kind::take:
      return missing(heard(flow.peer, Field::rounds), count);
    case Flow::Kind::relay:
      break;
  }
  const int src = state.handle->relay.served[idx(flow.peer)];
  if (auto blocker = missing(Context::of(src, Field::rounds), count)) return blocker;
  if (flow.next < 2) return std::nullopt;
  for (const int neighbour : shape_.topology.ranks_of(shape_.topology.node_of(rank()))) {
    if (neighbour == rank()) continue;
    if (auto blocker = missing(Context::of_neighbour(src, neighbour, Field::taken), count - 2)) return blocker;
  }
  return std::nullopt;
}

void ExchangeCore::step_dispatch(DispatchState& state, const Flow& flow) {
  const auto count = static_cast<std::uint32_t>(flow.next + 1);
  switch (flow.kind) {
    case Flow::Kind::send:
      send_round(state, flow.peer, flow.next);
      return;
    case Flow::Kind::take:
      take_round(state, flow.peer, flow.next);
      if (are_linked(flow.peer, rank())) {
        context_->signal(state.call, flow.peer, context_->own(Field::taken), count);
      } else {
        const int gateway = heard(flow.peer, Field::rounds).writer;
        context_->signal(state.call, gateway, context_->at_gateway(flow.peer, Field::taken), count);
      }
      return;
    case Flow::Kind::relay: {
      const int src = state.handle->relay.served[idx(flow.peer)];
      take_round(state, src, flow.next);
      forward_round(state, flow.peer, flow.next);
      context_->signal(state.call, src, context_->own(Field::taken), count);
      return;
    }
  }
}

void ExchangeCore::send_round(DispatchState& state, int dst, std::int64_t round) {
  const std::span<const std::int32_t> tokens = state.handle->send.tokens_for(shape_, dst);
  const std::int64_t first = round * layout_.dispatch_round_rows;
  const std::int64_t last =
      std::min<std::int64_t>(first + layout_.dispatch_round_rows, static_cast<std::int64_t>(tokens.size()));
  const auto signal = [&] {
    context_->signal(state.call, dst, context_->own(Field::rounds), static_cast<std::uint32_t>(round + 1));
  };
  if (group_->is_fence_skipped()) signal();
  for (std::int64_t i = first; i < last; ++i) {
    scratch_.moves[idx(i - first)] = {tokens[idx(i)], static_cast<std::int32_t>(i - first)};
  }
  write_rows(dst,
             state.source,
             round_slots(dst, rank(), round),
             scratch_.moves.first(idx(last - first)),
             false,
             backend::Stores::cached);
  signal();
}

void ExchangeCore::take_round(DispatchState& state, int src, std::int64_t round) {
  const model::ReceivePlan& receive = state.handle->receive;
  const std::int64_t first = round * layout_.dispatch_round_rows;
  const model::RowRange rows = model::rows_of_round(receive, src, first, first + layout_.dispatch_round_rows);
  const std::size_t num =
      model::list_moves(shape_, receive, rows.first, rows.last, model::MoveSource::round, scratch_.moves, first);
  const SlotArray slots = round_slots(rank(), src, round);
  group_->backend().copy_rows(shape_.dispatch_row,
                              slot_rows(shape_.dispatch_row, slots.data, slots.num),
                              state.sink,
                              scratch_.moves.first(num),
                              state.stores);
}

void ExchangeCore::forward_round(DispatchState& state, int index, std::int64_t round) {
  const model::RelayPlan& relay = state.handle->relay;
  const int src = relay.served[idx(index)];
  const std::int64_t first = round * layout_.dispatch_round_rows;
  const std::int32_t begin = relay.first_row[idx(index)] + static_cast<std::int32_t>(first);
  const std::int32_t end =
      std::min(begin + static_cast<std::int32_t>(layout_.dispatch_round_rows), relay.first_row[idx(index) + 1]);
  const SlotArray here = round_slots(rank(), src, round);
  const backend::RowArrays source = slot_rows(shape_.dispatch_row, here.data, here.num);
  for_each_neighbour([&](int neighbour) {
    const std::size_t num =
        model::list_forwards(relay, index, begin, end, neighbour, model::MoveSource::round, first, scratch_.moves);
    write_rows(neighbour,
               source,
               round_slots(neighbour, src, round),
               scratch_.moves.first(num),
               true,
               backend::Stores::cached);
    context_->signal(
        state.call, neighbour, context_->on_behalf_of(src, Field::rounds), static_cast<std::uint32_t>(round + 1));
  });
}

}  // namespace moebus::engine
