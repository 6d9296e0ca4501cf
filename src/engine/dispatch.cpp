// Dispatch: checks, tables, plan, then the rows by one of the ways in dispatch_paths.cpp, and the result.

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "engine/arguments.hpp"
#include "engine/dispatch_state.hpp"
#include "engine/peers.hpp"

namespace moebus::engine {

using base::idx;

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
