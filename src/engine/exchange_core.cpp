#include "engine/exchange_core.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/log.hpp"
#include "engine/agreement.hpp"
#include "engine/combine_state.hpp"
#include "engine/dispatch_state.hpp"
#include "engine/peers.hpp"

namespace moebus::engine {

using base::idx;

namespace {

double micros_since(base::Clock::time_point start) noexcept {
  return std::chrono::duration<double, std::micro>(base::Clock::now() - start).count();
}

bool has_local_results(const ExchangeConfig& config) noexcept {
  const bool is_direct = config.path == Path::throughput && config.delivery == Delivery::direct;
  return !config.caller_results && !is_direct;
}

MemoryNeeds memory_needs(const model::Shape& shape) noexcept {
  MemoryNeeds needs;
  needs.window = model::window_layout(shape).bytes;
  if (needs.window.outbox > 0) needs.outbox_piece_bytes = model::outbox_piece_bytes(shape);
  if (has_local_results(shape.config)) needs.result_bytes = model::result_layout(shape).total_bytes;
  if (!shape.config.caller_results) {
    needs.combine_bytes = idx(shape.config.max_tokens_per_rank) * shape.combine_row.payload_bytes;
  }
  return needs;
}

std::size_t scratch_bytes(const model::Shape& shape) noexcept {
  base::Carver counter;
  Scratch scratch;
  scratch.carve(counter, shape);
  return counter.used_bytes();
}

void check_config(const ExchangeConfig& config, const model::GroupFacts& group, int rank) {
  if (const auto bad = model::find_config_error(config, group)) throw Error(ErrorCode::invalid_argument, *bad, rank);
}

}  // namespace

void Scratch::carve(base::Carver& carver, const model::Shape& shape) noexcept {
  const ExchangeConfig& config = shape.config;
  const std::size_t tokens = idx(config.max_tokens_per_rank);
  const std::size_t topk = idx(config.num_topk);
  const bool is_throughput = config.path == Path::throughput;
  const std::size_t block_rows = idx(kSumBlock) * (config.combine_rows == CombineRows::per_expert ? topk : 1);
  const std::size_t num_partials = idx(model::partial_rows_per_token(shape));
  const std::size_t num_outputs = idx(kSumBlock) * std::max<std::size_t>(num_partials, 1);
  moves = carver.take<model::RowMove>(std::max(tokens * idx(model::max_copies(shape)), idx(kSumBlock) * topk));
  marks = carver.take<std::int32_t>(is_throughput ? idx(shape.num_seats) : 0);
  own_counts = carver.take<std::int32_t>(is_throughput ? idx(shape.num_ranks + shape.num_seats) : 0);
  if (is_throughput && config.delivery == Delivery::direct) {
    const bool has_cast = config.cast != Cast::none;
    cast_rows = carver.take<std::byte>(has_cast ? idx(kSendBlock) * shape.dispatch_row.stride_bytes : 0);
  }
  std::size_t num_unmapped = 0;
  for (int peer = 0; peer < shape.num_ranks; ++peer) num_unmapped += shape.topology.is_mapped(shape.rank, peer) ? 0 : 1;
  tables = carver.take<std::byte>(num_unmapped * model::window_layout(shape).table_stride);
  slots = carver.take<std::int32_t>(block_rows);
  has_payload = carver.take<std::uint8_t>(block_rows);
  terms.first = carver.take<std::int32_t>(num_outputs + 1);
  terms.term = carver.take<const std::byte*>(idx(kSumBlock) * std::max(topk, num_partials));
  terms.weight = carver.take<float>(idx(kSumBlock) * topk);
  terms.output_row = carver.take<std::byte*>(num_outputs);
  partial_rows = carver.take<std::byte>(idx(kSumBlock) * num_partials * shape.combine_row.payload_bytes);
  lane = carver.take<float>(config.combine_lane ? tokens * topk : 0);
  missing = carver.take<std::uint64_t>(shape.can_overflow ? tokens : 0);
  const bool has_experts = config.layout != Layout::rank_major;
  gradients.carve(carver, has_experts ? idx(kGradientBlock) * topk : 0);
  const bool has_lane = has_experts && config.combine_lane && !config.caller_results;
  gradient_lane = carver.take<float>(has_lane ? idx(shape.result_rows) * topk : 0);
}

ExchangeCore::ExchangeCore(std::shared_ptr<GroupCore> group, const ExchangeConfig& config)
    : group_(std::move(group)),
      dispatch_call_(std::make_unique<DispatchCall>(*this)),
      combine_call_(std::make_unique<CombineCall>(*this)) {
  group_->check_usable();
  check_config(config, group_->facts(), group_->rank());
  shape_ = model::make_shape(config, group_->facts());
  layout_ = model::window_layout(shape_);
  result_layout_ = model::result_layout(shape_);
  const model::Topology& topology = shape_.topology;
  for (int home = 0; shape_.has_gateways && home < shape_.num_ranks; ++home) {
    if (topology.are_neighbours(home, rank())) continue;
    const std::vector<int> served = topology.served_by(topology.gateway(home, topology.node_of(rank())));
    relay_index_[idx(home)] = static_cast<std::uint8_t>(std::find(served.begin(), served.end(), home) - served.begin());
  }
  reset_stats();
}

ExchangeCore::~ExchangeCore() = default;

BytesNeeded ExchangeCore::bytes_needed(const ExchangeConfig& config, const model::GroupFacts& group) {
  check_config(config, group, -1);
  const model::Shape shape = model::make_shape(config, group);
  const MemoryNeeds needs = memory_needs(shape);
  BytesNeeded bytes;
  bytes.registered = needs.window.total() + sizeof(sync::ContextBlock) + sizeof(sync::GroupBlock);
  bytes.local = needs.result_bytes + needs.combine_bytes + HandlePool::bytes_needed(shape, config.max_handles) +
                scratch_bytes(shape);
  return bytes;
}

void ExchangeCore::reset_stats() noexcept {
  stats_ = {};
  stats_.num_ranks = group_->num_ranks();
}

PrepareReport ExchangeCore::prepare() {
  group_->check_usable();
  if (is_prepared_) return report_;
  const auto start = base::Clock::now();
  agree();
  report_.agree_us = micros_since(start);
  allocate();
  is_prepared_ = true;
  return report_;
}

void ExchangeCore::agree() {
  std::string text = agreement_header() + model::describe(shape_.config);
  // Memory may move now: a held result would dangle, so it counts as a difference that every rank sees.
  text +=
      fmt::format("results held={}\ncalls in flight={}\n", group_->is_any_result_held(), group_->is_any_call_open());
  const std::vector<std::string> all = group_->all_gather("agree on the configuration of an exchange", text);
  if (const auto differences = find_differences(all)) {
    throw Error(ErrorCode::invalid_argument, "ranks disagree: " + *differences);
  }
  if (group_->is_any_result_held()) {
    throw Error(ErrorCode::invalid_argument,
                "prepare: a DispatchResult of this group is still held, and memory may move: release() it first");
  }
  if (group_->is_any_call_open()) {
    throw Error(ErrorCode::invalid_argument,
                "prepare: a posted call of this group is not waited for yet, and memory may move: wait for it first");
  }
}

void ExchangeCore::allocate() {
  context_ = &group_->context(shape_.config.context);
  const Context::CoverTimes times = context_->cover(memory_needs(shape_));
  const auto start = base::Clock::now();
  handles_ = std::make_shared<HandlePool>(shape_, shape_.config.max_handles);
  scratch_memory_ = base::LocalMemory(scratch_bytes(shape_));
  base::Carver carver(scratch_memory_.data());
  scratch_.carve(carver, shape_);
  report_.allocate_us = times.allocate_us + micros_since(start);
  report_.map_us = times.map_us;
  // Nobody sends before everybody's windows are there.
  group_->all_gather("finish preparing an exchange", "");
}

PrepareReport ExchangeCore::warm_up() {
  prepare();
  const auto start = base::Clock::now();
  // Twice: once for each parity of the windows.
  for (int round = 0; round < model::WindowBytes::kNumParities; ++round) warm_up_once();
  report_.warm_up_us = micros_since(start);
  reset_stats();
  return report_;
}

void ExchangeCore::warm_up_once() {
  const ExchangeConfig& config = shape_.config;
  const std::int64_t tokens = std::min(config.max_tokens_per_rank, 32);
  const std::int64_t topk = config.num_topk;
  std::vector<std::byte> rows(idx(tokens * config.hidden) * size_of(config.dtype));
  std::vector<std::byte> scales(idx(tokens) * shape_.dispatch_row.scales_bytes);
  std::array<std::vector<std::byte>, kMaxSideTensors> sides;
  std::vector<std::int32_t> ids(idx(tokens * topk));
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i % idx(config.num_experts));
  const std::vector<float> weights(idx(tokens * topk), 1.0F);

