#include "cli/feed.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "workload/data.hpp"
#include "workload/random.hpp"

namespace moebus::cli {

namespace {

constexpr std::size_t kMaxRotatedBytes = std::size_t{512} << 20;
constexpr int kMaxSets = 64;                                         // what self-identifying data can tell apart
constexpr std::int64_t kPositionMask = (std::int64_t{1} << 24) - 1;  // and the tokens it can number

std::int64_t scale_items(const ExchangeConfig& config) {
  const std::int64_t blocks = (config.hidden + kScaleBlock - 1) / kScaleBlock;
  return config.scale_format == ScaleFormat::ue8m0 ? (blocks + 3) / 4 : blocks;
}

DType scale_dtype(const ExchangeConfig& config) {
  return config.scale_format == ScaleFormat::ue8m0 ? DType::i32 : DType::f32;
}

bool gives_scales(const ExchangeConfig& config) {
  return config.scale_format != ScaleFormat::none && config.cast == Cast::none;
}

// Which of a token's choices are counted: each expert once per token, each rank once per token.
struct TokenRanks {
  std::vector<char> has_rank;
  std::vector<int> distinct_experts;  // per rank

  explicit TokenRanks(int num_ranks)
      : has_rank(static_cast<std::size_t>(num_ranks)), distinct_experts(static_cast<std::size_t>(num_ranks)) {}

