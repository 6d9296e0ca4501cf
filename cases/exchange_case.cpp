#include "cases/exchange_case.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <sstream>

#include "oracle/numbers.hpp"
#include "workload/data.hpp"
#include "workload/random.hpp"
#include "workload/routing.hpp"

namespace moebus::cases {
namespace {

using workload::Random;
using workload::seed_from;

std::size_t idx(std::int64_t i) noexcept { return static_cast<std::size_t>(i); }

std::size_t align_up(std::size_t bytes, std::size_t to) noexcept { return (bytes + to - 1) / to * to; }

template <class T, std::size_t N>
T pick(Random& random, const std::array<T, N>& from) {
  return from[random.below(N)];
}

bool happens(Random& random, unsigned percent) { return random.below(100) < percent; }

std::size_t answer_row_bytes(const ExchangeConfig& config) {
  return idx(oracle::combine_columns(config)) * size_of(config.combine_dtype);
}

std::size_t travel_bytes(const ExchangeConfig& config) {
  // At most 15 bytes of padding for each of four parts, and slots of 64 bytes.
  std::size_t bytes = oracle::received_row_bytes(config) + oracle::scale_row_bytes(config.hidden, config.scale_format);
  for (const int side : config.side_bytes) bytes += idx(side);
  return align_up(bytes + 60, 64);
}

void choose_types(Random& random, ExchangeConfig& config) {
  constexpr std::array kPayload{DType::bf16,
                                DType::bf16,
                                DType::f16,
                                DType::f32,
                                DType::e4m3,
                                DType::e5m2,
                                DType::u8,
                                DType::i8,
                                DType::i16,
                                DType::i32,
                                DType::i64,
                                DType::f64};
  config.dtype = pick(random, kPayload);
  config.combine_dtype = pick(random, std::array{DType::bf16, DType::bf16, DType::f16, DType::f32});
  if (happens(random, 25)) config.combine_hidden = pick(random, std::array{1, 5, 32, 100, 300});
  if (happens(random, 35)) {
    config.dtype = DType::bf16;
    config.cast = Cast::fp8;
  }
  if (config.cast == Cast::fp8 || happens(random, 25)) {
    config.scale_format = happens(random, 50) ? ScaleFormat::f32 : ScaleFormat::ue8m0;
    config.scale_order = happens(random, 50) ? ScaleOrder::row_major : ScaleOrder::column_major;
  }
  if (happens(random, 30)) config.side_bytes[0] = pick(random, std::array{1, 4, 13, 16, 100});
  if (config.side_bytes[0] > 0 && happens(random, 50)) config.side_bytes[1] = pick(random, std::array{2, 8, 33});
}

void choose_layout(Random& random, ExchangeConfig& config, int num_ranks) {
  config.layout = pick(random, std::array{Layout::rank_major, Layout::expert_major, Layout::expert_padded});
  if (config.layout == Layout::expert_major) config.expert_alignment = pick(random, std::array{1, 1, 2, 8, 16});
  if (config.layout != Layout::rank_major && happens(random, 40)) config.combine_rows = CombineRows::per_expert;
  if (happens(random, 35)) {
    const auto most = static_cast<std::uint64_t>(config.max_tokens_per_rank) * static_cast<std::uint64_t>(num_ranks);
    config.capacity_rows = static_cast<std::int64_t>(1 + random.below(most));
  }
  config.zero_padding = happens(random, 30);
  config.combine_lane = happens(random, 30);
}

void choose_call(Random& random, ExchangeCase& one) {
  const ExchangeConfig& config = one.config;
  one.gate =
      pick(random, std::array{Gate::uniform, Gate::uniform, Gate::skewed, Gate::single, Gate::masked, Gate::repeated});
  one.has_weights = happens(random, 75);
  one.has_short_ids = happens(random, 40);
  one.has_row_gaps = happens(random, 20);
  const bool is_direct = config.path == Path::throughput && config.delivery == Delivery::direct;
  // A caller's own scale tensors are given row-major; column-major ones have strides that only the library chooses.
  one.has_output = !is_direct && config.scale_order == ScaleOrder::row_major && happens(random, 30);
  one.config.caller_results = one.has_output && happens(random, 50);
  if (config.layout != Layout::rank_major) {
    one.weighting = pick(random, std::array{Weighting::none, Weighting::dispatched, Weighting::given});
    if (one.weighting == Weighting::dispatched) one.has_weights = true;
  }
  one.num_bias = static_cast<int>(random.below(3));
}

std::vector<std::byte> random_bytes(std::size_t size, DType dtype, std::uint64_t seed) {
  std::vector<std::byte> bytes(size);
  workload::fill_random(bytes, dtype, seed);
  return bytes;
}

/// Any expert, or none, each choice for itself.
void choose_any(const ExchangeConfig& config, Random& random, workload::RoutingTable& table) {
  for (std::int64_t& expert : table.topk_idx) {
    expert = static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(config.num_experts) + 1)) - 1;
  }
  for (float& weight : table.topk_weights) weight = random.unit() - 0.25F;
}