  DispatchInput input;
  input.tokens = tensor_2d(rows.data(), config.dtype, tokens, config.hidden);
  input.topk_idx = tensor_2d(ids.data(), DType::i32, tokens, topk);
  input.topk_weights = tensor_2d(weights.data(), DType::f32, tokens, topk);
  if (config.cast == Cast::none && config.scale_format != ScaleFormat::none) {
    const DType dtype = config.scale_format == ScaleFormat::f32 ? DType::f32 : DType::i32;
    input.scales = tensor_2d(scales.data(), dtype, tokens, shape_.dispatch_row.scale_items);
  }
  for (std::size_t s = 0; s < kMaxSideTensors; ++s) {
    if (config.side_bytes[s] == 0) continue;
    sides[s].resize(idx(tokens) * idx(config.side_bytes[s]));
    input.side[s] = tensor_2d(sides[s].data(), DType::u8, tokens, config.side_bytes[s]);
  }
  base::LocalMemory results;
  if (config.caller_results) {
    results = base::LocalMemory(result_layout_.total_bytes);
    input.output = result_tensors(shape_, result_layout_, rank(), results.data());
  }
  DispatchResult received = dispatch(input);

  std::vector<std::byte> answers(idx(shape_.result_rows) * shape_.combine_row.payload_bytes);
  std::vector<std::byte> home(idx(tokens) * shape_.combine_row.payload_bytes);
  CombineInput back;
  const int columns = shape_.combine_row.hidden;
  back.rows =
      config.layout == Layout::expert_padded
          ? tensor_3d(
                answers.data(), config.combine_dtype, shape_.placement.num_local(rank()), shape_.capacity_rows, columns)
          : tensor_2d(answers.data(), config.combine_dtype, shape_.result_rows, columns);
  back.handle = received.handle;
  if (config.caller_results) back.output = tensor_2d(home.data(), config.combine_dtype, tokens, columns);
  combine(back);
}

