#include "model/shape.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>

namespace moebus::model {

namespace {

// Row indices are 32-bit; this also keeps every byte size far from overflow.
constexpr std::int64_t kMaxRows = std::numeric_limits<std::int32_t>::max() / 2;
constexpr int kMaxExperts = 1 << 20;
constexpr int kMaxHidden = 1 << 20;
constexpr int kMaxSideBytes = 1 << 20;

std::optional<std::string> check_range(const char* name, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value >= low && value <= high) return std::nullopt;
  return fmt::format("config.{} is {}; allowed is {} to {}", name, value, low, high);
}

std::optional<std::string> check_sizes(const ExchangeConfig& config) {
  if (auto bad = check_range("num_experts", config.num_experts, 1, kMaxExperts)) return bad;
  if (auto bad = check_range("num_topk", config.num_topk, 1, kMaxTopk)) return bad;
  if (auto bad = check_range("hidden", config.hidden, 1, kMaxHidden)) return bad;
  if (auto bad = check_range("max_tokens_per_rank", config.max_tokens_per_rank, 1, kMaxRows)) return bad;
  if (auto bad = check_range("combine_hidden", config.combine_hidden, 0, kMaxHidden)) return bad;
  if (auto bad = check_range("expert_alignment", config.expert_alignment, 1, 1 << 16)) return bad;
  if (auto bad = check_range("capacity_rows", config.capacity_rows, 0, kMaxRows)) return bad;
  if (auto bad = check_range("max_handles", config.max_handles, 1, 1024)) return bad;
  for (const int bytes : config.side_bytes) {
    if (auto bad = check_range("side_bytes", bytes, 0, kMaxSideBytes)) return bad;
  }
  return std::nullopt;
}

std::optional<std::string> check_seats(const ExchangeConfig& config, int num_ranks) {
  if (auto bad = check_range("seats_per_rank", config.seats_per_rank, 0, kMaxExperts)) return bad;
  if (auto bad = check_range("context", config.context, 0, kMaxContexts - 1)) return bad;
  if (config.seats_per_rank == 0) return std::nullopt;
  const std::int64_t num_seats = std::int64_t{config.seats_per_rank} * num_ranks;
  if (num_seats < config.num_experts) {
    return fmt::format("config.seats_per_rank is {}; {} ranks then hold {} of {} experts: give at least {}",
                       config.seats_per_rank,
                       num_ranks,
                       num_seats,
                       config.num_experts,
                       base::ceil_div(config.num_experts, num_ranks));
  }
  if (num_seats > kMaxExperts) {
    return fmt::format("config.seats_per_rank is {}; {} ranks then have {} seats, at most {} are supported: lower it",
                       config.seats_per_rank,
                       num_ranks,
                       num_seats,
                       kMaxExperts);
  }
  return std::nullopt;
}

std::optional<std::string> check_types(const ExchangeConfig& config) {
  if (config.cast == Cast::fp8 && config.dtype != DType::bf16) {
    return fmt::format("config.dtype is {} with cast fp8; the cast takes bf16 rows: give bf16, or cast none",
                       to_string(config.dtype));
  }
  if (config.cast == Cast::fp8 && config.scale_format == ScaleFormat::none) {
    return "config.scale_format is none with cast fp8; choose f32 or ue8m0";
  }
  if (!is_summable(config.combine_dtype)) {
    return fmt::format("config.combine_dtype is {}; combine adds bf16, f16 or f32", to_string(config.combine_dtype));
  }
  if (config.side_bytes[1] > 0 && config.side_bytes[0] == 0) {
    return "config.side_bytes[1] is set and side_bytes[0] is not; fill side tensors from the first on";
  }
  return std::nullopt;
}

std::optional<std::string> check_layout(const ExchangeConfig& config) {
  if (config.expert_alignment > 1 && config.layout != Layout::expert_major) {
    return fmt::format("config.expert_alignment is {} with layout {}; only expert_major has groups to align: use 1",
                       config.expert_alignment,
                       to_string(config.layout));
  }
  if (config.layout == Layout::rank_major && config.combine_rows == CombineRows::per_expert) {
    return "config.combine_rows is per_expert with layout rank_major, whose rows are already summed over the local "
           "experts: use "
           "per_rank, or an expert layout";
  }
  if (config.caller_results && config.path == Path::throughput && config.delivery == Delivery::direct) {
    return "config.caller_results is set with direct delivery, whose result is the registered region: use staged "
           "delivery";
  }
  return std::nullopt;
}

std::uint64_t hash_text(const std::string& text) noexcept {
  std::uint64_t hash = 0xcbf29ce484222325ULL;  // FNV-1a: only equality matters, and nobody chooses the text to collide
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return hash;
}

/// Rows of a result that can hold whatever arrives.
std::int64_t worst_case_rows(const ExchangeConfig& config, std::int64_t max_recv_rows, int max_local_experts) {
  switch (config.layout) {
    case Layout::rank_major:
    case Layout::expert_padded:
      return max_recv_rows;
    case Layout::expert_major: {
      const std::int64_t copies = max_recv_rows * std::min(config.num_topk, max_local_experts);
      // Each group may end with at most alignment - 1 rows of padding.
      const std::int64_t padding = std::int64_t{max_local_experts} * (config.expert_alignment - 1);
      return base::align_up(copies + padding, std::int64_t{config.expert_alignment});
    }
  }
  return 0;
}

/// Bytes of a stage whose rounds have one row, or one token.
std::size_t least_stage_bytes(const Shape& shape) {
  const std::size_t home = base::idx(shape.combine_slots_per_token);
  const std::size_t relays = base::idx(shape.relay_slots_per_token) * base::idx(shape.topology.max_served());
  const std::size_t combine_round = 2 * (home + relays) * shape.combine_row.stride_bytes;
  const std::size_t dispatch_round = 2 * base::idx(shape.num_ranks) * shape.dispatch_row.stride_bytes;
  return shape.has_dispatch_rounds() ? std::max(dispatch_round, combine_round) : combine_round;
}

/// Experts in order, the remaining seats empty.
Placement default_placement(const ExchangeConfig& config, int num_ranks) {
  Placement placement;
  placement.experts.assign(base::idx(config.seats_per_rank) * base::idx(num_ranks), -1);
  std::iota(placement.experts.begin(), placement.experts.begin() + config.num_experts, 0);
  return placement;
}

void fill_ways(Shape& shape) {
  const std::size_t entries = base::idx(shape.num_seats) + 1;
  shape.owner.assign(entries, 0);
  shape.hop.assign(entries, 0);
  shape.hop_bit.assign(entries, 0);
  for (int seat = 0; seat < shape.num_seats; ++seat) {
    const int owner = shape.placement.rank_of(seat);
    const bool is_relayed = shape.is_relayed(shape.rank, owner);
    const int hop = is_relayed ? shape.topology.gateway(shape.rank, shape.topology.node_of(owner)) : owner;
    shape.owner[base::idx(seat) + 1] = static_cast<std::uint8_t>(owner);
    shape.hop[base::idx(seat) + 1] = static_cast<std::uint8_t>(hop);
    shape.hop_bit[base::idx(seat) + 1] = std::uint64_t{1} << hop;
  }
}

void fill_sizes(Shape& shape) {
  const ExchangeConfig& config = shape.config;
  shape.max_local_experts = shape.placement.num_local(0);  // no rank has more than the first
  shape.max_recv_rows = std::int64_t{shape.num_ranks} * config.max_tokens_per_rank;
  const std::int64_t worst = worst_case_rows(config, shape.max_recv_rows, shape.max_local_experts);
  shape.can_overflow = config.capacity_rows > 0 && config.capacity_rows < worst;
  shape.capacity_rows = config.capacity_rows > 0 ? config.capacity_rows : worst;
  shape.result_rows =
      config.layout == Layout::expert_padded ? shape.capacity_rows * shape.max_local_experts : shape.capacity_rows;
  shape.combine_slots_per_token =
      config.combine_rows == CombineRows::per_expert ? config.num_topk : std::min(shape.num_ranks, config.num_topk);
  shape.relay_slots_per_token = shape.has_partial_sums ? std::min(shape.topology.max_node_size(), config.num_topk) : 0;
  shape.dispatch_row = dispatch_row_format(config);
  // Whoever adds rows of a node merges their lanes, and the masks say which rank a choice's value is from.
  const bool has_mask = shape.can_overflow || (shape.levels == 2 && config.combine_lane);
  shape.combine_row = combine_row_format(config, has_mask);
}

/// What plans depend on. Not how rows look, nor how they travel: exchanges that differ there alone can share handles.
std::string describe_plans(const Shape& shape) {
  const ExchangeConfig& config = shape.config;
  return fmt::format(
      "num_experts={}\nnum_topk={}\nmax_tokens_per_rank={}\nlayout={}\nexpert_alignment={}\ncapacity_rows={}\n"
      "seats_per_rank={}\ninter_node={}\ncombine_rows={}\ncan_overflow={}\nlevels={}\n{}",
      config.num_experts,
      config.num_topk,
      config.max_tokens_per_rank,
      to_string(config.layout),
      config.expert_alignment,
      config.capacity_rows,
      config.seats_per_rank,
      to_string(config.inter_node),
      to_string(config.combine_rows),
      shape.can_overflow,
      shape.levels,
      shape.topology.describe());
}

}  // namespace