/// Nodes of ranks in one of five patterns.
std::vector<int> choose_nodes(Random& random, int num_ranks) {
  const std::uint64_t pattern = random.below(5);
  std::vector<int> nodes;
  for (int rank = 0; rank < num_ranks; ++rank) {
    const std::array<int, 5> node{0, 2 * rank / num_ranks, rank == num_ranks - 1 ? 1 : 0, std::min(rank, 2), rank % 2};
    nodes.push_back(node[pattern]);
  }
  return nodes;
}

bool sits_on(const Placement& placement, std::size_t seats_per_rank, std::size_t seat, std::int32_t expert) {
  const auto first = placement.experts.begin() + static_cast<std::ptrdiff_t>(seat / seats_per_rank * seats_per_rank);
  const auto end = first + static_cast<std::ptrdiff_t>(seats_per_rank);
  return std::find(first, end, expert) != end;
}

/// Every expert in a random seat; of the seats left over, most hold a replica.
Placement choose_placement(Random& random, const ExchangeConfig& config, int num_ranks) {
  const std::size_t num_seats = idx(config.seats_per_rank) * idx(num_ranks);
  std::vector<std::size_t> seats(num_seats);
  for (std::size_t i = 0; i < num_seats; ++i) {
    const std::size_t other = random.below(i + 1);
    seats[i] = seats[other];
    seats[other] = i;
  }
  Placement placement;
  placement.experts.assign(num_seats, -1);
  for (std::size_t i = 0; i < num_seats; ++i) {
    if (i < idx(config.num_experts)) {
      placement.experts[seats[i]] = static_cast<std::int32_t>(i);
      continue;
    }
    const auto expert = static_cast<std::int32_t>(random.below(static_cast<std::uint64_t>(config.num_experts)));
    const bool is_there = sits_on(placement, idx(config.seats_per_rank), seats[i], expert);
    if (!is_there && happens(random, 75)) placement.experts[seats[i]] = expert;
  }
  return placement;
}

/// A rule of the caller: the same for every choice of a token that names the expert.
int turn_by_expert(const ReplicaChoice& choice) {
  return static_cast<int>((3 * choice.token + choice.expert + choice.src_rank) %
                          static_cast<std::int64_t>(choice.ranks.size()));
}

/// Rounds lie beside what gateways add up: the same few rows a round for all that one may serve.
void make_room_for_gateways(ExchangeCase& one) {
  if (one.config.path != Path::throughput || !oracle::GroupShape{one.num_ranks, one.nodes, 2}.has_several_nodes())
    return;
  const ExchangeConfig& config = one.config;
  const std::size_t answer = align_up(answer_row_bytes(config) + 4 * idx(config.num_topk) + 80, 64);
  const std::size_t relayed = idx(std::min(one.num_ranks, config.num_topk)) * idx(one.num_ranks);
  one.config.stage_bytes += 6 * relayed * answer;
}

