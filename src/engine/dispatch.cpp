// Dispatch: tables first, then rows, then places; on both paths.

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "engine/arguments.hpp"
#include "engine/exchange_core.hpp"
#include "engine/peers.hpp"

namespace moebus::engine {

using base::idx;
using model::RowMove;

/// What one dispatch needs from step to step.
struct ExchangeCore::DispatchState {
  const DispatchInput& input;
  HandleSlot& handle;
  ResultHold* hold;        ///< library memory that the result will hold, or null
  DispatchOutput tensors;  ///< of the result
  backend::ConstRowArrays source;
  backend::RowArrays sink;
  CallPart part;
  backend::Stores stores;  ///< for rows of this call
  std::array<model::TableView, kMaxRanks> tables{};
};

namespace {

/// Gives a taken handle back unless the dispatch succeeds.
class HandleGuard {
 public:
  explicit HandleGuard(HandleSlot* slot) noexcept : slot_(slot) {}

  HandleGuard(const HandleGuard&) = delete;
  HandleGuard& operator=(const HandleGuard&) = delete;

  ~HandleGuard() { let_go(slot_); }

  [[nodiscard]] HandleSlot* get() const noexcept { return slot_; }

  [[nodiscard]] HandleSlot* release() noexcept { return std::exchange(slot_, nullptr); }

