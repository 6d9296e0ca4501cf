// Dispatch: checks, tables, plan, then the rows by one of the ways in dispatch_paths.cpp and dispatch_rounds.cpp, and
// the result.

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "engine/arguments.hpp"
#include "engine/dispatch_state.hpp"
#include "engine/peers.hpp"

namespace moebus::engine {

using base::idx;
using sync::Field;

namespace {

// Marks the digest of a cached dispatch: a rank that sends its routing does not make the same call.
constexpr std::uint64_t kCachedMark = 0x5A5A5A5A5A5A5A5AULL;

// Spreads what identifies a dispatch over the bits of a digest.
constexpr std::uint64_t kIdSpread = 0x9E3779B97F4A7C15ULL;

}  // namespace

std::optional<Refusal> ExchangeCore::check_cached(const DispatchState& state) const {
  const HandleSlot& slot = *state.handle;
  if (!fits(slot)) {
    return Refusal{ErrorCode::invalid_argument,
                   "dispatch: handle belongs to an exchange with another plan (group, experts, top-k, tokens, layout, "
                   "capacity or seats differ); dispatch with topk_idx instead"};
  }
  if (slot.placement_digest != placement_digest_) {
    return Refusal{ErrorCode::invalid_argument,
                   "dispatch: handle is stale: the placement of experts was changed after its dispatch; dispatch with "
                   "topk_idx to get a new one"};
  }
  if (is_direct(shape_) && !slot.has_region) {
    return Refusal{
        ErrorCode::invalid_argument,
        "dispatch: handle was made by an exchange without direct delivery, so it holds no positions for this "
        "one; use a handle of direct delivery, or dispatch with topk_idx"};
  }
  if (state.input.topk_idx.is_given() || state.input.topk_weights.is_given()) {
    return Refusal{
        ErrorCode::invalid_argument,
        "dispatch: handle and topk_idx (or topk_weights) are both given; with a handle the routing is that of "
        "its dispatch: leave them empty"};
  }
  const std::int64_t num_tokens = state.input.tokens.num_dims > 0 ? state.input.tokens.shape[0] : 0;
  if (num_tokens != slot.send.num_tokens) {
    return Refusal{ErrorCode::invalid_argument,
                   fmt::format("dispatch: tokens has {} rows; the handle's dispatch had {}: give as many",
                               num_tokens,
                               slot.send.num_tokens)};
  }
  return check_dispatch_input(shape_, rank(), state.input);
}

std::optional<Refusal> ExchangeCore::take_routing(DispatchState& state) const {
  const DispatchInput& input = state.input;
  const auto num_tokens = static_cast<std::int32_t>(input.tokens.shape[0]);
  try {
    const auto bad =
        model::take_routing(shape_, input.topk_idx, input.topk_weights, num_tokens, state.handle->send, replica_rule_);
    if (!bad) return std::nullopt;
    return Refusal{
        ErrorCode::invalid_argument,
        fmt::format("dispatch: topk_idx of token {}, choice {} is {}; experts are 0 to {}, and -1 means none",
                    bad->token,
                    bad->choice,
                    bad->value,
                    shape_.config.num_experts - 1)};
  } catch (const std::exception& error) {
    // The caller's code; the other ranks wait for this one all the same.
    return Refusal{
        ErrorCode::invalid_argument,
        fmt::format("dispatch: the replica rule threw: {}; a rule must answer for every choice", error.what())};
  }
}

std::optional<Refusal> ExchangeCore::check_dispatch(DispatchState& state) {
  const DispatchInput& input = state.input;
  if (state.is_cached) {
    if (auto bad = check_cached(state)) return bad;
  } else {
    if (auto bad = check_dispatch_input(shape_, rank(), input)) return bad;
    if (state.handle == nullptr) {
      return Refusal{
          ErrorCode::resource_exhausted,
          fmt::format(
              "dispatch: all {} handles are held; let earlier handles and results go, or raise config.max_handles",
              handles_->size())};
    }
    if (auto bad = take_routing(state)) return bad;
  }
  if (input.output.tokens.is_given()) return std::nullopt;
  state.hold = is_direct(shape_) ? &context_->region_hold() : &context_->result_hold();
  if (state.hold->is_held) {
    return Refusal{
        ErrorCode::resource_exhausted,
        "dispatch: the previous result still holds the library's result memory; release() it, or pass output tensors"};
  }
  return std::nullopt;
}

DispatchResult ExchangeCore::dispatch(const DispatchInput& input) {
  post_dispatch(input);
  return wait_dispatch();
}

void ExchangeCore::post_dispatch(const DispatchInput& input) {
  check_prepared("dispatch");
  check_free("dispatch");
  start_dispatch(input, nullptr);
}

void ExchangeCore::start_dispatch(const DispatchInput& input, const CombineGradInput* gradient) {
  const auto start = base::Clock::now();
  dispatch_call_->renew();
  DispatchState& state = dispatch_call_->state;
  state.input = input;
  state.is_gradient = gradient != nullptr;
  state.is_cached = state.is_gradient || input.handle.slot_ != nullptr;
  state.handle = state.is_cached ? input.handle.slot_ : handles_->take();
  if (state.is_cached) hold(state.handle);
  state.hold = nullptr;
  state.refusal = state.is_gradient ? check_combine_backward(*gradient) : std::nullopt;
  if (!state.refusal) state.refusal = check_dispatch(state);
  post(*dispatch_call_, [&] { begin_dispatch(state); });
  stats_.dispatch.total_ns += static_cast<std::uint64_t>((base::Clock::now() - start).count());
}

DispatchResult ExchangeCore::wait_dispatch() {
  const auto start = base::Clock::now();
  end_dispatch_call();
  stats_.dispatch.total_ns += static_cast<std::uint64_t>((base::Clock::now() - start).count());
  dispatch_call_->rethrow();
  return *std::exchange(dispatch_call_->result, std::nullopt);
}

void ExchangeCore::end_dispatch_call() noexcept {
  complete(*dispatch_call_);
  DispatchState& state = dispatch_call_->state;
  let_go(std::exchange(state.handle, nullptr));
  state.input.handle = {};
}

void ExchangeCore::abandon_dispatch() noexcept {
  end_dispatch_call();
  dispatch_call_->result.reset();
}

void ExchangeCore::begin_dispatch(DispatchState& state) {
  const std::uint64_t id = state.is_cached && !state.refusal ? state.handle->id : 0;
  std::uint64_t digest = state.is_cached ? shape_.digest ^ kCachedMark ^ id : shape_.digest;
  if (state.is_gradient) digest ^= kGradientMark;
  state.call = context_->begin_call(
      is_throughput(shape_) ? sync::Operation::dispatch_throughput : sync::Operation::dispatch_latency,
      digest ^ placement_digest_);
  ++stats_.dispatch.calls;
  if (state.refusal) {
    state.call.is_refused = true;
    announce(state.call, &*state.refusal);
    return;
  }
  state.source = input_rows(state.input);
  state.is_planned = state.is_cached;
  state.next = {};
  state.flows.clear();
  choose_result_memory(state);
  if (!state.is_cached) {
    HandleSlot& slot = *state.handle;
    slot.group = group_.get();
    slot.placement_digest = placement_digest_;
    slot.has_region = false;
    slot.id = ((std::uint64_t{state.call.epoch} << 8) + static_cast<std::uint64_t>(context_->index()) + 1) * kIdSpread;
    model::plan_send(shape_, slot.send);
  }
  const auto& num_rows_to = state.handle->send.num_rows_to;
  const std::int64_t num_rows =
      std::accumulate(num_rows_to.begin(), num_rows_to.begin() + shape_.num_ranks, std::int64_t{0});
  state.stores = group_->backend().stores_for(idx(num_rows) * shape_.dispatch_row.payload_bytes);
  publish_tables(state);
  state.call.sends_ahead = !is_throughput(shape_);
  announce(state.call, nullptr);
  if (state.call.sends_ahead) send_latency_rows(state);
}

DispatchResult ExchangeCore::end_dispatch(DispatchState& state) {
  group_->check_usable();
  wait_for_arrivals(state.call, stats_.dispatch, stats_.dispatch_peers, state.refusal ? &*state.refusal : nullptr);
  if (!state.is_cached) {
    relay_tables(state);
    wait_for_relayed_tables(state);
  }
  if (is_throughput(shape_)) {
    dispatch_throughput(state);
  } else {
    take_latency_rows(state);
  }
  if (shape_.config.zero_padding) fill_padding(state);
  count_dispatch(state);
  return make_result(state);
}

void ExchangeCore::choose_result_memory(DispatchState& state) {
  if (state.input.output.tokens.is_given()) {
    state.tensors = state.input.output;
    state.sink = output_rows(shape_, state.tensors);
    return;
  }
  std::byte* memory = is_direct(shape_) ? region(rank()) : context_->results();
  state.tensors = result_tensors(shape_, result_layout_, rank(), memory);
  state.sink = result_rows(shape_, result_layout_, memory);
}

// --- Tables ---

void ExchangeCore::publish_tables(DispatchState& state) {
  const model::SendPlan& send = state.handle->send;
  CallStats& stats = stats_.dispatch;
  model::CallFacts told;
  told.num_tokens = send.num_tokens;
  told.granted_rows = shape_.capacity_rows;
  told.has_weights = send.has_weights ? 1 : 0;
  const bool has_counts = is_throughput(shape_) && !state.is_cached;
  if (has_counts) model::write_counts(shape_, send, scratch_.marks, scratch_.own_counts);
  // The counts are i32 and travel as bytes.
  const auto* own_counts = reinterpret_cast<const std::byte*>(scratch_.own_counts.data());
  const auto tell = [&](int peer) {
    told.num_rows = send.num_rows_to[idx(peer)];
    context_->write(peer,
                    facts(state.call, peer, rank()),
                    reinterpret_cast<const std::byte*>(&told),
                    offsetof(model::CallFacts, unused));
    if (has_counts) {
      context_->write(peer, counts(state.call, peer, rank()), own_counts, scratch_.own_counts.size_bytes());
    }
    if (peer == rank()) return;
    stats.bytes_control += sizeof(model::CallFacts) + sizeof(sync::Word) * 2;
    if (has_counts) stats.bytes_control += scratch_.own_counts.size_bytes();
    if (!state.is_cached) stats.bytes_control += idx(told.num_rows) * layout_.table_row.stride_bytes;
  };
  for_each_linked(tell);
  tell(rank());
  if (!state.is_cached) write_own_tables(state);
}

void ExchangeCore::write_own_tables(DispatchState& state) {
  const model::SendPlan& send = state.handle->send;
  std::array<std::byte*, kMaxRanks> tables{};
  for (int peer = 0; peer < shape_.num_ranks; ++peer) {
    const std::size_t bytes = idx(send.num_rows_to[idx(peer)]) * layout_.table_row.stride_bytes;
    const bool is_local = context_->is_mapped(peer) || bytes == 0;
    tables[idx(peer)] = is_local ? table(state.call, peer, rank()) : nullptr;
  }
  // Tables for peers that are not mapped are made here and put from the outbox.
  std::array<std::byte*, kMaxRanks> made{};
  std::size_t num_taken = 0;
  for_each_linked([&](int peer) {
    if (tables[idx(peer)] != nullptr) return;
    made[idx(peer)] = tables[idx(peer)] = scratch_.tables.data() + num_taken++ * layout_.table_stride;
  });
  model::write_tables(shape_, layout_.table_row, send, {tables.data(), idx(shape_.num_ranks)});
  for_each_linked([&](int peer) {
    if (made[idx(peer)] == nullptr) return;
    context_->outbox().write(peer,
                             table(state.call, peer, rank()),
                             made[idx(peer)],
                             idx(send.num_rows_to[idx(peer)]) * layout_.table_row.stride_bytes);
  });
}

void ExchangeCore::relay_tables(DispatchState& state) {
  if (!shape_.has_gateways) return;
  const model::RelayPlan& relay = state.handle->relay;
  for (const int src : relay.served) {
    // Their arrivals were waited for; everything that they told lies here.
    const model::CallFacts told = facts_of(state.call, src);
    const std::int32_t num_rows = std::clamp(told.num_rows, 0, shape_.config.max_tokens_per_rank);
    const std::size_t table_bytes = idx(num_rows) * layout_.table_row.stride_bytes;
    for_each_neighbour([&](int neighbour) {
      const auto forward = [&](std::byte* place, const std::byte* here, std::size_t size_bytes) {
        context_->write(neighbour, place, here, size_bytes);
      };
      forward(facts(state.call, neighbour, src), facts(state.call, rank(), src), offsetof(model::CallFacts, unused));
      forward(table(state.call, neighbour, src), table(state.call, rank(), src), table_bytes);
      // Empty on the latency path, as nobody counts there.
      const std::size_t counts_bytes = scratch_.own_counts.size_bytes();
      forward(counts(state.call, neighbour, src), counts(state.call, rank(), src), counts_bytes);
      stats_.dispatch.bytes_control += sizeof(model::CallFacts) + sizeof(sync::Word) * 2 + table_bytes + counts_bytes;
      context_->signal(state.call, neighbour, context_->on_behalf_of(src, Field::arrived));
    });
  }
}

void ExchangeCore::wait_for_relayed_tables(DispatchState& state) {
  for (int src = 0; src < shape_.num_ranks; ++src) {
    if (are_linked(src, rank())) continue;
    wait_for(state.call, context_->relayed(src, Field::arrived), 0, stats_.dispatch, stats_.dispatch_peers);
  }
}

void ExchangeCore::plan_from_tables(DispatchState& state) {
  HandleSlot& slot = *state.handle;
  for (int src = 0; src < shape_.num_ranks; ++src) {
    const model::CallFacts told = facts_of(state.call, src);
    // Written by a peer: never trusted beyond what the window holds.
    const std::int32_t num_rows = std::clamp(told.num_rows, 0, shape_.config.max_tokens_per_rank);
    state.tables[idx(src)] = {table(state.call, rank(), src), num_rows, told.has_weights != 0};
    slot.receive.num_tokens_of[idx(src)] = std::clamp(told.num_tokens, 0, shape_.config.max_tokens_per_rank);
  }
  const std::span<const model::TableView> tables(state.tables.data(), idx(shape_.num_ranks));
  model::plan_receive(shape_, layout_.table_row, rank(), tables, shape_.capacity_rows, slot.receive);
  model::plan_relay(shape_, layout_.table_row, tables, slot.relay);
  state.is_planned = true;
}

// --- Result ---

void ExchangeCore::fill_padding(DispatchState& state) {
  const model::ReceivePlan& receive = state.handle->receive;
  const int num_local = shape_.placement.num_local(rank());
  const auto zero = [&](std::int64_t first, std::int64_t end) {
    if (first < end) group_->backend().zero_rows(shape_.dispatch_row, state.sink, first, end - first);
  };
  if (shape_.config.layout == Layout::rank_major) {
    zero(receive.num_rows, shape_.capacity_rows);
    return;
  }
  for (int seat = 0; seat < num_local; ++seat) {
    const std::int64_t first = receive.offsets[idx(seat)] + receive.counts[idx(seat)];
    zero(first, std::min(receive.offsets[idx(seat) + 1], std::max(shape_.result_rows, first)));
  }
  if (shape_.config.layout == Layout::expert_major) zero(receive.num_rows, shape_.capacity_rows);
}

DispatchResult ExchangeCore::make_result(DispatchState& state) {
  HandleSlot* slot = std::exchange(state.handle, nullptr);
  const ExchangeConfig& config = shape_.config;
  const model::ReceivePlan& receive = slot->receive;
  const bool is_rank_major = config.layout == Layout::rank_major;
  const std::int64_t local = shape_.placement.num_local(rank());
  DispatchResult result;
  result.tokens = state.tensors.tokens;
  result.scales = state.tensors.scales;
  result.side = state.tensors.side;
  result.num_rows = receive.num_rows;
  result.num_overflowed = receive.num_overflowed;
  std::int64_t rows = shape_.result_rows;
  if (config.layout != Layout::expert_padded) {
    rows = receive.num_rows;
    result.tokens.shape[0] = rows;
    if (result.scales.is_given()) result.scales.shape[0] = rows;
    for (TensorView& side : result.side) {
      if (side.is_given()) side.shape[0] = rows;
    }
  }
  if (is_rank_major) {
    result.topk_idx = tensor_2d(receive.choice.data(), DType::i32, rows, config.num_topk);
    if (receive.has_weights) result.topk_weights = tensor_2d(receive.weight.data(), DType::f32, rows, config.num_topk);
    result.src_token = tensor_1d(receive.token.data(), DType::i32, rows);
  } else {
    if (receive.has_weights) result.topk_weights = tensor_1d(receive.result_weight.data(), DType::f32, rows);
    result.src_token = tensor_1d(receive.result_src_token.data(), DType::i32, rows);
  }
  result.src_rank = tensor_1d(receive.result_src_rank.data(), DType::i32, rows);
  result.counts = tensor_1d(receive.counts.data(), DType::i32, local);
  result.wanted = tensor_1d(receive.wanted.data(), DType::i32, local);
  if (!is_rank_major) result.offsets = tensor_1d(receive.offsets.data(), DType::i64, local + 1);
  result.rank_counts = tensor_1d(receive.rank_counts.data(), DType::i32, shape_.num_ranks);
  result.handle = DispatchHandle(slot);
  if (state.hold != nullptr) {
    state.hold->is_held = true;
    state.hold->keep_alive = group_;
    result.lease_ = ResultLease(state.hold);
  }
  return result;
}

void ExchangeCore::count_dispatch(const DispatchState& state) {
  const model::SendPlan& send = state.handle->send;
  const model::ReceivePlan& receive = state.handle->receive;
  const model::RelayPlan& relay = state.handle->relay;
  const auto count = [&](int peer, std::uint64_t sent, std::uint64_t received) {
    count_rows(
        stats_.dispatch_peers[idx(peer)], sent, received, peer == rank() ? 0 : shape_.dispatch_row.content_bytes);
  };
  for (int peer = 0; peer < shape_.num_ranks; ++peer) {
    std::uint64_t sent = static_cast<std::uint64_t>(send.num_rows_to[idx(peer)]);
    if (is_direct(shape_) && shape_.can_overflow && shape_.arrival_from(peer) == model::Arrival::straight) {
      const std::int32_t* positions =
          state.handle->region.positions.data() + idx(peer) * idx(shape_.config.max_tokens_per_rank);
      sent -= static_cast<std::uint64_t>(std::count(positions, positions + send.num_rows_to[idx(peer)], -1));
    }
    count(peer, sent, 0);
    // Rows come from whoever hands them over: the source, or the gateway for it.
    const bool is_linked = are_linked(peer, rank());
    const std::int32_t received =
        is_linked ? receive.num_table_rows[idx(peer)] : receive.first_row[idx(peer) + 1] - receive.first_row[idx(peer)];
    count(heard(peer, Field::finished).writer, 0, static_cast<std::uint64_t>(received));
  }
  if (!relay.served.empty()) {
    for_each_neighbour([&](int neighbour) { count(neighbour, model::count_relay_rows(relay, neighbour), 0); });
  }
  stats_.dispatch.rows_overflowed += static_cast<std::uint64_t>(receive.num_overflowed);
}

}  // namespace moebus::engine