workload::RoutingTable make_table(const ExchangeCase& one, int rank, std::int64_t tokens, std::uint64_t seed) {
  const ExchangeConfig& config = one.config;
  Random random(seed_from(seed, 17, static_cast<std::uint64_t>(rank)));
  workload::RoutingTable table{tokens, config.num_topk, {}, {}};
  table.topk_idx.resize(idx(tokens * config.num_topk));
  table.topk_weights.resize(table.topk_idx.size());
  const bool are_distinct = config.num_topk <= config.num_experts && one.gate != Gate::repeated;
  if (one.choose || !are_distinct) {
    choose_any(config, random, table);
  } else {
    workload::RoutingSpec spec;
    if (one.gate == Gate::skewed) spec = workload::parse_routing("zipf:1.5");
    if (one.gate == Gate::single) spec = workload::parse_routing("single");
    if (one.gate == Gate::masked) spec = workload::parse_routing("uniform,masked:0.6");
    table =
        workload::RoutingGenerator(spec, {config.num_experts, config.num_topk, one.num_ranks}).make(rank, tokens, seed);
  }
  for (std::int64_t token = 0; token < tokens && one.choose; ++token) {
    for (int k = 0; k < config.num_topk; ++k)
      table.topk_idx[idx(token * config.num_topk + k)] = one.choose(rank, token, k);
  }
  workload::poison_masked_weights(table);
  return table;
}

std::int64_t tokens_of(const ExchangeCase& one, Random& random, int rank) {
  if (!one.num_tokens.empty()) return one.num_tokens[idx(rank)];
  const auto most = static_cast<std::uint64_t>(one.config.max_tokens_per_rank);
  return random.below(4) == 0 ? 0 : static_cast<std::int64_t>(1 + random.below(most));
}

oracle::RankInput make_input(const ExchangeCase& one, int rank, std::uint64_t seed) {
  const ExchangeConfig& config = one.config;
  Random random(seed_from(seed, 23, static_cast<std::uint64_t>(rank)));
  oracle::RankInput input;
  input.num_tokens = tokens_of(one, random, rank);
  const std::size_t rows = idx(input.num_tokens);
  input.tokens = random_bytes(rows * oracle::given_row_bytes(config), config.dtype, random.next());
  if (config.cast == Cast::none) {
    const DType dtype = config.scale_format == ScaleFormat::f32 ? DType::f32 : DType::i32;
    input.scales =
        random_bytes(rows * oracle::scale_row_bytes(config.hidden, config.scale_format), dtype, random.next());
  }
  for (std::size_t s = 0; s < input.side.size(); ++s) {
    input.side[s] = random_bytes(rows * idx(config.side_bytes[s]), DType::u8, random.next());
  }
  workload::RoutingTable table = make_table(one, rank, input.num_tokens, seed);
  input.topk_idx = std::move(table.topk_idx);
  input.has_weights = one.has_weights;
  if (one.has_weights) input.topk_weights = std::move(table.topk_weights);
  return input;
}

oracle::HomeInput make_home(const ExchangeCase& one, const oracle::RankInput& input, std::uint64_t seed) {
  oracle::HomeInput home;
  Random random(seed);
  for (int b = 0; b < one.num_bias; ++b) {
    home.bias[idx(b)] =
        random_bytes(idx(input.num_tokens) * answer_row_bytes(one.config), one.config.combine_dtype, random.next());
  }
  if (one.weighting != Weighting::given) return home;
  home.topk_weights.resize(input.topk_idx.size());
  for (std::size_t i = 0; i < home.topk_weights.size(); ++i) {
    // The weight of no choice must have no effect.
    const bool is_masked = input.topk_idx[i] < 0;
    home.topk_weights[i] = is_masked ? std::numeric_limits<float>::quiet_NaN() : random.unit() - 0.25F;
  }
  return home;
}

}  // namespace

void set_route(ExchangeConfig& config, Route route, int num_ranks) {
  config.path = route == Route::latency ? Path::latency : Path::throughput;
  config.delivery = route == Route::staged ? Delivery::staged : Delivery::direct;
  if (route != Route::staged) return;
  // Room for three rows a round and source, or three tokens a round at home, whichever is more.
  const std::size_t answer = align_up(answer_row_bytes(config) + 4 * idx(config.num_topk) + 80, 64);
  const std::size_t dispatch = 6 * idx(num_ranks) * travel_bytes(config);
  const std::size_t combine = 6 * idx(config.num_topk) * answer;
  config.stage_bytes = std::max(dispatch, combine);
}

