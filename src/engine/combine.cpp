// Combine: checks, what every path shares, the rows themselves, and the result; who sends when is in combine_paths.cpp.

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/arguments.hpp"
#include "engine/combine_state.hpp"
#include "engine/peers.hpp"

namespace moebus::engine {

using base::idx;
using sync::Field;

std::optional<Refusal> ExchangeCore::check_combine(const CombineInput& input, const HandleSlot* slot) const {
  if (slot == nullptr) {
    return Refusal{ErrorCode::invalid_argument,
                   "combine: handle is empty; pass the handle of a DispatchResult of this exchange"};
  }
  if (!fits(*slot)) {
    return Refusal{ErrorCode::invalid_argument,
                   "combine: handle belongs to another exchange, whose plan differs (group, experts, top-k, tokens, "
                   "layout, capacity or seats); pass one of this exchange's dispatches"};
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
  post_combine(input);
  return wait_combine();
}

void ExchangeCore::post_combine(const CombineInput& input) {
  check_prepared("combine");
  check_free("combine");
  start_combine(input, nullptr);
}

void ExchangeCore::start_combine(const CombineInput& input, const DispatchGradInput* gradient) {
  const auto start = base::Clock::now();
  combine_call_->renew();
  CombineState& state = combine_call_->state;
  state.input = input;
  state.handle = input.handle.slot_;
  state.is_gradient = gradient != nullptr;
  state.refusal = state.is_gradient ? check_dispatch_backward(*gradient) : std::nullopt;
  if (!state.refusal) state.refusal = check_combine(input, state.handle);
  post(*combine_call_, [&] { begin_combine(state); });
  stats_.combine.total_ns += static_cast<std::uint64_t>((base::Clock::now() - start).count());
}

CombineResult ExchangeCore::wait_combine() {
  const auto start = base::Clock::now();
  end_combine_call();
  stats_.combine.total_ns += static_cast<std::uint64_t>((base::Clock::now() - start).count());
  combine_call_->rethrow();
  return *std::exchange(combine_call_->result, std::nullopt);
}

void ExchangeCore::end_combine_call() noexcept {
  complete(*combine_call_);
  combine_call_->state.input.handle = {};
}

void ExchangeCore::abandon_combine() noexcept {
  end_combine_call();
  combine_call_->result.reset();
}

void ExchangeCore::begin_combine(CombineState& state) {
  const bool is_throughput = shape_.config.path == Path::throughput;
  std::uint64_t digest = shape_.digest ^ (state.refusal ? 0 : state.handle->id);
  if (state.is_gradient) digest ^= kGradientMark;
  state.call = context_->begin_call(
      is_throughput ? sync::Operation::combine_throughput : sync::Operation::combine_latency, digest);
  ++stats_.combine.calls;
  if (state.refusal) {
    state.call.is_refused = true;
    announce(state.call, &*state.refusal);
    return;
  }
  state.num_incomplete = 0;
  state.flows.clear();
  lay_out(state);
  publish_weights(state);
  // Weights that come now must be here before rows can be added.
  state.call.sends_ahead = !is_throughput && !state.have_weights_come;
  announce(state.call, nullptr);
  if (state.call.sends_ahead) push_latency_rows(state);
}

CombineResult ExchangeCore::end_combine(CombineState& state) {
  group_->check_usable();
  wait_for_arrivals(state.call, stats_.combine, stats_.combine_peers, state.refusal ? &*state.refusal : nullptr);
  if (shape_.config.path == Path::throughput) {
    run_combine_rounds(state);
  } else {
    if (state.have_weights_come) push_latency_rows(state);
    end_latency(state);
  }
  count_combine(state);
  return make_result(state);
}

void ExchangeCore::lay_out(CombineState& state) {
  const CombineInput& input = state.input;
  const auto size = static_cast<std::int64_t>(size_of(shape_.combine_row.dtype));
  const bool is_padded = shape_.config.layout == Layout::expert_padded;
  state.lane = {};
  state.push_stores = backend::Stores::cached;
  state.rows = {input.rows.data, (is_padded ? input.rows.stride[1] : input.rows.stride[0]) * size};
  if (input.lane.is_given()) {
    state.lane = {input.lane.data, input.lane.stride[0] * static_cast<std::int64_t>(sizeof(float))};
  }
  const std::int64_t num_tokens = state.handle->send.num_tokens;
  state.tensor =
      input.output.is_given()
          ? input.output
          : tensor_2d(context_->combine_results(), shape_.combine_row.dtype, num_tokens, shape_.combine_row.hidden);
  const std::size_t row_bytes = shape_.combine_row.payload_bytes;
  state.home_stores = group_->backend().stores_for(idx(num_tokens) * row_bytes);
  // Rounds stay in the caches by their size; what they hold is read at once.
  if (shape_.config.path == Path::latency) {
    state.push_stores = group_->backend().stores_for(idx(state.handle->receive.num_wire_rows(shape_)) * row_bytes);
  }
  state.output = state.tensor.data;
  state.output_stride = state.tensor.stride[0] * size;
}

void ExchangeCore::publish_weights(CombineState& state) {
  state.have_weights_come = state.input.weighting == Weighting::given && !is_per_expert(shape_);
  if (!state.have_weights_come) return;
  const std::size_t bytes = idx(state.handle->send.num_tokens) * idx(shape_.config.num_topk) * sizeof(float);
  for (int peer = 0; peer < shape_.num_ranks; ++peer) {
    context_->write(peer, table(state.call, peer, rank()), state.input.topk_weights.data, bytes);
    if (peer != rank()) stats_.combine.bytes_control += bytes;
  }
}

// --- Rows of an owner ---

int ExchangeCore::target_of(int home) const noexcept {
  return is_straight(home) ? home : shape_.topology.gateway(home, shape_.topology.node_of(rank()));
}

void ExchangeCore::push_rows(CombineState& state, int home, model::RowRange rows, const model::HomeSlots& slots) {
  if (home == rank() && moves_rows(shape_)) return;
  const int target = target_of(home);
  const bool is_mapped = context_->is_mapped(target);
  const auto stride = shape_.combine_row.stride_bytes;
  std::int64_t most = kSumBlock;
  if (!is_mapped) {
    // Made side by side in the outbox, as many at a time as it holds, and put one by one.
    const std::size_t row_bytes = stride * (is_per_expert(shape_) ? idx(shape_.config.num_topk) : 1);
    const auto fitting = static_cast<std::int64_t>(context_->outbox().piece_bytes() / row_bytes);
    most = std::clamp<std::int64_t>(fitting, 1, kSumBlock);
  }
  for (std::int32_t first = rows.first; first < rows.last; first += static_cast<std::int32_t>(most)) {
    const model::RowRange block{first, static_cast<std::int32_t>(std::min<std::int64_t>(first + most, rows.last))};
    const std::size_t num =
        model::list_owner_slots(shape_, state.handle->receive, block, slots, scratch_.slots, scratch_.has_payload);
    const std::span<const std::int32_t> at = scratch_.slots.first(num);
    if (is_mapped) {
      push_block(state, home, block, slots.data, at);
    } else if (num > 0) {
      std::byte* made = context_->outbox().take(num * stride);
      push_block(state, home, block, made, {});
      put_combined(target, slots, at, scratch_.has_payload.data(), made);
    }
  }
}

backend::SumJob ExchangeCore::sum_job(std::int64_t num_outputs) const noexcept {
  backend::SumJob job;
  job.dtype = shape_.combine_row.dtype;
  job.hidden = shape_.combine_row.hidden;
  job.num_outputs = num_outputs;
  job.first = scratch_.terms.first.data();
  job.term = scratch_.terms.term.data();
  job.output_row = scratch_.terms.output_row.data();
  return job;
}

void ExchangeCore::push_block(
    CombineState& state, int home, model::RowRange block, std::byte* data, std::span<const std::int32_t> at) {
  const model::CombineRowFormat& format = shape_.combine_row;
  const model::ReceivePlan& receive = state.handle->receive;
  if (moves_rows(shape_)) {
    const std::size_t num = model::list_owner_moves(shape_, receive, block, at, scratch_.moves);
    group_->backend().copy_slots(state.rows.data,
                                 state.rows.stride_bytes,
                                 data,
                                 static_cast<std::int64_t>(format.stride_bytes),
                                 format.payload_bytes,
                                 scratch_.moves.first(num),
                                 state.push_stores);
  } else {
    // Weights that came with the combine lie in this call's tables, [tokens of the home, K] f32.
    const float* home_weights =
        state.have_weights_come ? reinterpret_cast<const float*>(table(state.call, rank(), home)) : nullptr;
    model::list_owner_sums(shape_, receive, block, state.rows, home_weights, data, at, scratch_.terms);
    if (state.is_gradient) model::drop_repeated_terms(scratch_.terms, block.last - block.first);
    backend::SumJob job = sum_job(block.last - block.first);
    job.weight = state.input.weighting != Weighting::none ? scratch_.terms.weight.data() : nullptr;
    job.stores = state.push_stores;
    group_->backend().sum(job);
  }
  model::write_tails(shape_, receive, block, state.lane, data, at);
}

void ExchangeCore::put_combined(int peer,
                                const model::HomeSlots& slots,
                                std::span<const std::int32_t> slot,
                                const std::uint8_t* has_payload,
                                const std::byte* rows) {
  const model::CombineRowFormat& format = shape_.combine_row;
  const std::size_t end = format.mask_bytes > 0   ? format.mask_offset_bytes + format.mask_bytes
                          : format.lane_bytes > 0 ? format.lane_offset_bytes + format.lane_bytes
                                                  : format.payload_bytes;
  for (std::size_t i = 0; i < slot.size(); ++i) {
    // A row that was dropped still tells so.
    const std::size_t begin = has_payload == nullptr || has_payload[i] != 0 ? 0 : format.lane_offset_bytes;
    if (begin >= end) continue;
    const std::byte* place =
        slots.data + static_cast<std::int64_t>(slot[i]) * static_cast<std::int64_t>(format.stride_bytes);
    context_->outbox().put(peer, place + begin, rows + i * format.stride_bytes + begin, end - begin);
  }
}

// --- Rows that pass a gateway ---

void ExchangeCore::relay_rows(CombineState& state,
                              int index,
                              model::RowRange rows,
                              const model::HomeSlots& relay_slots,
                              const model::HomeSlots& home_slots) {
  const model::CombineRowFormat& format = shape_.combine_row;
  const model::RelayPlan& relay = state.handle->relay;
  const int home = relay.served[idx(index)];
  const bool is_mapped = context_->is_mapped(home);
  const auto most = static_cast<std::int32_t>(
      is_mapped ? kSumBlock
                : std::min<std::size_t>(idx(kSumBlock), context_->outbox().piece_bytes() / format.stride_bytes));
  for (std::int32_t first = rows.first; first < rows.last; first += most) {
    const model::RowRange block{first, std::min(first + most, rows.last)};
    const auto num = idx(block.last - block.first);
    model::list_relay_slots(relay, block, home_slots, scratch_.slots);
    const std::span<const std::int32_t> slot = scratch_.slots.first(num);
    std::byte* data = is_mapped ? home_slots.data : context_->outbox().take(num * format.stride_bytes);
    const std::span<const std::int32_t> at = is_mapped ? slot : std::span<const std::int32_t>{};
    model::list_relay_sums(shape_, relay, block, relay_slots, data, at, scratch_.terms);
    group_->backend().sum(sum_job(block.last - block.first));
    model::write_relay_tails(shape_, relay, block, state.input.lane.is_given(), relay_slots, data, at);
    if (!is_mapped) put_combined(home, home_slots, slot, nullptr, data);
  }
}

// --- Sums at home ---

void ExchangeCore::sum_partials(CombineState& state,
                                std::int64_t first,
                                std::int64_t last,
                                const model::HomeSlots& slots,
                                const model::PartialSums& partial) {
  const std::int64_t num_outputs = model::list_partial_sums(
      shape_, state.handle->send, state.handle->receive, first, last, state.rows, slots, partial, scratch_.terms);
  group_->backend().sum(sum_job(num_outputs));
}

void ExchangeCore::sum_at_home(CombineState& state,
                               std::int64_t first_token,
                               std::int64_t last_token,
                               const model::HomeSlots& slots) {
  const CombineInput& input = state.input;
  const model::SendPlan& send = state.handle->send;
  const float* weights = nullptr;
  if (is_per_expert(shape_) && input.weighting == Weighting::dispatched) weights = send.weights.data();
  // [tokens, K] f32, contiguous: checked with the arguments.
  if (is_per_expert(shape_) && input.weighting == Weighting::given) {
    weights = reinterpret_cast<const float*>(input.topk_weights.data);
  }
  const auto size = static_cast<std::int64_t>(size_of(shape_.combine_row.dtype));
  const model::PartialSums partial{scratch_.partial_rows.data(),
                                   static_cast<std::int64_t>(shape_.combine_row.payload_bytes)};
  for (std::int64_t first = first_token; first < last_token; first += kSumBlock) {
    const std::int64_t last = std::min(first + kSumBlock, last_token);
    if (!scratch_.partial_rows.empty()) sum_partials(state, first, last, slots, partial);
    model::list_home_sums(
        shape_, send, state.handle->receive, first, last, state.rows, weights, slots, partial, scratch_.terms);
    if (state.is_gradient) model::drop_repeated_terms(scratch_.terms, last - first);
    backend::SumJob job = sum_job(last - first);
    job.weight = weights != nullptr ? scratch_.terms.weight.data() : nullptr;
    for (std::size_t b = 0; b < input.bias.size(); ++b) {
      if (!input.bias[b].is_given()) continue;
      job.bias_stride_bytes[b] = input.bias[b].stride[0] * size;
      job.bias[b] = input.bias[b].data + first * job.bias_stride_bytes[b];
    }
    job.output_row = nullptr;
    job.output = state.output + first * state.output_stride;
    job.output_stride_bytes = state.output_stride;
    job.stores = state.home_stores;
    group_->backend().sum(job);
  }
  if (!input.lane.is_given() && !shape_.can_overflow) return;
  state.num_incomplete += model::read_tails(shape_,
                                            send,
                                            state.handle->receive,
                                            first_token,
                                            last_token,
                                            state.lane,
                                            slots,
                                            input.lane.is_given() ? scratch_.lane.data() : nullptr,
                                            shape_.can_overflow ? scratch_.missing.data() : nullptr);
}

CombineResult ExchangeCore::make_result(CombineState& state) {
  const std::int64_t num_tokens = state.handle->send.num_tokens;
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

/// Counts the rows that come home from each hop: one per (token, hop), or per (token, expert). Rows that a capacity
/// dropped do not come, where rows travel as the caller gave them; `missing` tells which, null = none.
std::array<std::uint64_t, kMaxRanks> count_returned(const model::Shape& shape,
                                                    const model::SendPlan& send,
                                                    const std::uint64_t* missing) noexcept {
  std::array<std::uint64_t, kMaxRanks> rows{};
  if (!is_per_expert(shape) && (missing == nullptr || shape.config.layout != Layout::rank_major)) {
    for (int hop = 0; hop < shape.num_ranks; ++hop) {
      rows[idx(hop)] = static_cast<std::uint64_t>(send.num_rows_to[idx(hop)]);
    }
    return rows;
  }
  const std::size_t topk = idx(shape.config.num_topk);
  for (std::size_t token = 0; token < idx(send.num_tokens); ++token) {
    const std::int32_t* ids = send.ids.data() + token * topk;
    std::uint64_t seen = 0;  // hops, in rank_major
    for (std::size_t k = 0; k < topk; ++k) {
      if (ids[k] < 0 || (missing != nullptr && (missing[token] >> k & 1) != 0)) continue;
      // per_expert rows come from their owners without a stop.
      const std::size_t from = is_per_expert(shape) ? shape.owner[idx(ids[k]) + 1] : shape.hop[idx(ids[k]) + 1];
      const bool is_repeat =
          is_per_expert(shape) ? std::find(ids, ids + k, ids[k]) != ids + k : (seen >> from & 1) != 0;
      seen |= std::uint64_t{1} << from;
      if (!is_repeat) ++rows[from];
    }
  }
  return rows;
}

/// Counts the rows that this rank sends for tokens of `home`.
std::uint64_t count_pushed(const model::Shape& shape, const model::ReceivePlan& receive, int home) noexcept {
  const std::int32_t first = receive.first_row[idx(home)];
  const std::int32_t end = receive.first_row[idx(home) + 1];
  if (shape.config.layout == Layout::rank_major) {
    return static_cast<std::uint64_t>(std::clamp<std::int64_t>(receive.num_rows - first, 0, end - first));
  }
  if (!is_per_expert(shape)) return static_cast<std::uint64_t>(end - first);
  std::uint64_t num = 0;
  const std::size_t topk = idx(shape.config.num_topk);
  for (std::int32_t row = first; row < end; ++row) {
    const std::int32_t* position = receive.position.data() + idx(row) * topk;
    for (std::size_t k = 0; k < topk; ++k) {
      num += position[k] >= 0 && std::find(position, position + k, position[k]) == position + k ? 1 : 0;
    }
  }
  return num;
}

}  // namespace

void ExchangeCore::count_combine(const CombineState& state) {
  const model::ReceivePlan& receive = state.handle->receive;
  const model::RelayPlan& relay = state.handle->relay;
  const std::size_t bytes =
      shape_.combine_row.payload_bytes + (state.input.lane.is_given() ? shape_.combine_row.lane_bytes : 0);
  const auto count = [&](int peer, std::uint64_t sent, std::uint64_t received) {
    count_rows(stats_.combine_peers[idx(peer)], sent, received, peer == rank() ? 0 : bytes);
  };
  const auto returned =
      count_returned(shape_, state.handle->send, shape_.can_overflow ? scratch_.missing.data() : nullptr);
  for (int peer = 0; peer < shape_.num_ranks; ++peer) {
    count(peer, 0, returned[idx(peer)]);
    count(target_of(peer), count_pushed(shape_, receive, peer), 0);
  }
  if (shape_.has_partial_sums) {
    for (int index = 0; index < relay.num_served(); ++index) {
      const std::int32_t rows = relay.first_row[idx(index) + 1] - relay.first_row[idx(index)];
      count(relay.served[idx(index)], static_cast<std::uint64_t>(rows), 0);
    }
    for_each_neighbour([&](int neighbour) { count(neighbour, 0, model::count_relay_rows(relay, neighbour)); });
  }
  stats_.combine.bytes_control += idx(shape_.num_ranks - 1) * sizeof(sync::Word) * 2;
}

}  // namespace moebus::engine