  void look_at(const ExchangeConfig& config, int num_ranks, const std::int64_t* choices) {
    std::fill(has_rank.begin(), has_rank.end(), char{0});
    std::fill(distinct_experts.begin(), distinct_experts.end(), 0);
    for (int k = 0; k < config.num_topk; ++k) {
      if (choices[k] < 0 || std::find(choices, choices + k, choices[k]) != choices + k) continue;
      const int owner = oracle::owner_of(config.num_experts, num_ranks, static_cast<int>(choices[k]));
      has_rank[static_cast<std::size_t>(owner)] = 1;
      ++distinct_experts[static_cast<std::size_t>(owner)];
    }
  }
};

}  // namespace

std::size_t travel_bytes(const ExchangeConfig& config) {
  std::size_t bytes = oracle::received_row_bytes(config);
  if (config.scale_format != ScaleFormat::none) {
    bytes += static_cast<std::size_t>(scale_items(config)) * size_of(scale_dtype(config));
  }
  for (const int side : config.side_bytes) bytes += static_cast<std::size_t>(side);
  return bytes;
}

std::size_t answer_bytes(const ExchangeConfig& config) {
  return static_cast<std::size_t>(oracle::combine_columns(config)) * size_of(config.combine_dtype);
}

BenchSetup make_setup(const BenchOptions& options, int num_ranks, const Machine& machine, int num_cores) {
  BenchSetup setup;
  setup.options = options;
  setup.config = exchange_config(options);
  setup.num_ranks = num_ranks;
  setup.group = {num_ranks, Nodes::parse(options.topology.nodes).of_ranks(num_ranks), 1};
  const int levels = options.topology.levels.value_or(0);
  setup.group.levels = levels != 0 ? levels : setup.group.has_several_nodes() ? 2 : 1;
  if (num_cores > 0) setup.ranks_per_core = std::max(1.0, static_cast<double>(num_ranks) / num_cores);
  const auto ranks = static_cast<std::size_t>(num_ranks);
  const auto tokens = static_cast<std::size_t>(options.tokens);
  const std::size_t per_token = oracle::given_row_bytes(setup.config) + answer_bytes(setup.config);
  setup.set_bytes = std::max<std::size_t>(1, ranks * tokens * per_token);
  setup.rotated_bytes = std::min(2 * std::max(ranks * machine.l2_bytes, machine.l3_bytes), kMaxRotatedBytes);
  const std::size_t wanted = setup.rotated_bytes / setup.set_bytes + 1;
  setup.num_sets = static_cast<int>(std::clamp<std::size_t>(wanted, 2, kMaxSets));
  return setup;
}

workload::RoutingGenerator routing_of(const BenchSetup& setup) {
  return {workload::parse_routing(setup.options.routing),
          {setup.config.num_experts, setup.config.num_topk, setup.num_ranks}};
}

workload::RoutingTable make_table(const BenchSetup& setup,
                                  const workload::RoutingGenerator& routing,
                                  int rank,
                                  int set) {
  return routing.make(
      rank, setup.options.tokens, workload::seed_from(setup.options.seed, static_cast<std::uint64_t>(set)));
}

MapPeers map_peers_of(const BenchOptions& options) {
  return options.topology.map.empty() ? MapPeers::reachable : map_peers_of(options.topology.map);
}

GroupOptions group_options(const BenchSetup& setup, int rank, MapPeers map_peers) {
  GroupOptions options;
  options.transport = setup.options.transport;
  // The group is the one that the oracle was asked about, whatever the environment says of nodes.
  options.levels = setup.group.levels;
  options.map_peers = map_peers;
  options.host_id = "node-" + std::to_string(setup.group.node_of(rank));
  const char* const token = std::getenv("MOEBUS_TOKEN");
  if (token != nullptr) options.token = token;
  return options;
}

oracle::RankInput make_input(const BenchSetup& setup, const workload::RoutingGenerator& routing, int rank, int set) {
  const ExchangeConfig& config = setup.config;
  oracle::RankInput input;
  input.num_tokens = setup.options.tokens;
  const auto rows = static_cast<std::size_t>(input.num_tokens);
  input.tokens.resize(rows * oracle::given_row_bytes(config));
  workload::fill_identity(input.tokens, config.dtype, config.hidden, rank, 0, workload::Part::tokens, set);
  if (gives_scales(config)) {
    input.scales.resize(rows * static_cast<std::size_t>(scale_items(config)) * sizeof(float));
    workload::fill_identity(
        input.scales, scale_dtype(config), scale_items(config), rank, 0, workload::Part::scales, set);
  }
  workload::RoutingTable table = make_table(setup, routing, rank, set);
  input.topk_idx = std::move(table.topk_idx);
  input.topk_weights = std::move(table.topk_weights);
  input.has_weights = true;
  return input;
}

oracle::SharedInputs first_inputs(const BenchSetup& setup) {
  const workload::RoutingGenerator routing = routing_of(setup);
  auto inputs = std::make_shared<std::vector<oracle::RankInput>>();
  for (int rank = 0; rank < setup.num_ranks; ++rank) inputs->push_back(make_input(setup, routing, rank, 0));
  return inputs;
}

void fill_answer(
    const ExchangeConfig& config, int owner_rank, std::int64_t position, std::byte* row, std::size_t row_bytes) {
  workload::fill_identity({row, row_bytes},
                          config.combine_dtype,
                          oracle::combine_columns(config),
                          owner_rank,
                          position & kPositionMask,
                          workload::Part::side0);
}

DispatchInput dispatch_input(const ExchangeConfig& config, const oracle::RankInput& input) {
  DispatchInput given;
  given.tokens = tensor_2d(input.tokens.data(), config.dtype, input.num_tokens, config.hidden);
  given.topk_idx = tensor_2d(input.topk_idx.data(), DType::i64, input.num_tokens, config.num_topk);
  if (input.has_weights) {
    given.topk_weights = tensor_2d(input.topk_weights.data(), DType::f32, input.num_tokens, config.num_topk);
  }
  if (gives_scales(config)) {
    given.scales = tensor_2d(input.scales.data(), scale_dtype(config), input.num_tokens, scale_items(config));
  }
  for (std::size_t s = 0; s < given.side.size(); ++s) {
    if (config.side_bytes[s] == 0) continue;
    given.side[s] = tensor_2d(input.side[s].data(), DType::u8, input.num_tokens, config.side_bytes[s]);
  }
  return given;
}

std::vector<RowCounts> count_rows(const BenchSetup& setup, int rank) {
  const ExchangeConfig& config = setup.config;
  const auto own = static_cast<std::size_t>(rank);
  const auto ranks = static_cast<std::size_t>(setup.num_ranks);
  const workload::RoutingGenerator routing = routing_of(setup);
  std::vector<RowCounts> sets(static_cast<std::size_t>(setup.num_sets));
  TokenRanks token(setup.num_ranks);
  for (std::size_t set = 0; set < sets.size(); ++set) {
    RowCounts& counts = sets[set];
    counts.sent.resize(ranks);
    counts.received.resize(ranks);
    for (std::size_t source = 0; source < ranks; ++source) {
      const workload::RoutingTable table = make_table(setup, routing, static_cast<int>(source), static_cast<int>(set));
      for (std::int64_t n = 0; n < table.num_tokens; ++n) {
        token.look_at(config, setup.num_ranks, table.topk_idx.data() + n * config.num_topk);
        for (std::size_t peer = 0; source == own && peer < ranks; ++peer) counts.sent[peer] += token.has_rank[peer];
        const int experts_here = token.distinct_experts[own];
        counts.received[source] += token.has_rank[own];
        counts.result_rows += config.layout == Layout::rank_major ? token.has_rank[own] : experts_here;
      }
    }
  }
  return sets;
}

std::string input_hash(const BenchSetup& setup, const oracle::SharedInputs& inputs) {
  std::uint64_t hash = setup.options.seed;
  for (const oracle::RankInput& input : *inputs) {
    hash = workload::hash_word(hash, workload::hash_bytes(std::as_bytes(std::span(input.topk_idx))));
    hash = workload::hash_word(hash, workload::hash_bytes(std::as_bytes(std::span(input.topk_weights))));
    hash = workload::hash_word(hash, workload::hash_bytes(input.tokens));
  }
  return fmt::format("{:016x}", hash);
}

}  // namespace moebus::cli