Arrival Shape::arrival_from(int src) const noexcept {
  if (src == rank || config.path == Path::latency) return Arrival::straight;
  const bool has_rounds =
      config.delivery == Delivery::staged || is_relayed(src, rank) || !topology.is_mapped(src, rank);
  return has_rounds ? Arrival::rounds : Arrival::straight;
}

std::optional<std::string> find_config_error(const ExchangeConfig& config, const GroupFacts& group) {
  const int num_ranks = group.topology.num_ranks();
  if (auto bad = check_sizes(config)) return bad;
  if (auto bad = check_seats(config, num_ranks)) return bad;
  if (auto bad = check_types(config)) return bad;
  if (auto bad = check_layout(config)) return bad;
  const Shape shape = make_shape(config, group);
  if (shape.max_recv_rows > kMaxRows || shape.result_rows > kMaxRows) {
    return fmt::format(
        "config.max_tokens_per_rank {} over {} ranks gives results of up to {} rows; at most {} are supported: lower "
        "it, or set "
        "capacity_rows",
        config.max_tokens_per_rank,
        num_ranks,
        std::max(shape.max_recv_rows, shape.result_rows),
        kMaxRows);
  }
  if (config.path == Path::throughput) {
    const std::size_t least = least_stage_bytes(shape);
    if (config.stage_bytes < least) {
      return fmt::format("config.stage_bytes is {}; one row a round needs at least {}", config.stage_bytes, least);
    }
  }
  return std::nullopt;
}