void ExchangeCore::set_placement(const Placement& placement, ReplicaRule rule) {
  check_prepared("set_placement");
  const ExchangeConfig& config = shape_.config;
  std::optional<std::string> bad;
  if (config.seats_per_rank == 0) {
    bad = "set_placement: config.seats_per_rank is 0, which fixes one seat per expert; set it to the seats of a rank";
  } else if (context_->open_call() != nullptr) {
    bad = "set_placement: a posted call is not waited for yet; wait for it first";
  } else {
    bad = model::find_placement_error(placement, config.seats_per_rank, config.num_experts, shape_.num_ranks);
  }
  // Whoever finds a fault says so, and every rank then fails alike.
  const std::uint64_t digest = model::placement_digest(placement);
  const std::string text =
      bad ? fmt::format("placement error={}\n", *bad) : fmt::format("placement digest={:016x}\n", digest);
  const std::vector<std::string> all = group_->all_gather("agree on a placement", text);
  if (bad) throw Error(ErrorCode::invalid_argument, *bad, rank());
  if (const auto differences = find_differences(all)) {
    throw Error(ErrorCode::invalid_argument, "ranks disagree: " + *differences);
  }
  model::set_placement(shape_, placement);
  placement_digest_ = digest;
  replica_rule_ = std::move(rule);
}

