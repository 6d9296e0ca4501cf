#include "tests/support/exchange_run.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <span>
#include <stdexcept>
#include <utility>

#include "base/math.hpp"
#include "oracle/compare.hpp"
#include "oracle/numbers.hpp"
#include "workload/data.hpp"

namespace moebus::tests {
namespace {

using base::idx;

DType scale_dtype(const ExchangeConfig& config) {
  return config.scale_format == ScaleFormat::ue8m0 ? DType::i32 : DType::f32;
}

std::int64_t scale_items(const ExchangeConfig& config) {
  return static_cast<std::int64_t>(oracle::scale_row_bytes(config.hidden, config.scale_format) / 4);
}

void throw_if(const std::optional<oracle::Difference>& difference, const char* call, int rank) {
  if (!difference) return;
  throw std::runtime_error(std::string(call) + " on rank " + std::to_string(rank) + ": " + difference->text());
}

template <class OptionsOf>
std::vector<RankOutcome> run_members(int num_ranks, bool as_processes, const MemberBody& body, OptionsOf options_of) {
  const std::string uri = unique_uri(as_processes);
  const auto run = as_processes ? &run_as_processes : &run_as_threads;
  return run(
      num_ranks,
      [&](int rank) {
        Group group = Group::join(uri, rank, num_ranks, options_of(rank));
        body(group);
      },
      kRanksLimit);
}

void check_count(const std::string& what, int src, int dst, std::uint64_t seen, std::uint64_t least, bool is_exact) {
  if (seen == least || (!is_exact && seen < least)) return;
  throw std::runtime_error(what + " from rank " + std::to_string(src) + " to " + std::to_string(dst) + ": counted " +
                           std::to_string(seen) + ", needed are " + std::to_string(least));
}

void check_peer(
    const std::string& call, const PeerStats& stats, int rank, int peer, const oracle::Traffic& least, bool is_exact) {
  const auto check = [&](const char* what, int src, int dst, std::uint64_t seen, std::uint64_t needed) {
    check_count(call + what, src, dst, seen, needed, is_exact);
  };
  check(" bytes sent", rank, peer, stats.bytes_sent, least.bytes_of(rank, peer));
  check(" bytes received", peer, rank, stats.bytes_received, least.bytes_of(peer, rank));
  if (peer == rank) return;  // rows that stay are no traffic
  check(" rows sent", rank, peer, stats.rows_sent, least.rows_of(rank, peer));
  check(" rows received", peer, rank, stats.rows_received, least.rows_of(peer, rank));
}

}  // namespace

std::string unique_uri(bool as_processes) {
  static std::atomic<int> last{0};
  return std::string(as_processes ? "local://" : "inproc://") + "test-" + std::to_string(::getpid()) + "-" +
         std::to_string(++last);
}

GroupOptions quiet_options() {
  GroupOptions options;
  options.join_limit = std::chrono::seconds(50);
  options.arrival_limit = std::chrono::seconds(50);
  options.progress_limit = std::chrono::seconds(50);
  options.show_progress = false;
  return options;
}

std::vector<RankOutcome> run_group(int num_ranks,
                                   bool as_processes,
                                   const MemberBody& body,
                                   const GroupOptions& options) {
  return run_members(num_ranks, as_processes, body, [&](int) { return options; });
}

std::vector<RankOutcome> run_group(const ExchangeCase& one, const MemberBody& body, const GroupOptions& options) {
  return run_members(one.num_ranks, one.as_processes, body, [&](int rank) {
    GroupOptions own = options;
    if (!one.nodes.empty()) own.host_id = "node-" + std::to_string(one.nodes[idx(rank)]);
    own.levels = one.levels;
    own.map_peers = one.map_peers;
    return own;
  });
}

void expect_ok(const std::vector<RankOutcome>& outcomes) { EXPECT_TRUE(all_ok(outcomes)); }

ExchangeRun::ExchangeRun(const Group& group, const ExchangeCase& one)
    : one_(one), config_(one.config), rank_(group.rank()), exchange_(group, one.config) {
  exchange_.prepare();
  if (!one.placement.experts.empty()) exchange_.set_placement(one.placement, one.rule);
}

DispatchInput ExchangeRun::input(const DispatchTruth& truth, DispatchBuffers& buffers) {
  const oracle::RankInput& given = (*truth.inputs)[idx(rank_)];
  DispatchInput input;
  input.tokens = tensor_2d(given.tokens.data(), config_.dtype, given.num_tokens, config_.hidden);
  input.topk_idx = tensor_2d(given.topk_idx.data(), DType::i64, given.num_tokens, config_.num_topk);
  if (given.has_weights) {
    input.topk_weights = tensor_2d(given.topk_weights.data(), DType::f32, given.num_tokens, config_.num_topk);
  }
  if (config_.cast == Cast::none && config_.scale_format != ScaleFormat::none) {
    input.scales = tensor_2d(given.scales.data(), scale_dtype(config_), given.num_tokens, scale_items(config_));
  }
  for (std::size_t s = 0; s < kMaxSideTensors; ++s) {
    if (config_.side_bytes[s] == 0) continue;
    input.side[s] = tensor_2d(given.side[s].data(), DType::u8, given.num_tokens, config_.side_bytes[s]);
  }
  if (one_.has_short_ids) {
    buffers.short_ids.assign(given.topk_idx.begin(), given.topk_idx.end());
    input.topk_idx = tensor_2d(std::as_const(buffers.short_ids).data(), DType::i32, given.num_tokens, config_.num_topk);
  }
  if (one_.has_row_gaps) leave_gaps(given, input, buffers);
  if (one_.has_output) give_outputs(input, buffers);
  return input;
}

void ExchangeRun::leave_gaps(const oracle::RankInput& given, DispatchInput& input, DispatchBuffers& buffers) const {
  constexpr std::int64_t kGap = 3;  // elements
  const std::size_t row = oracle::given_row_bytes(config_);
  const std::size_t stride = row + idx(kGap) * size_of(config_.dtype);
  buffers.gapped.assign(stride * idx(given.num_tokens), std::byte{0xEE});
  for (std::size_t n = 0; n < idx(given.num_tokens); ++n) {
    std::memcpy(buffers.gapped.data() + n * stride, given.tokens.data() + n * row, row);
  }
  input.tokens.data = buffers.gapped.data();
  input.tokens.stride[0] = config_.hidden + kGap;
}

TensorView ExchangeRun::output(std::vector<std::byte>& memory, DType dtype, std::int64_t columns) {
  const std::int64_t rows = exchange_.capacity_rows();
  const bool is_padded = config_.layout == Layout::expert_padded;
  const std::int64_t experts = is_padded ? exchange_.num_local_experts() : 1;
  memory.resize(std::max<std::size_t>(1, idx(experts * rows * columns) * size_of(dtype)));
  workload::fill_poison(memory);
  if (is_padded) return tensor_3d(memory.data(), dtype, experts, rows, columns);
  return tensor_2d(memory.data(), dtype, rows, columns);
}

void ExchangeRun::give_outputs(DispatchInput& input, DispatchBuffers& buffers) {
  input.output.tokens = output(buffers.tokens, oracle::received_dtype(config_), config_.hidden);
  if (config_.scale_format != ScaleFormat::none) {
    input.output.scales = output(buffers.scales, scale_dtype(config_), scale_items(config_));
  }
  for (std::size_t s = 0; s < kMaxSideTensors; ++s) {
    if (config_.side_bytes[s] > 0) input.output.side[s] = output(buffers.side[s], DType::u8, config_.side_bytes[s]);
  }
}

DispatchResult ExchangeRun::dispatch(const DispatchTruth& truth, DispatchBuffers& buffers) {
  DispatchResult result = exchange_.dispatch(input(truth, buffers));
  check(truth, result);
  return result;
}

void ExchangeRun::check(const DispatchTruth& truth, const DispatchResult& result) const {
  throw_if(oracle::compare(truth.expected[idx(rank_)], oracle::dispatch_seen(result)), "dispatch", rank_);
}

void ExchangeRun::check(const CombineTruth& truth, const CombineResult& result) const {
  throw_if(oracle::compare(truth.expected[idx(rank_)], oracle::combine_seen(result)), "combine", rank_);
}

CombineInput ExchangeRun::answers(const DispatchTruth& dispatched,
                                  const CombineTruth& truth,
                                  const DispatchHandle& handle,
                                  CombineBuffers& buffers) {
  const oracle::DispatchExpectation& expected = dispatched.expected[idx(rank_)];
  const oracle::HomeInput& home = truth.homes[idx(rank_)];
  const std::int64_t tokens = (*dispatched.inputs)[idx(rank_)].num_tokens;
  const bool is_padded = config_.layout == Layout::expert_padded;
  const std::int64_t experts = exchange_.num_local_experts();
  const std::int64_t rows = is_padded ? exchange_.capacity_rows() * experts : expected.num_rows;
  const int columns = oracle::combine_columns(config_);
  const DType dtype = config_.combine_dtype;
  const std::size_t row_bytes = idx(columns) * size_of(dtype);
  buffers.rows.resize(std::max<std::size_t>(1, idx(rows) * row_bytes));
  workload::fill_poison(buffers.rows);  // padding must never be read
  buffers.lane.assign(std::max<std::size_t>(1, idx(rows * config_.num_topk)), -1.0F);
  for (const oracle::ReceivedRow& row : expected.rows) {
    const std::span bytes(buffers.rows.data() + idx(row.position) * row_bytes, row_bytes);
    fill_answer(config_, truth.seed, rank_, row.position, bytes);
    for (int k = 0; k < config_.num_topk; ++k) {
      buffers.lane[idx(row.position * config_.num_topk + k)] = answer_lane(rank_, row.position, k);
    }
  }
  const std::byte* const data = buffers.rows.data();
  CombineInput input;
  input.handle = handle;
  input.weighting = truth.weighting;
  input.rows = is_padded ? tensor_3d(data, dtype, experts, exchange_.capacity_rows(), columns)
                         : tensor_2d(data, dtype, rows, columns);
  if (truth.weighting == Weighting::given) {
    input.topk_weights = tensor_2d(home.topk_weights.data(), DType::f32, tokens, config_.num_topk);
  }
  for (std::size_t b = 0; b < home.bias.size() && b < idx(one_.num_bias); ++b) {
    input.bias[b] = tensor_2d(home.bias[b].data(), dtype, tokens, columns);
  }
  if (config_.combine_lane) {
    input.lane = tensor_2d(std::as_const(buffers.lane).data(), DType::f32, rows, config_.num_topk);
  }
  if (one_.has_output) {
    buffers.output.resize(std::max<std::size_t>(1, idx(tokens) * row_bytes));
    workload::fill_poison(buffers.output);
    input.output = tensor_2d(buffers.output.data(), dtype, tokens, columns);
  }
  return input;
}

void ExchangeRun::combine(const DispatchTruth& dispatched, const CombineTruth& truth, const DispatchHandle& handle) {
  CombineBuffers buffers;
  check(truth, exchange_.combine(answers(dispatched, truth, handle, buffers)));
}

void ExchangeRun::exchange_once(const DispatchTruth& dispatched, const CombineTruth& combined) {
  DispatchBuffers buffers;
  DispatchResult result = dispatch(dispatched, buffers);
  combine(dispatched, combined, result.handle);
  poison_rows(result);
}

void poison_rows(DispatchResult& result) {
  const TensorView& tokens = result.tokens;
  workload::fill_poison({tokens.data, idx(tokens.num_elements()) * size_of(tokens.dtype)});
}

void check_traffic(const ExchangeStats& stats, int rank, const LeastTraffic& least, bool is_exact) {
  for (int peer = 0; peer < stats.num_ranks; ++peer) {
    check_peer("dispatch", stats.dispatch_peers[idx(peer)], rank, peer, least.dispatch, is_exact);
    check_peer("combine", stats.combine_peers[idx(peer)], rank, peer, least.combine, is_exact);
  }
}

::testing::AssertionResult matches_oracle(const ExchangeCase& one) {
  std::vector<DispatchTruth> dispatched;
  std::vector<CombineTruth> combined;
  LeastTraffic least;
  for (int call = 0; call < one.num_calls; ++call) {
    dispatched.push_back(make_dispatch_truth(one, call));
    combined.push_back(make_combine_truth(one, dispatched.back(), call));
    least.add(one, dispatched.back());
  }
  const auto outcomes = run_group(one, [&](Group& group) {
    ExchangeRun run(group, one);
    for (std::size_t call = 0; call < dispatched.size(); ++call) run.exchange_once(dispatched[call], combined[call]);
    check_traffic(run.exchange().stats(), group.rank(), least, one.config.capacity_rows == 0);
  });
  const auto result = all_ok(outcomes);
  if (result) return result;
  return ::testing::AssertionFailure() << describe(one) << "\n" << result.message();
}

std::string error_of(ErrorCode code, int origin_rank, const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(to_string(error.code()), to_string(code)) << error.what();
    EXPECT_EQ(error.origin_rank(), origin_rank) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

}  // namespace moebus::tests