Shape make_shape(const ExchangeConfig& config, const GroupFacts& group, const Placement* placement) {
  Shape shape;
  shape.config = config;
  shape.num_ranks = group.topology.num_ranks();
  shape.rank = group.rank;
  shape.levels = group.levels;
  shape.topology = group.topology;
  shape.has_gateways = group.levels == 2 && group.topology.num_nodes() >= 2 && config.inter_node == InterNode::gateway;
  shape.has_partial_sums = shape.has_gateways && config.combine_rows == CombineRows::per_rank;
  if (config.seats_per_rank > 0) {
    set_placement(shape, placement != nullptr ? *placement : default_placement(config, shape.num_ranks));
  } else {
    shape.placement = ExpertPlacement::blocks(config.num_experts, shape.num_ranks);
  }
  shape.num_seats = shape.placement.num_seats();
  fill_ways(shape);
  fill_sizes(shape);
  shape.digest = hash_text(describe(config) + fmt::format("levels={}\n", shape.levels) + shape.topology.describe());
  shape.plan_digest = hash_text(describe_plans(shape));
  return shape;
}

void set_placement(Shape& shape, const Placement& placement) {
  // As many seats on every rank as before: owners and hops stay.
  shape.placement = ExpertPlacement::of(placement, shape.config.num_experts, shape.num_ranks);
}

std::string describe(const ExchangeConfig& config) {
  std::string text;
  const auto line = [&](std::string_view name, const auto& value) {
    fmt::format_to(std::back_inserter(text), "{}={}\n", name, value);
  };
  line("num_experts", config.num_experts);
  line("num_topk", config.num_topk);
  line("hidden", config.hidden);
  line("max_tokens_per_rank", config.max_tokens_per_rank);
  line("dtype", to_string(config.dtype));
  line("cast", to_string(config.cast));
  line("scale_format", to_string(config.scale_format));
  line("scale_order", to_string(config.scale_order));
  line("side_bytes[0]", config.side_bytes[0]);
  line("side_bytes[1]", config.side_bytes[1]);
  line("layout", to_string(config.layout));
  line("expert_alignment", config.expert_alignment);
  line("capacity_rows", config.capacity_rows);
  line("path", to_string(config.path));
  line("delivery", to_string(config.delivery));
  line("stage_bytes", config.stage_bytes);
  line("combine_hidden", config.combine_hidden);
  line("combine_dtype", to_string(config.combine_dtype));
  line("combine_rows", to_string(config.combine_rows));
  line("combine_lane", config.combine_lane);
  line("seats_per_rank", config.seats_per_rank);
  line("inter_node", to_string(config.inter_node));
  line("context", config.context);
  return text;
}

}  // namespace moebus::model