void ExchangeCore::check_prepared(std::string_view call) const {
  group_->check_usable();
  if (is_prepared_) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{}: the exchange is not prepared; call prepare() (or warm_up()) on every rank first", call),
              rank());
}

void ExchangeCore::check_free(std::string_view call) const {
  if (context_->open_call() == nullptr) return;
  throw Error(
      ErrorCode::invalid_argument,
      fmt::format("{}: a call of context {} is in flight, and a context holds one at a time (Q = 1); wait for it, "
                  "or give this exchange another config.context",
                  call,
                  context_->index()),
      rank());
}

void ExchangeCore::announce(const Call& call, const Refusal* refusal) {
  for_each_peer(rank(), group_->num_ranks(), [&](int peer) { context_->signal_arrived(call, peer, refusal); });
}

void ExchangeCore::wait_for(
    const Call& call, const sync::WordName& word, std::uint32_t count, CallStats& stats, PeerTable& peers) {
  wait_until(call, {word, count}, stats, peers, [&] { return context_->is_there(call, word, count); });
}

void ExchangeCore::complete(OpenCall& call) noexcept {
  group_->complete_up_to(&call);
  context_->set_open_call(nullptr);
}

bool ExchangeCore::fits(const HandleSlot& slot) const noexcept {
  return slot.group == group_.get() && slot.plan_digest == shape_.plan_digest;
}

void ExchangeCore::wait_for_arrivals(const Call& call, CallStats& stats, PeerTable& peers, const Refusal* own) {
  std::optional<Refusal> refusal;
  int origin = -1;
  if (own != nullptr) {
    refusal = *own;
    origin = rank();
  }
  for (int peer = 0; peer < group_->num_ranks(); ++peer) {
    if (peer == rank()) continue;
    wait_for(call, Context::of(peer, sync::Field::arrived), 0, stats, peers);
    auto refused = context_->read_header(call, peer);
    if (!refused || origin >= 0) continue;
    refusal = std::move(refused);
    origin = peer;
  }
  if (!refusal) return;
  // Rows that left before the refusal was known are ignored, but they must have come to rest before the call ends: on
  // the way to a rank that is not mapped they could fall on those of the next call but one (tests/model/lanes.pml,
  // REFUSE).
  for (int peer = 0; peer < group_->num_ranks(); ++peer) {
    if (peer == rank() || !context_->does_peer_send_ahead(call, peer) || !sends_here(call, peer)) continue;
    wait_for(call, Context::of(peer, sync::Field::finished), 0, stats, peers);
  }
  ++stats.refused;
  const std::string text =
      origin == rank()
          ? refusal->text
          : fmt::format(
                "rank {} refused call {} ({}): {}", origin, call.epoch, to_string(call.operation), refusal->text);
  throw Error(refusal->code, text, origin);
}

bool ExchangeCore::sends_here(const Call& call, int peer) const noexcept {
  return call.operation == sync::Operation::combine_latency ? is_straight(peer) : are_linked(peer, rank());
}

bool ExchangeCore::is_straight(int peer) const noexcept {
  return !shape_.has_partial_sums || shape_.topology.are_neighbours(peer, rank());
}

bool ExchangeCore::are_linked(int src, int dst) const noexcept {
  return !shape_.is_relayed(src, dst) || shape_.topology.gateway(src, shape_.topology.node_of(dst)) == dst;
}

sync::WordName ExchangeCore::heard(int src, sync::Field field) const noexcept {
  return are_linked(src, rank()) ? Context::of(src, field) : context_->relayed(src, field);
}

// --- Places ---

