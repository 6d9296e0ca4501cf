#include "engine/exchange_core.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/log.hpp"
#include "engine/agreement.hpp"
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

GroupCore::MemoryNeeds memory_needs(const model::Shape& shape) noexcept {
  GroupCore::MemoryNeeds needs;
  needs.window = model::window_layout(shape).bytes;
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

void check_config(const ExchangeConfig& config, int num_ranks, int rank) {
  if (const auto bad = model::find_config_error(config, num_ranks)) {
    throw Error(ErrorCode::invalid_argument, *bad, rank);
  }
}

}  // namespace

void Scratch::carve(base::Carver& carver, const model::Shape& shape) noexcept {
  const ExchangeConfig& config = shape.config;
  const std::size_t tokens = idx(config.max_tokens_per_rank);
  const std::size_t topk = idx(config.num_topk);
  const bool is_throughput = config.path == Path::throughput;
  moves = carver.take<model::RowMove>(std::max(tokens * idx(model::max_copies(shape)), idx(kSumBlock) * topk));
  marks = carver.take<std::int32_t>(is_throughput ? idx(config.num_experts) : 0);
  own_counts = carver.take<std::int32_t>(is_throughput ? idx(shape.num_ranks + config.num_experts) : 0);
  if (is_throughput && config.delivery == Delivery::direct) {
    region.carve(carver, shape);
    const bool has_cast = config.cast != Cast::none;
    cast_rows = carver.take<std::byte>(has_cast ? idx(kSendBlock) * shape.dispatch_row.stride_bytes : 0);
  }
  terms.first = carver.take<std::int32_t>(idx(kSumBlock) + 1);
  terms.term = carver.take<const std::byte*>(idx(kSumBlock) * topk);
  terms.weight = carver.take<float>(idx(kSumBlock) * topk);
  terms.output_row = carver.take<std::byte*>(idx(kSumBlock));
  lane = carver.take<float>(config.combine_lane ? tokens * topk : 0);
  missing = carver.take<std::uint64_t>(shape.can_overflow ? tokens : 0);
}

ExchangeCore::ExchangeCore(std::shared_ptr<GroupCore> group, const ExchangeConfig& config) : group_(std::move(group)) {
  group_->check_usable();
  check_config(config, group_->num_ranks(), group_->rank());
  shape_ = model::make_shape(config, group_->num_ranks());
  layout_ = model::window_layout(shape_);
  result_layout_ = model::result_layout(shape_);
  reset_stats();
}

BytesNeeded ExchangeCore::bytes_needed(const ExchangeConfig& config, int num_ranks) {
  check_config(config, num_ranks, -1);
  const model::Shape shape = model::make_shape(config, num_ranks);
  const GroupCore::MemoryNeeds needs = memory_needs(shape);
  BytesNeeded bytes;
  bytes.registered = needs.window.total() + sizeof(sync::ControlBlock);
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
  text += fmt::format("results held={}\n", group_->is_any_result_held());
  const std::vector<std::string> all = group_->all_gather("agree on the configuration of an exchange", text);
  if (const auto differences = find_differences(all)) {
    throw Error(ErrorCode::invalid_argument, "ranks disagree: " + *differences);
  }
  if (group_->is_any_result_held()) {
    throw Error(ErrorCode::invalid_argument,
                "prepare: a DispatchResult of this group is still held, and memory may move: release() it first");
  }
}

void ExchangeCore::allocate() {
  const GroupCore::CoverTimes times = group_->cover(memory_needs(shape_));
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

void ExchangeCore::check_prepared(std::string_view call) const {
  group_->check_usable();
  if (is_prepared_) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{}: the exchange is not prepared; call prepare() (or warm_up()) on every rank first", call),
              rank());
}

void ExchangeCore::announce(const Call& call, const Refusal* refusal) {
  for_each_peer(group_->rank(), group_->num_ranks(), [&](int peer) { group_->signal_arrived(call, peer, refusal); });
  group_->signal_arrived(call, group_->rank(), refusal);
  group_->at(Step::arrived);
}

std::uint64_t ExchangeCore::wait_for(const Call& call, int peer, Awaited what, std::uint32_t count, CallPart& part) {
  const std::uint64_t waited = group_->wait(call, peer, what, count);
  part.call.wait_ns += waited;
  part.peers[idx(peer)].wait_ns += waited;
  return waited;
}

void ExchangeCore::finish(const Call& call) {
  for_each_peer(group_->rank(), group_->num_ranks(), [&](int peer) { group_->signal_finished(call, peer); });
}

void ExchangeCore::wait_for_arrivals(const Call& call, CallPart& part, const Refusal* own) {
  std::optional<Refusal> refusal;
  int origin = -1;
  if (own != nullptr) {
    refusal = *own;
    origin = rank();
  }
  for (int peer = 0; peer < group_->num_ranks(); ++peer) {
    if (peer == rank()) continue;
    wait_for(call, peer, Awaited::arrived, 0, part);
    auto refused = group_->read_header(call, peer);
    if (!refused || (own != nullptr) || origin >= 0) continue;
    refusal = std::move(refused);
    origin = peer;
  }
  if (!refusal) return;
  // The call is carried to its end without rows, so that windows and epochs stay in step on every rank.
  finish(call);
  wait_for_finishes(call, part);
  ++part.call.refused;
  const std::string text =
      origin == rank()
          ? refusal->text
          : fmt::format(
                "rank {} refused call {} ({}): {}", origin, call.epoch, to_string(call.operation), refusal->text);
  throw Error(refusal->code, text, origin);
}

void ExchangeCore::wait_for_finishes(const Call& call, CallPart& part) {
  for (int peer = 0; peer < group_->num_ranks(); ++peer) {
    if (peer != rank()) wait_for(call, peer, Awaited::finished, 0, part);
  }
}

std::byte* ExchangeCore::parity(const Call& call, int peer) const noexcept {
  return group_->window(peer) + group_->window_bytes().parity_offset(call.epoch);
}

std::byte* ExchangeCore::stage(int peer) const noexcept {
  return group_->window(peer) + group_->window_bytes().stage_offset();
}

std::byte* ExchangeCore::region(int peer) const noexcept {
  return group_->window(peer) + group_->window_bytes().region_offset();
}

model::CallFacts& ExchangeCore::facts(const Call& call, int at_rank, int of_rank) const noexcept {
  // Laid out by model/layout: 64-byte slots in registered memory.
  return reinterpret_cast<model::CallFacts*>(parity(call, at_rank) + layout_.facts_offset)[of_rank];
}

std::byte* ExchangeCore::table(const Call& call, int at_rank, int of_rank) const noexcept {
  return parity(call, at_rank) + layout_.tables_offset + idx(of_rank) * layout_.table_stride;
}

std::int32_t* ExchangeCore::counts(const Call& call, int at_rank, int of_rank) const noexcept {
  // Laid out by model/layout: 64-byte aligned arrays of i32.
  return reinterpret_cast<std::int32_t*>(parity(call, at_rank) + layout_.counts_offset +
                                         idx(of_rank) * layout_.counts_stride);
}

}  // namespace moebus::engine