ExchangeConfig small_config(Route route, int num_ranks) {
  ExchangeConfig config;
  config.num_experts = 16;
  config.num_topk = 4;
  config.hidden = 64;
  config.max_tokens_per_rank = 16;
  set_route(config, route, num_ranks);
  return config;
}

ExchangeCase random_case(std::uint64_t seed, int num_ranks, Route route) {
  ExchangeCase one;
  one.seed = seed;
  one.num_ranks = num_ranks;
  Random random(seed);
  one.num_calls = 1 + static_cast<int>(random.below(3));
  ExchangeConfig& config = one.config;
  config.num_experts = 1 + static_cast<int>(random.below(happens(random, 20) ? 100 : 24));
  config.num_topk = happens(random, 5) ? kMaxTopk : 1 + static_cast<int>(random.below(9));
  config.hidden = pick(random, std::array{1, 2, 7, 16, 63, 64, 127, 128, 129, 256, 300, 520});
  config.max_tokens_per_rank = pick(random, std::array{1, 2, 3, 8, 17, 40});
  choose_types(random, config);
  choose_layout(random, config, num_ranks);
  set_route(config, route, num_ranks);
  choose_call(random, one);
  return one;
}

ExchangeCase random_group_case(std::uint64_t seed, int num_ranks, Route route, const GroupChoice& choice) {
  ExchangeCase one = random_case(seed, num_ranks, route);
  Random random(seed_from(seed, 41));
  ExchangeConfig& config = one.config;
  one.nodes = choose_nodes(random, num_ranks);
  one.levels = pick(random, std::array{0, 0, 0, 1, 2});
  one.map_peers = pick(random, std::array{MapPeers::reachable, MapPeers::node, MapPeers::none});
  config.inter_node = happens(random, 70) ? InterNode::gateway : InterNode::direct;
  if (!choice.nodes.empty()) one.nodes = choice.nodes;
  one.levels = choice.levels.value_or(one.levels);
  one.map_peers = choice.map_peers.value_or(one.map_peers);
  config.inter_node = choice.inter_node.value_or(config.inter_node);
  make_room_for_gateways(one);
  one.in_overlap = Random(seed_from(seed, 43)).below(4) == 0;
  if (one.in_overlap) one.num_calls += 1;
  if (!happens(random, 40)) return one;
  config.seats_per_rank = (config.num_experts + num_ranks - 1) / num_ranks + static_cast<int>(random.below(3));
  if (happens(random, 25)) return one;  // experts in order
  one.placement = choose_placement(random, config, num_ranks);
  if (happens(random, 40)) one.rule = turn_by_expert;
  return one;
}

GroupOptions group_options(const ExchangeCase& one, int rank, const GroupOptions& common) {
  GroupOptions options = common;
  if (!one.nodes.empty()) options.host_id = "node-" + std::to_string(one.nodes[idx(rank)]);
  options.levels = one.levels;
  options.map_peers = one.map_peers;
  return options;
}

oracle::GroupShape group_of(const ExchangeCase& one) {
  oracle::GroupShape group{one.num_ranks, one.nodes, 1};
  group.levels = one.levels != 0 ? one.levels : group.has_several_nodes() ? 2 : 1;
  return group;
}

