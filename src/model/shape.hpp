// Shape: a configuration with everything that follows from it for a given number of ranks. Made once, then only read.
// Room: model · host+device arithmetic.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/placement.hpp"
#include "model/topology.hpp"
#include "model/wire.hpp"
#include "moebus/config.hpp"

namespace moebus::model {

/// The group that an exchange runs in, as far as plans depend on it.
struct GroupFacts {
  Topology topology;
  int levels = 1;  ///< 1 or 2, see GroupOptions::levels
  int rank = 0;    ///< this rank

  /// One node, everybody mapped, seen from rank 0 (with one level nothing depends on the rank).
  static GroupFacts one_node(int num_ranks) { return {Topology::one_node(num_ranks), 1, 0}; }
};

/// How a source's rows come here; see WindowLayout for the places.
enum class Arrival : std::uint8_t {
  straight,  ///< the source itself writes slots (latency path) or final places (direct delivery)
  rounds,    ///< through the stage: staged delivery; and on the throughput path every source that cannot write here, or
             ///< whose rows a gateway forwards
};

struct Shape {
  ExchangeConfig config;
  int num_ranks = 1;
  int rank = 0;
  int levels = 1;
  Topology topology;
  bool has_gateways = false;      ///< dispatch rows are forwarded: two levels, two nodes or more, and config.inter_node
  bool has_partial_sums = false;  ///< combine rows are added up at gateways: has_gateways and per_rank rows
  ExpertPlacement placement;
  int num_seats = 0;                   ///< over all ranks; without placement = num_experts
  std::vector<std::uint8_t> owner;     ///< [num_seats + 1]: rank of seat s at s + 1; 0 for -1
  std::vector<std::uint8_t> hop;       ///< [num_seats + 1]: rank that this rank sends rows for seat s to, at s + 1: the
                                       ///< owner, or the gateway of the owner's node
  std::vector<std::uint64_t> hop_bit;  ///< [num_seats + 1]: bit of the hop; no bit for -1
  DispatchRowFormat dispatch_row;
  CombineRowFormat combine_row;
  int max_local_experts = 0;        ///< seats of a rank, over ranks
  std::int64_t max_recv_rows = 0;   ///< most rows (token copies) a rank can receive: ranks x max tokens
  std::int64_t capacity_rows = 0;   ///< rows of the result (expert_padded: per seat)
  std::int64_t result_rows = 0;     ///< rows of result memory: capacity_rows, x max_local_experts for expert_padded
  int combine_slots_per_token = 0;  ///< slots a token has at home: min(ranks, K) rows, or K with per_expert
  int relay_slots_per_token = 0;    ///< slots a token has at a gateway: min(largest node, K); 0 without partial sums
  bool can_overflow = false;
  std::uint64_t digest = 0;  ///< of the configuration and the group; equal on all its ranks. Placement not included
  std::uint64_t plan_digest = 0;  ///< of what plans depend on: exchanges with the same can use each other's handles

  /// True if rows of `src` for `dst` stop at a gateway (dispatch).
  [[nodiscard]] bool is_relayed(int src, int dst) const noexcept {
    return has_gateways && !topology.are_neighbours(src, dst);
  }

  [[nodiscard]] Arrival arrival_from(int src) const noexcept;

  /// True if some rank of the group gets dispatched rows in rounds: every rank then has a stage for them.
  [[nodiscard]] bool has_dispatch_rounds() const noexcept {
    return config.path == Path::throughput &&
           (config.delivery == Delivery::staged || has_gateways || topology.has_unmapped());
  }
};

/// Returns what is wrong with a configuration (field, value, limit, remedy), or nothing.
[[nodiscard]] std::optional<std::string> find_config_error(const ExchangeConfig& config, const GroupFacts& group);

/// The same for ranks that all map each other.
[[nodiscard]] inline std::optional<std::string> find_config_error(const ExchangeConfig& config, int num_ranks) {
  return find_config_error(config, GroupFacts::one_node(num_ranks));
}

/// Derives the shape; `config` must be free of errors. `placement` may be null.
[[nodiscard]] Shape make_shape(const ExchangeConfig& config,
                               const GroupFacts& group,
                               const Placement* placement = nullptr);

/// The same for ranks that all map each other.
[[nodiscard]] inline Shape make_shape(const ExchangeConfig& config, int num_ranks) {
  return make_shape(config, GroupFacts::one_node(num_ranks));
}

/// Puts another placement into the shape; sizes stay. It must be free of errors.
void set_placement(Shape& shape, const Placement& placement);

/// Returns "name=value" lines of every field, for comparison over ranks.
[[nodiscard]] std::string describe(const ExchangeConfig& config);

}  // namespace moebus::model
