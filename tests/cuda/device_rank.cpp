#include "tests/cuda/device_rank.hpp"

#include <unistd.h>

#include <algorithm>
#include <bit>

#include "base/math.hpp"
#include "engine/peers.hpp"
#include "oracle/compare.hpp"
#include "oracle/numbers.hpp"
#include "workload/data.hpp"

namespace moebus::tests {

using base::idx;

namespace {

constexpr std::uint64_t kSecondNs = 1'000'000'000;

}  // namespace

DeviceRank::DeviceRank(std::unique_ptr<backend::Device> device,
                       StreamHandle stream,
                       const cases::ExchangeCase& one,
                       int rank)
    : device_(std::move(device)), stream_(stream), one_(one), rank_(rank) {
  model::GroupFacts facts = model::GroupFacts::one_node(one.num_ranks);
  facts.rank = rank;
  shape_ = model::make_shape(one.config, facts);
  device_shape_ = model::device_shape(shape_);
  layout_ = model::result_layout(shape_);
  allocate();
}

std::size_t DeviceRank::window_bytes() const { return sizeof(sync::DeviceControl) + 2 * device_shape_.parity_bytes; }

void DeviceRank::allocate() {
  window_ = device_->make_window(rank_, one_.num_ranks, window_bytes());
  state_ = device_->allocate(sizeof(sync::DeviceState));
  report_ = device_->allocate_pinned(sizeof(sync::DeviceReport));
  context_.windows = window_->base();
  context_.window_stride_bytes = window_->stride_bytes();
  context_.parity_stride_bytes = device_shape_.parity_bytes;
  context_.state = reinterpret_cast<sync::DeviceState*>(state_->data());
  context_.report = reinterpret_cast<sync::DeviceReport*>(report_->data());
  const sync::DeviceState fresh;
  device_->copy(state_->data(), reinterpret_cast<const std::byte*>(&fresh), sizeof(fresh));
  device_->fill(window_->base() + idx(rank_) * window_->stride_bytes(), 0, sizeof(sync::DeviceControl));
  set_limits(30 * kSecondNs, 10 * kSecondNs);

  const std::size_t topk = idx(one_.config.num_topk);
  const std::size_t tokens = idx(one_.config.max_tokens_per_rank);
  const std::size_t rows = idx(std::max<std::int64_t>(shape_.result_rows, 1));
  const auto take = [&]<class T>(T*& pointer, std::size_t num) {
    memory_.push_back(device_->allocate(std::max<std::size_t>(1, num) * sizeof(T)));
    pointer = reinterpret_cast<T*>(memory_.back()->data());
  };
  backend::DeviceHandle& handle = dispatch_.handle;
  take(handle.ids, tokens * topk);
  take(handle.weights, tokens * topk);
  take(handle.home, tokens * 2);
  take(handle.positions, idx(one_.num_ranks) * tokens * topk);
  take(handle.recv_weights, idx(one_.num_ranks) * tokens * topk);
  take(handle.slots, idx(one_.num_ranks) * tokens);
  const std::size_t local = idx(shape_.placement.num_local(rank_));
  result_.emplace(*device_, layout_.total_bytes);
  idx_.emplace(*device_, rows * topk);
  weights_.emplace(*device_, rows * topk);
  src_rank_.emplace(*device_, rows);
  src_token_.emplace(*device_, rows);
  counts_.emplace(*device_, local);
  wanted_.emplace(*device_, local);
  offsets_.emplace(*device_, local + 1);
  rank_counts_.emplace(*device_, idx(one_.num_ranks));
  row_counts_.emplace(*device_, 2);
  output_.emplace(*device_, tokens * device_shape_.combine_words * model::kWideBytes);
  missing_.emplace(*device_, tokens);
  device_->load_kernels(device_shape_);
}

void DeviceRank::connect(std::vector<std::unique_ptr<DeviceRank>>& ranks) {
  for (std::size_t a = 0; a < ranks.size(); ++a) {
    for (std::size_t b = 0; b < ranks.size(); ++b) {
      if (a != b) ranks[a]->map_peer(static_cast<int>(b), base::UniqueFd(::dup(ranks[b]->descriptor())));
    }
  }
}

void DeviceRank::set_limits(std::uint64_t arrival_ns, std::uint64_t progress_ns) {
  context_.report->arrival_limit_ns = arrival_ns;
  context_.report->progress_limit_ns = progress_ns;
}

void DeviceRank::load(const cases::DispatchTruth& truth) {
  const oracle::RankInput& given = (*truth.inputs)[idx(rank_)];
  inputs_.clear();
  const auto put = [&](const auto& values) -> std::byte* {
    const auto* bytes = reinterpret_cast<const std::byte*>(values.data());
    const std::size_t size = values.size() * sizeof(values[0]);
    inputs_.push_back(std::make_unique<DeviceArray<std::byte>>(*device_, size));
    inputs_.back()->put(bytes, size);
    return inputs_.back()->data();
  };
  backend::DeviceDispatch& call = dispatch_;
  call.shape = device_shape_;
  call.context = context_;
  call.num_tokens = static_cast<std::int32_t>(given.num_tokens);
  const auto row_bytes = static_cast<std::int64_t>(oracle::given_row_bytes(one_.config));
  if (one_.has_row_gaps) {
    const std::int64_t stride = row_bytes + 3 * static_cast<std::int64_t>(size_of(one_.config.dtype));
    std::vector<std::byte> gapped(idx(stride * given.num_tokens));
    for (std::int64_t n = 0; n < given.num_tokens; ++n) {
      std::copy_n(given.tokens.data() + n * row_bytes, row_bytes, gapped.data() + n * stride);
    }
    call.tokens = {put(gapped), stride, 0, 0, 0};
  } else {
    call.tokens = {put(given.tokens), row_bytes, 0, 0, 0};
  }
  const std::int64_t scale_bytes = std::int64_t{device_shape_.scale_items} * 4;
  if (!given.scales.empty()) call.scales = {put(given.scales), scale_bytes, 4, 0, 0};
  for (std::size_t s = 0; s < kMaxSideTensors; ++s) {
    if (one_.config.side_bytes[s] > 0) call.side[s] = {put(given.side[s]), one_.config.side_bytes[s], 0, 0, 0};
  }
  call.has_wide_ids = !one_.has_short_ids;
  if (one_.has_short_ids) {
    call.topk_idx = put(std::vector<std::int32_t>(given.topk_idx.begin(), given.topk_idx.end()));
  } else {
    call.topk_idx = put(given.topk_idx);
  }
  call.has_weights = given.has_weights;
  call.topk_weights = given.has_weights ? reinterpret_cast<const float*>(put(given.topk_weights)) : nullptr;

  for (auto* memory : {&idx_, &src_rank_, &src_token_, &counts_, &wanted_, &rank_counts_}) (*memory)->fill(0xEE);
  result_->fill(0xEE);
  weights_->fill(0xEE);
  offsets_->fill(0xEE);
  row_counts_->fill(0xEE);
  const backend::RowArrays rows = engine::result_rows(shape_, layout_, result_->data());
  call.out_tokens = {rows.tokens, rows.token_stride_bytes, 0, 0, 0};
  call.out_scales = {rows.scales,
                     rows.scale_row_stride_bytes,
                     rows.scale_item_stride_bytes,
                     rows.scale_group_rows,
                     rows.scale_group_stride_bytes};
  for (std::size_t s = 0; s < kMaxSideTensors; ++s) {
    call.out_side[s] = {rows.side[s], rows.side_stride_bytes[s], 0, 0, 0};
  }
  call.out_idx = idx_->data();
  call.out_weights = weights_->data();
  call.out_src_rank = src_rank_->data();
  call.out_src_token = src_token_->data();
  call.out_counts = counts_->data();
  call.out_wanted = wanted_->data();
  call.out_offsets = offsets_->data();
  call.out_rank_counts = rank_counts_->data();
  call.out_row_counts = row_counts_->data();
  call.has_host_counts = true;
}

void DeviceRank::load(const cases::DispatchTruth& dispatched, const cases::CombineTruth& truth) {
  const oracle::DispatchExpectation& expected = dispatched.expected[idx(rank_)];
  const oracle::HomeInput& home = truth.homes[idx(rank_)];
  const std::size_t row_bytes = idx(device_shape_.combine_hidden) * size_of(one_.config.combine_dtype);
  std::vector<std::byte> rows(idx(std::max<std::int64_t>(shape_.result_rows, 1)) * row_bytes);
  workload::fill_poison(rows);  // padding must never be read
  for (const oracle::ReceivedRow& row : expected.rows) {
    cases::fill_answer(one_.config,
                       truth.seed,
                       rank_,
                       row.position,
                       std::span(rows).subspan(idx(row.position) * row_bytes, row_bytes));
  }
  inputs_.push_back(std::make_unique<DeviceArray<std::byte>>(*device_, rows.size()));
  inputs_.back()->put(rows.data(), rows.size());
  backend::DeviceCombine& call = combine_;
  call.shape = device_shape_;
  call.context = context_;
  call.handle = dispatch_.handle;
  call.num_tokens = dispatch_.num_tokens;
  call.is_weighted = truth.weighting == Weighting::dispatched && one_.config.layout != Layout::rank_major;
  const auto stride = static_cast<std::int64_t>(row_bytes);
  call.rows = {inputs_.back()->data(), stride, 0, 0, 0};
  for (std::size_t b = 0; b < 2; ++b) {
    call.bias[b] = nullptr;
    if (b >= idx(one_.num_bias)) continue;
    inputs_.push_back(std::make_unique<DeviceArray<std::byte>>(*device_, home.bias[b].size()));
    inputs_.back()->put(home.bias[b].data(), home.bias[b].size());
    call.bias[b] = inputs_.back()->data();
    call.bias_stride_bytes[b] = stride;
  }
  output_->fill(0xEE);
  missing_->fill(0xEE);
  call.output = {output_->data(), stride, 0, 0, 0};
  call.out_missing = missing_->data();
}

void DeviceRank::enqueue_dispatch(int num_blocks, std::uint32_t refusal) {
  dispatch_.refusal = refusal;
  device_->enqueue_dispatch(dispatch_, {stream_, num_blocks});
}

void DeviceRank::enqueue_combine(int num_blocks) { device_->enqueue_combine(combine_, {stream_, num_blocks}); }

bool DeviceRank::synchronize() { return device_->synchronize(stream_, base::Deadline(std::chrono::seconds(60))); }

std::optional<std::string> DeviceRank::difference(const cases::DispatchTruth& truth) const {
  const ExchangeConfig& config = one_.config;
  std::vector<std::byte> memory = result_->get();
  const auto idx_values = idx_->get();
  const auto weights = weights_->get();
  const auto src_rank = src_rank_->get();
  const auto src_token = src_token_->get();
  const auto counts = counts_->get();
  const auto wanted = wanted_->get();
  const auto offsets = offsets_->get();
  const auto rank_counts = rank_counts_->get();
  const auto row_counts = row_counts_->get();
  const DispatchOutput output = engine::result_tensors(shape_, layout_, rank_, memory.data());
  oracle::DispatchSeen seen;
  seen.tokens = output.tokens;
  seen.scales = output.scales;
  seen.side = {output.side[0], output.side[1]};
  seen.num_rows = row_counts[0];
  seen.num_overflowed = row_counts[1];
  const bool is_rank_major = config.layout == Layout::rank_major;
  std::int64_t rows = shape_.result_rows;
  if (config.layout != Layout::expert_padded) {
    rows = seen.num_rows;
    if (rows < 0 || rows > shape_.result_rows) return "num_rows is " + std::to_string(rows);
    seen.tokens.shape[0] = rows;
    if (seen.scales.is_given()) seen.scales.shape[0] = rows;
    for (ConstTensorView& side : seen.side) {
      if (side.is_given()) side.shape[0] = rows;
    }
  }
  const auto local = static_cast<std::int64_t>(counts.size());
  if (is_rank_major) seen.topk_idx = tensor_2d(idx_values.data(), DType::i32, rows, config.num_topk);
  if (one_.has_weights) {
    seen.topk_weights = is_rank_major ? tensor_2d(weights.data(), DType::f32, rows, config.num_topk)
                                      : tensor_1d(weights.data(), DType::f32, rows);
  }
  seen.src_rank = tensor_1d(src_rank.data(), DType::i32, rows);
  seen.src_token = tensor_1d(src_token.data(), DType::i32, rows);
  seen.counts = tensor_1d(counts.data(), DType::i32, local);
  seen.wanted = tensor_1d(wanted.data(), DType::i32, local);
  if (!is_rank_major) seen.offsets = tensor_1d(offsets.data(), DType::i64, local + 1);
  seen.rank_counts = tensor_1d(rank_counts.data(), DType::i32, one_.num_ranks);
  if (report().num_rows != seen.num_rows) return "the host was told of " + std::to_string(report().num_rows) + " rows";
  const auto found = oracle::compare(truth.expected[idx(rank_)], seen);
  return found ? std::optional("dispatch on rank " + std::to_string(rank_) + ": " + found->text()) : std::nullopt;
}

std::optional<std::string> DeviceRank::difference(const cases::CombineTruth& truth) const {
  const std::vector<std::byte> memory = output_->get();
  const std::vector<std::uint64_t> missing = missing_->get();
  const std::int64_t tokens = combine_.num_tokens;
  oracle::CombineSeen seen;
  seen.tokens = tensor_2d(memory.data(), one_.config.combine_dtype, tokens, device_shape_.combine_hidden);
  if (device_shape_.can_overflow) {
    seen.missing = tensor_1d(missing.data(), DType::i64, tokens);
    seen.num_incomplete =
        std::count_if(missing.begin(), missing.begin() + tokens, [](std::uint64_t bits) { return bits != 0; });
  }
  const auto found = oracle::compare(truth.expected[idx(rank_)], seen);
  return found ? std::optional("combine on rank " + std::to_string(rank_) + ": " + found->text()) : std::nullopt;
}

bool DeviceRank::is_armed() const {
  std::vector<std::byte> window(window_bytes());
  device_->copy(window.data(), window_->base() + idx(rank_) * window_->stride_bytes(), window.size());
  for (std::size_t parity = 0; parity < 2; ++parity) {
    const auto first =
        window.begin() + static_cast<std::ptrdiff_t>(sizeof(sync::DeviceControl) + parity * device_shape_.parity_bytes +
                                                     device_shape_.rows_offset);
    const auto end = first + static_cast<std::ptrdiff_t>(device_shape_.parity_bytes - device_shape_.rows_offset);
    if (std::any_of(first, end, [](std::byte byte) { return byte != std::byte{0xFF}; })) return false;
  }
  return true;
}

}  // namespace moebus::tests
