// The ways a combine's rows take home: into slots on the latency path, in rounds on the throughput path; from other
// nodes through a gateway that adds them up.

#include <algorithm>

#include "engine/combine_state.hpp"
#include "engine/peers.hpp"

namespace moebus::engine {

using base::idx;
using sync::Field;

namespace {

/// Waits for another flow of this rank.
constexpr Blocker kOtherFlow{{}, 0, true};

}  // namespace

// --- Latency path ---

model::HomeSlots ExchangeCore::latency_home_slots(const Call& call, int home) const noexcept {
  return {parity(call, home) + layout_.slots_offset, shape_.config.max_tokens_per_rank, 0};
}

model::HomeSlots ExchangeCore::latency_relay_slots(const Call& call, int gateway, int home) const noexcept {
  const std::int64_t tokens = shape_.config.max_tokens_per_rank;
  const std::size_t of_home = idx(shape_.relay_slots_per_token) * idx(tokens) * shape_.combine_row.stride_bytes;
  return {parity(call, gateway) + layout_.relay_offset + relay_index_[idx(home)] * of_home, tokens, 0};
}

void ExchangeCore::push_latency_rows(CombineState& state) {
  const model::ReceivePlan& receive = state.handle->receive;
  const auto push = [&](int home) {
    const int target = target_of(home);
    const model::RowRange rows{receive.first_row[idx(home)], receive.first_row[idx(home) + 1]};
    const model::HomeSlots slots =
        target == home ? latency_home_slots(state.call, home) : latency_relay_slots(state.call, target, home);
    push_rows(state, home, rows, slots);
  };
  const auto finish = [&](int peer) { context_->signal(state.call, peer, context_->own(Field::finished)); };
  // Whom this rank's word reaches without a stop: everybody, or the neighbours, some of them as gateways.
  const auto for_each_told = [&](const auto& function) {
    for_each_peer(rank(), shape_.num_ranks, [&](int peer) {
      if (is_straight(peer)) function(peer);
    });
  };
  if (group_->is_fence_skipped()) for_each_told(finish);
  // Rows for far homes come first: the words that follow speak for them too.
  for_each_peer(rank(), shape_.num_ranks, [&](int home) {
    if (!is_straight(home)) push(home);
  });
  for_each_told([&](int home) {
    push(home);
    finish(home);
  });
  push(rank());
}

void ExchangeCore::end_latency(CombineState& state) {
  const auto wait_finished = [&](int peer) {
    wait_for(state.call, Context::of(peer, Field::finished), 0, stats_.combine, stats_.combine_peers);
  };
  if (!shape_.has_partial_sums) {
    for_each_peer(rank(), shape_.num_ranks, wait_finished);
  } else {
    const int node = shape_.topology.node_of(rank());
    for_each_neighbour(wait_finished);
    const model::RelayPlan& relay = state.handle->relay;
    for (int index = 0; index < relay.num_served(); ++index) {
      const int home = relay.served[idx(index)];
      relay_rows(state,
                 index,
                 {relay.first_row[idx(index)], relay.first_row[idx(index) + 1]},
                 latency_relay_slots(state.call, rank(), home),
                 latency_home_slots(state.call, home));
      context_->signal(state.call, home, context_->own(Field::finished));
    }
    for (int far = 0; far < shape_.topology.num_nodes(); ++far) {
      if (far != node) wait_finished(shape_.topology.gateway(rank(), far));
    }
  }
  sum_at_home(state, 0, state.handle->send.num_tokens, latency_home_slots(state.call, rank()));
}

// --- Throughput path: rounds of home tokens, the two halves of the stage take turns ---

model::HomeSlots ExchangeCore::round_home_slots(int home, std::int64_t round) const noexcept {
  const std::int64_t tokens = layout_.combine_round_tokens;
  const std::size_t half = idx(tokens) * idx(shape_.combine_slots_per_token) * shape_.combine_row.stride_bytes;
  return {stage(home) + idx(round % 2) * half, tokens, round * tokens};
}

model::HomeSlots ExchangeCore::round_relay_slots(int gateway, int home, std::int64_t round) const noexcept {
  const std::int64_t tokens = layout_.combine_round_tokens;
  const std::size_t half = idx(tokens) * idx(shape_.relay_slots_per_token) * shape_.combine_row.stride_bytes;
  const std::size_t share = std::size_t{relay_index_[idx(home)]} * 2 + idx(round % 2);
  return {stage(gateway) + layout_.relay_stage_offset + share * half, tokens, round * tokens};
}

void ExchangeCore::run_combine_rounds(CombineState& state) {
  const model::ReceivePlan& receive = state.handle->receive;
  const auto rounds_of = [&](int home) {
    return base::ceil_div(std::int64_t{receive.num_tokens_of[idx(home)]}, layout_.combine_round_tokens);
  };
  for_each_peer(rank(), shape_.num_ranks, [&](int home) { state.flows.add(Flow::Kind::send, home, rounds_of(home)); });
  state.flows.add(Flow::Kind::send, rank(), rounds_of(rank()));
  if (shape_.has_partial_sums) {
    const model::RelayPlan& relay = state.handle->relay;
    for (int index = 0; index < relay.num_served(); ++index) {
      state.flows.add(Flow::Kind::relay, index, rounds_of(relay.served[idx(index)]));
    }
  }
  state.flows.add(Flow::Kind::take, rank(), rounds_of(rank()));
  run_flows(
      state.flows,
      [&](const Flow& flow) { return blocker_of_combine(state, flow); },
      [&](const Flow& flow) { step_combine(state, flow); },
      [&](const Blocker& blocker, const auto& is_any_free) {
        wait_until(state.call, blocker, stats_.combine, stats_.combine_peers, is_any_free);
      });
}

std::optional<Blocker> ExchangeCore::blocker_of_combine(const CombineState& state, const Flow& flow) const {
  if (flow.kind == Flow::Kind::take) return blocker_of_sum(state, flow.next);
  if (flow.kind == Flow::Kind::relay) return blocker_of_relay(state, flow.peer, flow.next);
  if (flow.next < 2) return std::nullopt;
  const auto wanted = static_cast<std::uint32_t>(flow.next - 1);
  const int target = target_of(flow.peer);
  if (target == rank()) {
    // The half is free once the own sum, or the own relay, of two rounds ago was made.
    const auto kind = flow.peer == rank() ? Flow::Kind::take : Flow::Kind::relay;
    const int of = flow.peer == rank() ? rank() : relay_index_[idx(flow.peer)];
    if (state.flows.next_of(kind, of) >= flow.next - 1) return std::nullopt;
    return kOtherFlow;
  }
  const sync::WordName word =
      target == flow.peer ? Context::of(flow.peer, Field::taken) : context_->relayed(flow.peer, Field::taken);
  if (context_->is_there(state.call, word, wanted)) return std::nullopt;
  return Blocker{word, wanted};
}

std::optional<Blocker> ExchangeCore::blocker_of_sum(const CombineState& state, std::int64_t round) const {
  if (state.flows.next_of(Flow::Kind::send, rank()) <= round) return kOtherFlow;
  const auto count = static_cast<std::uint32_t>(round + 1);
  for (int peer = 0; peer < shape_.num_ranks; ++peer) {
    if (peer == rank() || !are_partners(peer)) continue;
    const sync::WordName word = Context::of(peer, Field::rounds);
    if (!context_->is_there(state.call, word, count)) return Blocker{word, count};
  }
  return std::nullopt;
}

std::optional<Blocker> ExchangeCore::blocker_of_relay(const CombineState& state, int index, std::int64_t round) const {
  const int home = state.handle->relay.served[idx(index)];
  if (state.flows.next_of(Flow::Kind::send, home) <= round) return kOtherFlow;
  const auto count = static_cast<std::uint32_t>(round + 1);
  for (const int neighbour : shape_.topology.ranks_of(shape_.topology.node_of(rank()))) {
    if (neighbour == rank()) continue;
    const sync::WordName word = Context::of_neighbour(home, neighbour, Field::rounds);
    if (!context_->is_there(state.call, word, count)) return Blocker{word, count};
  }
  if (round < 2) return std::nullopt;
  const sync::WordName taken = Context::of(home, Field::taken);
  if (!context_->is_there(state.call, taken, count - 2)) return Blocker{taken, count - 2};
  return std::nullopt;
}

bool ExchangeCore::are_partners(int peer) const noexcept {
  return is_straight(peer) || shape_.topology.gateway(rank(), shape_.topology.node_of(peer)) == peer;
}

void ExchangeCore::step_combine(CombineState& state, const Flow& flow) {
  const auto count = static_cast<std::uint32_t>(flow.next + 1);
  const std::int64_t first = flow.next * layout_.combine_round_tokens;
  const std::int64_t end = first + layout_.combine_round_tokens;
  switch (flow.kind) {
    case Flow::Kind::send: {
      const int home = flow.peer;
      const int target = target_of(home);
      const auto signal = [&] {
        if (target == rank()) return;
        const sync::WordName word =
            target == home ? context_->own(Field::rounds) : context_->at_gateway(home, Field::rounds);
        context_->signal(state.call, target, word, count);
      };
      if (group_->is_fence_skipped()) signal();
      const model::HomeSlots slots =
          target == home ? round_home_slots(home, flow.next) : round_relay_slots(target, home, flow.next);
      push_rows(state, home, model::rows_of_tokens(state.handle->receive, home, first, end), slots);
      signal();
      return;
    }
    case Flow::Kind::relay: {
      const int home = state.handle->relay.served[idx(flow.peer)];
      relay_rows(state,
                 flow.peer,
                 model::relay_rows_of_tokens(state.handle->relay, flow.peer, first, end),
                 round_relay_slots(rank(), home, flow.next),
                 round_home_slots(home, flow.next));
      context_->signal(state.call, home, context_->own(Field::rounds), count);
      for_each_neighbour([&](int neighbour) {
        context_->signal(state.call, neighbour, context_->on_behalf_of(home, Field::taken), count);
      });
      return;
    }
    case Flow::Kind::take:
      sum_at_home(state,
                  first,
                  std::min<std::int64_t>(end, state.handle->send.num_tokens),
                  round_home_slots(rank(), flow.next));
      for_each_peer(rank(), shape_.num_ranks, [&](int peer) {
        if (are_partners(peer)) context_->signal(state.call, peer, context_->own(Field::taken), count);
      });
      return;
  }
}

}  // namespace moebus::engine