std::byte* ExchangeCore::parity(const Call& call, int peer) const noexcept {
  return context_->window(peer) + context_->window_bytes().parity_offset(call.epoch);
}

std::byte* ExchangeCore::stage(int peer) const noexcept {
  return context_->window(peer) + context_->window_bytes().stage_offset();
}

std::byte* ExchangeCore::region(int peer) const noexcept {
  return context_->window(peer) + context_->window_bytes().region_offset();
}

std::byte* ExchangeCore::facts(const Call& call, int at_rank, int of_rank) const noexcept {
  return parity(call, at_rank) + layout_.facts_offset + idx(of_rank) * sizeof(model::CallFacts);
}

model::CallFacts ExchangeCore::facts_of(const Call& call, int src) const noexcept {
  // Laid out by model/layout: 64-byte slots in registered memory.
  return *reinterpret_cast<const model::CallFacts*>(facts(call, rank(), src));
}

std::byte* ExchangeCore::table(const Call& call, int at_rank, int of_rank) const noexcept {
  return parity(call, at_rank) + layout_.tables_offset + idx(of_rank) * layout_.table_stride;
}

std::byte* ExchangeCore::counts(const Call& call, int at_rank, int of_rank) const noexcept {
  return parity(call, at_rank) + layout_.counts_offset + idx(of_rank) * layout_.counts_stride;
}

// --- Rows to peers ---

void ExchangeCore::write_rows(int peer,
                              const backend::ConstRowArrays& source,
                              const SlotArray& slots,
                              std::span<const model::RowMove> moves,
                              bool is_cast,
                              backend::Stores stores) {
  if (moves.empty()) return;
  if (!context_->is_mapped(peer)) {
    put_rows(peer, source, slots, moves, is_cast);
    return;
  }
  const backend::RowArrays sink = slot_rows(shape_.dispatch_row, slots.data, slots.num);
  if (is_cast) {
    group_->backend().copy_rows(shape_.dispatch_row, source, sink, moves, stores);
  } else {
    group_->backend().place(shape_.dispatch_row, source, sink, moves, stores);
  }
}

void ExchangeCore::put_rows(int peer,
                            const backend::ConstRowArrays& source,
                            const SlotArray& slots,
                            std::span<const model::RowMove> moves,
                            bool is_cast) {
  Outbox& outbox = context_->outbox();
  const backend::RowArrays sink = slot_rows(shape_.dispatch_row, slots.data, slots.num);
  std::array<model::RowMove, idx(kSendBlock)> dense;
  for (std::size_t first = 0; first < moves.size(); first += idx(kSendBlock)) {
    const auto block = moves.subspan(first, std::min(idx(kSendBlock), moves.size() - first));
    const auto num = static_cast<std::int64_t>(block.size());
    const backend::RowArrays made =
        slot_rows(shape_.dispatch_row, outbox.take(block.size() * shape_.dispatch_row.stride_bytes), num);
    for (std::size_t i = 0; i < block.size(); ++i) dense[i] = {block[i].src, static_cast<std::int32_t>(i)};
    const std::span<const model::RowMove> local(dense.data(), block.size());
    if (is_cast) {
      group_->backend().copy_rows(shape_.dispatch_row, source, made, local, backend::Stores::cached);
    } else {
      group_->backend().place(shape_.dispatch_row, source, made, local, backend::Stores::cached);
    }
    // Neighbouring slots are neighbours in the outbox too: one put for each part of a run.
    for (std::size_t run = 0; run < block.size();) {
      std::size_t end = run + 1;
      while (end < block.size() && block[end].dst == block[end - 1].dst + 1) ++end;
      for_each_part(shape_.dispatch_row, made, sink, [&](std::byte* from, std::byte* to, std::int64_t stride) {
        outbox.put(peer,
                   to + block[run].dst * stride,
                   from + static_cast<std::int64_t>(run) * stride,
                   (end - run) * idx(stride));
      });
      run = end;
    }
  }
}

}  // namespace moebus::engine