 private:
  HandleSlot* slot_;
};

bool is_throughput(const model::Shape& shape) noexcept { return shape.config.path == Path::throughput; }

bool is_direct(const model::Shape& shape) noexcept {
  return is_throughput(shape) && shape.config.delivery == Delivery::direct;
}

}  // namespace

std::optional<Refusal> ExchangeCore::check_dispatch(const DispatchInput& input, HandleSlot* slot, ResultHold*& hold) {
  if (auto bad = check_dispatch_input(shape_, rank(), input)) return bad;
  if (slot == nullptr) {
    return Refusal{
        ErrorCode::resource_exhausted,
        fmt::format(
            "dispatch: all {} handles are held; let earlier handles and results go, or raise config.max_handles",
            handles_->size())};
  }
  const auto num_tokens = static_cast<std::int32_t>(input.tokens.shape[0]);
  if (const auto bad = model::take_routing(shape_, input.topk_idx, input.topk_weights, num_tokens, slot->send)) {
    return Refusal{
        ErrorCode::invalid_argument,
        fmt::format("dispatch: topk_idx of token {}, choice {} is {}; experts are 0 to {}, and -1 means none",
                    bad->token,
                    bad->choice,
                    bad->value,
                    shape_.config.num_experts - 1)};
  }
  if (input.output.tokens.is_given()) return std::nullopt;
  hold = is_direct(shape_) ? &group_->region_hold() : &group_->result_hold();
  if (hold->is_held) {
    return Refusal{
        ErrorCode::resource_exhausted,
        "dispatch: the previous result still holds the library's result memory; release() it, or pass output tensors"};
  }
  return std::nullopt;
}

DispatchResult ExchangeCore::dispatch(const DispatchInput& input) {
  check_prepared("dispatch");
  const auto start = base::Clock::now();
  CallPart part{stats_.dispatch, stats_.dispatch_peers};
  HandleGuard guard(handles_->take());
  ResultHold* hold = nullptr;
  const std::optional<Refusal> refusal = check_dispatch(input, guard.get(), hold);
  const Call call = group_->begin_call(
      is_throughput(shape_) ? sync::Operation::dispatch_throughput : sync::Operation::dispatch_latency, shape_.digest);
  ++part.call.calls;
  if (refusal) {
    announce(call, &*refusal);
    wait_for_arrivals(call, part, &*refusal);
  }

  DispatchState state{input, *guard.get(), hold, {}, input_rows(input), {}, part, backend::Stores::cached, {}};
  choose_result_memory(state);
  model::plan_send(shape_, state.handle.send);
  const auto& num_rows_to = state.handle.send.num_rows_to;
  const std::int64_t num_rows =
      std::accumulate(num_rows_to.begin(), num_rows_to.begin() + shape_.num_ranks, std::int64_t{0});
  state.stores = group_->backend().stores_for(idx(num_rows) * shape_.dispatch_row.payload_bytes);
  publish_tables(call, state);
  announce(call, nullptr);
  if (is_direct(shape_)) {
    dispatch_direct(call, state);
  } else if (is_throughput(shape_)) {
    dispatch_staged(call, state);
  } else {
    dispatch_latency(call, state);
  }
  if (shape_.config.zero_padding) fill_padding(state);
  group_->at(Step::received);
  count_dispatch(state);
  part.call.total_ns += static_cast<std::uint64_t>((base::Clock::now() - start).count());
  return make_result(state, guard.release());
}

void ExchangeCore::choose_result_memory(DispatchState& state) {
  if (state.input.output.tokens.is_given()) {
    state.tensors = state.input.output;
    state.sink = output_rows(shape_, state.tensors);
    return;
  }
  std::byte* memory = is_direct(shape_) ? region(rank()) : group_->results();
  state.tensors = result_tensors(shape_, result_layout_, rank(), memory);
  state.sink = result_rows(shape_, result_layout_, memory);
}

void ExchangeCore::publish_tables(const Call& call, DispatchState& state) {
  const model::SendPlan& send = state.handle.send;
  std::array<std::byte*, kMaxRanks> tables{};
  for (int peer = 0; peer < shape_.num_ranks; ++peer) {
    model::CallFacts& told = facts(call, peer, rank());
    told.num_tokens = send.num_tokens;
    told.num_rows = send.num_rows_to[idx(peer)];
    told.granted_rows = shape_.capacity_rows;
    told.has_weights = send.has_weights ? 1 : 0;
    tables[idx(peer)] = table(call, peer, rank());
    state.part.call.bytes_control += peer == rank() ? 0
                                                    : sizeof(model::CallFacts) + sizeof(sync::Word) * 2 +
                                                          idx(told.num_rows) * layout_.table_row.stride_bytes;
  }
  model::write_tables(shape_, layout_.table_row, send, {tables.data(), idx(shape_.num_ranks)});
  if (is_throughput(shape_)) {
    model::write_counts(shape_, send, scratch_.marks, scratch_.own_counts);
    for (int peer = 0; peer < shape_.num_ranks; ++peer) {
      // The counts are i32 and travel as bytes.
      group_->backend().copy_bytes(reinterpret_cast<std::byte*>(counts(call, peer, rank())),
                                   reinterpret_cast<const std::byte*>(scratch_.own_counts.data()),
                                   scratch_.own_counts.size_bytes());
    }
    state.part.call.bytes_control += idx(shape_.num_ranks - 1) * scratch_.own_counts.size_bytes();
  }
  group_->at(Step::tables_written);
}

void ExchangeCore::plan_from_tables(const Call& call, DispatchState& state) {
  for (int src = 0; src < shape_.num_ranks; ++src) {
    const model::CallFacts& told = facts(call, rank(), src);
    // Written by a peer: never trusted beyond what the window holds.
    const std::int32_t num_rows = std::clamp(told.num_rows, 0, shape_.config.max_tokens_per_rank);
    state.tables[idx(src)] = {table(call, rank(), src), num_rows, told.has_weights != 0};
    state.handle.receive.num_tokens_of[idx(src)] = std::clamp(told.num_tokens, 0, shape_.config.max_tokens_per_rank);
  }
  model::plan_receive(shape_,
                      layout_.table_row,
                      rank(),
                      {state.tables.data(), idx(shape_.num_ranks)},
                      shape_.capacity_rows,
                      state.handle.receive);
}

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

// --- Results ---

void ExchangeCore::fill_padding(DispatchState& state) {
  const model::ReceivePlan& receive = state.handle.receive;
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

DispatchResult ExchangeCore::make_result(DispatchState& state, HandleSlot* slot) {
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
  const model::SendPlan& send = state.handle.send;
  const model::ReceivePlan& receive = state.handle.receive;
  for (int peer = 0; peer < shape_.num_ranks; ++peer) {
    PeerStats& stats = state.part.peers[idx(peer)];
    std::uint64_t sent = static_cast<std::uint64_t>(send.num_rows_to[idx(peer)]);
    if (is_direct(shape_) && shape_.can_overflow) {
      const std::int32_t* positions =
          scratch_.region.positions.data() + idx(peer) * idx(shape_.config.max_tokens_per_rank);
      sent -= static_cast<std::uint64_t>(std::count(positions, positions + send.num_rows_to[idx(peer)], -1));
    }
    const auto received = static_cast<std::uint64_t>(receive.first_row[idx(peer) + 1] - receive.first_row[idx(peer)]);
    stats.rows_sent += sent;
    stats.rows_received += received;
    if (peer == rank()) continue;
    stats.bytes_sent += sent * shape_.dispatch_row.content_bytes;
    stats.bytes_received += received * shape_.dispatch_row.content_bytes;
  }
  state.part.call.rows_overflowed += static_cast<std::uint64_t>(receive.num_overflowed);
}

}  // namespace moebus::engine