std::string describe(const ExchangeCase& one) {
  const ExchangeConfig& config = one.config;
  std::ostringstream text;
  text << "seed " << one.seed << ", " << one.num_ranks << " ranks as " << (one.as_processes ? "processes" : "threads")
       << ", " << one.num_calls << " calls, " << config.num_experts << " experts, top-" << config.num_topk
       << ", hidden " << config.hidden << ", <= " << config.max_tokens_per_rank << " tokens, "
       << to_string(config.dtype) << ", cast " << to_string(config.cast) << ", scales "
       << to_string(config.scale_format) << " " << to_string(config.scale_order) << ", sides " << config.side_bytes[0]
       << "+" << config.side_bytes[1] << ", " << to_string(config.path) << " " << to_string(config.delivery)
       << " (stage " << config.stage_bytes << "), " << to_string(config.layout) << ", alignment "
       << config.expert_alignment << ", capacity " << config.capacity_rows << ", zero padding " << config.zero_padding
       << ", combine " << to_string(config.combine_dtype) << " " << config.combine_hidden << " "
       << to_string(config.combine_rows) << ", weighting " << to_string(one.weighting) << ", weights "
       << one.has_weights << ", bias " << one.num_bias << ", lane " << config.combine_lane << ", gate "
       << static_cast<int>(one.gate) << ", short ids " << one.has_short_ids << ", gaps " << one.has_row_gaps
       << ", outputs " << one.has_output << ", nodes";
  for (const int node : one.nodes) text << " " << node;
  text << ", levels " << one.levels << ", mapped " << to_string(one.map_peers) << ", between nodes "
       << to_string(config.inter_node) << ", seats " << config.seats_per_rank << ":";
  for (const std::int32_t expert : one.placement.experts) text << " " << expert;
  text << (one.rule ? ", own rule" : "") << (one.in_overlap ? ", in overlap" : "");
  return text.str();
}

DispatchTruth make_dispatch_truth(const ExchangeCase& one, int call) {
  DispatchTruth truth;
  truth.seed = seed_from(one.seed, 101, static_cast<std::uint64_t>(call));
  auto inputs = std::make_shared<std::vector<oracle::RankInput>>();
  for (int rank = 0; rank < one.num_ranks; ++rank) inputs->push_back(make_input(one, rank, truth.seed));
  truth.inputs = inputs;
  truth.expected = oracle::dispatch(one.config, truth.inputs, group_of(one), one.placement, one.rule);
  return truth;
}

CombineTruth make_combine_truth(const ExchangeCase& one, const DispatchTruth& dispatched, int call) {
  CombineTruth truth;
  truth.seed = seed_from(one.seed, 103, static_cast<std::uint64_t>(call));
  truth.weighting = one.weighting;
  for (int rank = 0; rank < one.num_ranks; ++rank) {
    const std::uint64_t seed = seed_from(truth.seed, 31, static_cast<std::uint64_t>(rank));
    truth.homes.push_back(make_home(one, (*dispatched.inputs)[idx(rank)], seed));
  }
  std::vector<std::byte> row(answer_row_bytes(one.config));
  oracle::CombineRequest request;
  request.weighting = one.weighting;
  request.homes = truth.homes;
  request.expert_rows = [&](int owner, const oracle::ReceivedRow& received) -> std::span<const std::byte> {
    fill_answer(one.config, truth.seed, owner, received.position, row);
    return row;
  };
  if (one.config.combine_lane) {
    request.lane = [](int owner, const oracle::ReceivedRow& received, int choice) {
      return answer_lane(owner, received.position, choice);
    };
  }
  truth.expected = oracle::combine(dispatched.expected, request);
  return truth;
}

void LeastTraffic::add(const ExchangeCase& one, const DispatchTruth& truth) {
  dispatch += oracle::least_dispatch_traffic(truth.expected);
  combine += oracle::least_combine_traffic(truth.expected, one.config.combine_lane);
}

CaseTruth make_truth(const ExchangeCase& one) {
  CaseTruth truth;
  for (int call = 0; call < one.num_calls; ++call) {
    truth.dispatched.push_back(make_dispatch_truth(one, call));
    truth.combined.push_back(make_combine_truth(one, truth.dispatched.back(), call));
    truth.least[idx(context_of(one, call))].add(one, truth.dispatched.back());
  }
  return truth;
}

void fill_answer(
    const ExchangeConfig& config, std::uint64_t seed, int owner, std::int64_t position, std::span<std::byte> row) {
  const auto place = static_cast<std::uint64_t>(position);
  workload::fill_random(row, config.combine_dtype, seed_from(seed, static_cast<std::uint64_t>(owner), place));
}

float answer_lane(int owner, std::int64_t position, int choice) {
  return static_cast<float>(owner + 1) * 0.5F + static_cast<float>(position) + static_cast<float>(choice) * 1024.0F;
}

}  // namespace moebus::cases
