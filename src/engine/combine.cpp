// Combine: owners push rows (summed, or as they are) into slots of the tokens' home, home adds them up; on both paths.

#include <fmt/format.h>

#include <algorithm>

#include "engine/arguments.hpp"
#include "engine/exchange_core.hpp"
#include "engine/peers.hpp"

namespace moebus::engine {

using base::idx;

/// What one combine needs from step to step.
struct ExchangeCore::CombineState {
  const CombineInput& input;
  const HandleSlot& handle;
  CallPart part;
  model::RowsView rows{};
  model::LaneView lane{};
  std::byte* output = nullptr;
  std::int64_t output_stride = 0;
  TensorView tensor{};             ///< of the result
  bool have_weights_come = false;  ///< with the combine, from the homes to the owners
  const Call* call = nullptr;
  std::int64_t num_incomplete = 0;
  backend::Stores push_stores = backend::Stores::cached;  ///< into slots of the homes
  backend::Stores home_stores = backend::Stores::cached;  ///< into the result
};

namespace {

bool is_per_expert(const model::Shape& shape) noexcept { return shape.config.combine_rows == CombineRows::per_expert; }

/// True if rows travel as the caller gave them, and home reads its own where they lie.
bool moves_rows(const model::Shape& shape) noexcept {
  return shape.config.layout == Layout::rank_major || is_per_expert(shape);
}

}  // namespace

std::optional<Refusal> ExchangeCore::check_combine(const CombineInput& input, const HandleSlot* slot) const {
  if (slot == nullptr) {
    return Refusal{ErrorCode::invalid_argument,
                   "combine: handle is empty; pass the handle of a DispatchResult of this exchange"};
  }
  if (!handles_->owns(slot)) {
    return Refusal{ErrorCode::invalid_argument,
                   "combine: handle belongs to another exchange; pass one of this exchange's dispatches"};
  }
  if (auto bad = check_combine_input(shape_, rank(), slot->receive.num_rows, slot->send.num_tokens, input)) return bad;
  if (input.weighting == Weighting::dispatched) {
    // Where there is nothing to weigh, no weights are missing.
    const bool has_weights = is_per_expert(shape_)
                                 ? slot->send.has_weights || slot->send.num_tokens == 0
                                 : slot->receive.has_weights || slot->receive.first_row[idx(shape_.num_ranks)] == 0;
    if (!has_weights) {
      return Refusal{
          ErrorCode::invalid_argument,
          "combine: weighting is dispatched, but no weights (or not by every rank) were given to that dispatch: give "
          "topk_weights to dispatch, or use weighting given"};
    }
  }
  if (shape_.config.caller_results && !input.output.is_given()) {
    return Refusal{ErrorCode::invalid_argument, "combine: output is not given; config.caller_results promised it"};
  }
  return std::nullopt;
}

CombineResult ExchangeCore::combine(const CombineInput& input) {
  check_prepared("combine");
  const auto start = base::Clock::now();
  const bool is_throughput = shape_.config.path == Path::throughput;
  CallPart part{stats_.combine, stats_.combine_peers};
  const HandleSlot* slot = input.handle.slot_;
  const std::optional<Refusal> refusal = check_combine(input, slot);
  const Call call = group_->begin_call(
      is_throughput ? sync::Operation::combine_throughput : sync::Operation::combine_latency, shape_.digest);
  ++part.call.calls;
  if (refusal) {
    announce(call, &*refusal);
    wait_for_arrivals(call, part, &*refusal);
  }
  CombineState state{input, *slot, part};
  state.call = &call;
  lay_out(state);
  publish_weights(call, state);
  announce(call, nullptr);
  if (is_throughput) {
    combine_throughput(call, state);
  } else {
    combine_latency(call, state);
  }
  group_->at(Step::received);
  count_combine(state);
  part.call.total_ns += static_cast<std::uint64_t>((base::Clock::now() - start).count());
  return make_result(state);
}

void ExchangeCore::lay_out(CombineState& state) {
  const CombineInput& input = state.input;
  const auto size = static_cast<std::int64_t>(size_of(shape_.combine_row.dtype));
  const bool is_padded = shape_.config.layout == Layout::expert_padded;
  state.rows = {input.rows.data, (is_padded ? input.rows.stride[1] : input.rows.stride[0]) * size};
  if (input.lane.is_given()) {
    state.lane = {input.lane.data, input.lane.stride[0] * static_cast<std::int64_t>(sizeof(float))};
  }
  const std::int64_t num_tokens = state.handle.send.num_tokens;
  state.tensor =
      input.output.is_given()
          ? input.output
          : tensor_2d(group_->combine_results(), shape_.combine_row.dtype, num_tokens, shape_.combine_row.hidden);
  const std::size_t row_bytes = shape_.combine_row.payload_bytes;
  state.home_stores = group_->backend().stores_for(idx(num_tokens) * row_bytes);
  // Rounds stay in the caches by their size; what they hold is read at once.
  if (shape_.config.path == Path::latency) {
    state.push_stores = group_->backend().stores_for(idx(state.handle.receive.num_wire_rows(shape_)) * row_bytes);
  }
  state.output = state.tensor.data;
  state.output_stride = state.tensor.stride[0] * size;
}

void ExchangeCore::publish_weights(const Call& call, CombineState& state) {
  state.have_weights_come = state.input.weighting == Weighting::given && !is_per_expert(shape_);
  if (!state.have_weights_come) return;
  const std::size_t bytes = idx(state.handle.send.num_tokens) * idx(shape_.config.num_topk) * sizeof(float);
  for (int peer = 0; peer < shape_.num_ranks; ++peer) {
    if (bytes > 0) group_->backend().copy_bytes(table(call, peer, rank()), state.input.topk_weights.data, bytes);
    if (peer != rank()) state.part.call.bytes_control += bytes;
  }
  group_->at(Step::tables_written);
}

// --- Latency path ---

void ExchangeCore::combine_latency(const Call& call, CombineState& state) {
  const model::ReceivePlan& receive = state.handle.receive;
  const auto slots_at = [&](int home) {
    return model::HomeSlots{parity(call, home) + layout_.slots_offset, shape_.config.max_tokens_per_rank, 0};
  };
  const auto rows_of = [&](int home) {
    return model::RowRange{receive.first_row[idx(home)], receive.first_row[idx(home) + 1]};
  };
  if (state.have_weights_come) wait_for_arrivals(call, state.part, nullptr);
  if (group_->faults().is_fence_skipped()) {
    finish(call);
    group_->at(Step::finished);
  }
  for_each_peer(rank(), shape_.num_ranks, [&](int home) {
    push_rows(state, home, rows_of(home), slots_at(home));
    group_->at(Step::rows_written);
    group_->signal_finished(call, home);
  });
  group_->at(Step::finished);
  push_rows(state, rank(), rows_of(rank()), slots_at(rank()));
  if (!state.have_weights_come) wait_for_arrivals(call, state.part, nullptr);
  wait_for_finishes(call, state.part);
  sum_at_home(state, 0, state.handle.send.num_tokens, slots_at(rank()));
}

// --- Throughput path ---

void ExchangeCore::combine_throughput(const Call& call, CombineState& state) {
  wait_for_arrivals(call, state.part, nullptr);
  const model::ReceivePlan& receive = state.handle.receive;
  const std::int64_t most = layout_.combine_round_tokens;
  const auto rounds_of = [&](int home) { return base::ceil_div(std::int64_t{receive.num_tokens_of[idx(home)]}, most); };
  std::int64_t num_rounds = 0;
  for (int home = 0; home < shape_.num_ranks; ++home) num_rounds = std::max(num_rounds, rounds_of(home));
  // Round r goes out while round r - 1 is added up: the two halves of the stage take turns, acknowledged by `taken`.
  for (std::int64_t round = 0; round <= num_rounds; ++round) {
    if (round < num_rounds) {
      for_each_peer(rank(), shape_.num_ranks, [&](int home) {
        if (round < rounds_of(home)) push_round(call, state, home, round);
      });
      if (round < rounds_of(rank())) push_round(call, state, rank(), round);
    }
    if (round > 0 && round - 1 < rounds_of(rank())) sum_round(call, state, round - 1);
  }
  finish(call);
  group_->at(Step::finished);
  wait_for_finishes(call, state.part);
}

model::HomeSlots ExchangeCore::combine_round_slots(int home, std::int64_t round) const noexcept {
  const std::int64_t tokens = layout_.combine_round_tokens;
  const std::size_t half = idx(tokens) * idx(shape_.combine_slots_per_token) * shape_.combine_row.stride_bytes;
  return {stage(home) + idx(round % 2) * half, tokens, round * tokens};
}

void ExchangeCore::push_round(const Call& call, CombineState& state, int home, std::int64_t round) {
  const std::int64_t first = round * layout_.combine_round_tokens;
  const model::RowRange rows =
      model::rows_of_tokens(state.handle.receive, home, first, first + layout_.combine_round_tokens);
  const auto count = static_cast<std::uint32_t>(round + 1);
  if (home != rank()) {
    if (round >= 2) wait_for(call, home, Awaited::taken, count - 2, state.part);
    if (group_->faults().is_fence_skipped()) {
      group_->signal_rounds(call, home, count);
      group_->at(Step::finished);
    }
  }
  push_rows(state, home, rows, combine_round_slots(home, round));
  if (home == rank()) return;
  group_->at(Step::rows_written);
  group_->signal_rounds(call, home, count);
}

void ExchangeCore::sum_round(const Call& call, CombineState& state, std::int64_t round) {
  const std::int64_t first = round * layout_.combine_round_tokens;
  const std::int64_t last = std::min<std::int64_t>(first + layout_.combine_round_tokens, state.handle.send.num_tokens);
  const auto count = static_cast<std::uint32_t>(round + 1);
  for (int owner = 0; owner < shape_.num_ranks; ++owner) {
    if (owner != rank()) wait_for(call, owner, Awaited::rounds, count, state.part);
  }
  sum_at_home(state, first, last, combine_round_slots(rank(), round));
  for_each_peer(rank(), shape_.num_ranks, [&](int owner) { group_->signal_taken(call, owner, count); });
}

// --- Rows ---

void ExchangeCore::push_rows(CombineState& state, int home, model::RowRange rows, const model::HomeSlots& slots) {
  if (home == rank() && moves_rows(shape_)) return;
  const model::CombineRowFormat& format = shape_.combine_row;
  // Weights that came with the combine lie in this call's tables, [tokens of the home, K] f32.
  const float* home_weights =
      state.have_weights_come ? reinterpret_cast<const float*>(table(*state.call, rank(), home)) : nullptr;
  for (std::int32_t first = rows.first; first < rows.last; first += kSumBlock) {
    const model::RowRange block{first, std::min<std::int32_t>(first + kSumBlock, rows.last)};
    if (moves_rows(shape_)) {
      const std::size_t num = model::list_owner_moves(shape_, state.handle.receive, block, slots, scratch_.moves);
      group_->backend().copy_slots(state.rows.data,
                                   state.rows.stride_bytes,
                                   slots.data,
                                   static_cast<std::int64_t>(format.stride_bytes),
                                   format.payload_bytes,
                                   scratch_.moves.first(num),
                                   state.push_stores);
    } else {
      model::list_owner_sums(shape_, state.handle.receive, block, state.rows, home_weights, slots, scratch_.terms);
      backend::SumJob job;
      job.dtype = format.dtype;
      job.hidden = format.hidden;
      job.num_outputs = block.last - block.first;
      job.first = scratch_.terms.first.data();
      job.term = scratch_.terms.term.data();
      job.weight = state.input.weighting != Weighting::none ? scratch_.terms.weight.data() : nullptr;
      job.output_row = scratch_.terms.output_row.data();
      job.stores = state.push_stores;
      group_->backend().sum(job);
    }
    model::write_tails(shape_, state.handle.receive, block, state.lane, slots);
  }
}

void ExchangeCore::sum_at_home(CombineState& state,
                               std::int64_t first_token,
                               std::int64_t last_token,
                               const model::HomeSlots& slots) {
  const CombineInput& input = state.input;
  const model::SendPlan& send = state.handle.send;
  const float* weights = nullptr;
  if (is_per_expert(shape_) && input.weighting == Weighting::dispatched) weights = send.weights.data();
  // [tokens, K] f32, contiguous: checked with the arguments.
  if (is_per_expert(shape_) && input.weighting == Weighting::given) {
    weights = reinterpret_cast<const float*>(input.topk_weights.data);
  }
  const auto size = static_cast<std::int64_t>(size_of(shape_.combine_row.dtype));
  for (std::int64_t first = first_token; first < last_token; first += kSumBlock) {
    const std::int64_t last = std::min(first + kSumBlock, last_token);
    model::list_home_sums(
        shape_, send, state.handle.receive, rank(), first, last, state.rows, weights, slots, scratch_.terms);
    backend::SumJob job;
    job.dtype = shape_.combine_row.dtype;
    job.hidden = shape_.combine_row.hidden;
    job.num_outputs = last - first;
    job.first = scratch_.terms.first.data();
    job.term = scratch_.terms.term.data();
    job.weight = weights != nullptr ? scratch_.terms.weight.data() : nullptr;
    for (std::size_t b = 0; b < input.bias.size(); ++b) {
      if (!input.bias[b].is_given()) continue;
      job.bias_stride_bytes[b] = input.bias[b].stride[0] * size;
      job.bias[b] = input.bias[b].data + first * job.bias_stride_bytes[b];
    }
    job.output = state.output + first * state.output_stride;
    job.output_stride_bytes = state.output_stride;
    job.stores = state.home_stores;
    group_->backend().sum(job);
  }
  if (!input.lane.is_given() && !shape_.can_overflow) return;
  state.num_incomplete += model::read_tails(shape_,
                                            send,
                                            state.handle.receive,
                                            rank(),
                                            first_token,
                                            last_token,
                                            state.lane,
                                            slots,
                                            input.lane.is_given() ? scratch_.lane.data() : nullptr,
                                            shape_.can_overflow ? scratch_.missing.data() : nullptr);
}

CombineResult ExchangeCore::make_result(CombineState& state) {
  const std::int64_t num_tokens = state.handle.send.num_tokens;
  CombineResult result;
  result.tokens = state.tensor;
  if (state.input.lane.is_given()) {
    result.lane = tensor_2d(scratch_.lane.data(), DType::f32, num_tokens, shape_.config.num_topk);
  }
  if (shape_.can_overflow) result.missing = tensor_1d(scratch_.missing.data(), DType::i64, num_tokens);
  result.num_incomplete = state.num_incomplete;
  return result;
}

namespace {

/// Counts the rows that come home from each owner: one per (token, owner), or per (token, expert). Rows that a capacity
/// dropped do not come, where rows travel as the caller gave them; `missing` tells which, null = none.
std::array<std::uint64_t, kMaxRanks> count_returned(const model::Shape& shape,
                                                    const model::SendPlan& send,
                                                    const std::uint64_t* missing) noexcept {
  std::array<std::uint64_t, kMaxRanks> rows{};
  if (!is_per_expert(shape) && (missing == nullptr || shape.config.layout != Layout::rank_major)) {
    for (int owner = 0; owner < shape.num_ranks; ++owner) {
      rows[idx(owner)] = static_cast<std::uint64_t>(send.num_rows_to[idx(owner)]);
    }
    return rows;
  }
  const std::size_t topk = idx(shape.config.num_topk);
  for (std::size_t token = 0; token < idx(send.num_tokens); ++token) {
    const std::int32_t* ids = send.ids.data() + token * topk;
    std::uint64_t seen = 0;  // owners, in rank_major
    for (std::size_t k = 0; k < topk; ++k) {
      if (ids[k] < 0 || (missing != nullptr && (missing[token] >> k & 1) != 0)) continue;
      const std::size_t owner = shape.owner[idx(ids[k]) + 1];
      const bool is_repeat =
          is_per_expert(shape) ? std::find(ids, ids + k, ids[k]) != ids + k : (seen >> owner & 1) != 0;
      seen |= std::uint64_t{1} << owner;
      if (!is_repeat) ++rows[owner];
    }
  }
  return rows;
}

}  // namespace

void ExchangeCore::count_combine(const CombineState& state) {
  const model::SendPlan& send = state.handle.send;
  const model::ReceivePlan& receive = state.handle.receive;
  const std::size_t topk = idx(shape_.config.num_topk);
  const std::size_t bytes =
      shape_.combine_row.payload_bytes + (state.input.lane.is_given() ? shape_.combine_row.lane_bytes : 0);
  const auto returned = count_returned(shape_, send, shape_.can_overflow ? scratch_.missing.data() : nullptr);
  for (int peer = 0; peer < shape_.num_ranks; ++peer) {
    PeerStats& stats = state.part.peers[idx(peer)];
    std::uint64_t sent = static_cast<std::uint64_t>(receive.first_row[idx(peer) + 1] - receive.first_row[idx(peer)]);
    if (shape_.config.layout == Layout::rank_major) {
      const std::int64_t last = std::min<std::int64_t>(receive.first_row[idx(peer) + 1], receive.num_rows);
      sent = static_cast<std::uint64_t>(std::max<std::int64_t>(last - receive.first_row[idx(peer)], 0));
    } else if (is_per_expert(shape_)) {
      sent = 0;
      for (std::int32_t row = receive.first_row[idx(peer)]; row < receive.first_row[idx(peer) + 1]; ++row) {
        const std::int32_t* position = receive.position.data() + idx(row) * topk;
        for (std::size_t k = 0; k < topk; ++k) {
          sent += position[k] >= 0 && std::find(position, position + k, position[k]) == position + k ? 1 : 0;
        }
      }
    }
    const std::uint64_t received = returned[idx(peer)];
    stats.rows_sent += sent;
    stats.rows_received += received;
    if (peer == rank()) continue;
    stats.bytes_sent += sent * bytes;
    stats.bytes_received += received * bytes;
  }
  state.part.call.bytes_control += idx(shape_.num_ranks - 1) * sizeof(sync::Word) * 2;
}

}  // namespace moebus::engine
