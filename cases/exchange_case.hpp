// Exchange case: a configuration and what all ranks feed into it, random or chosen, and what the oracle says comes out.
// Room: cases · host.

#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "moebus/config.hpp"
#include "moebus/placement.hpp"
#include "oracle/bytes.hpp"
#include "oracle/combine.hpp"
#include "oracle/dispatch.hpp"

namespace moebus::cases {

/// How a case's tokens choose experts.
enum class Gate : std::uint8_t { uniform, skewed, single, masked, repeated };

/// Everything about an exchange except its bytes, which follow from the seed.
struct ExchangeCase {
  std::uint64_t seed = 1;
  int num_ranks = 2;
  int num_calls = 1;
  bool as_processes = false;
  ExchangeConfig config;
  Gate gate = Gate::uniform;
  /// Replaces the gate: the expert of (rank, token, choice), -1 = none.
  std::function<std::int64_t(int, std::int64_t, int)> choose;
  std::vector<std::int64_t> num_tokens;  ///< per rank; empty = random, 0 included
  bool has_weights = true;
  Weighting weighting = Weighting::none;
  int num_bias = 0;
  bool has_short_ids = false;  ///< ids as i32 instead of i64
  bool has_row_gaps = false;   ///< token rows with a stride
  bool has_output = false;     ///< results go to tensors of the caller
  std::vector<int> nodes;      ///< node of each rank; empty = they say nothing of nodes
  int levels = 0;              ///< as GroupOptions::levels
  MapPeers map_peers = MapPeers::reachable;
  Placement placement;      ///< set after prepare, if not empty
  ReplicaRule rule;         ///< with a placement; empty = the default rule
  bool in_overlap = false;  ///< calls take turns in two contexts, and are posted before they are waited for
};

/// What somebody wants to say of random groups; the rest is drawn.
struct GroupChoice {
  std::vector<int> nodes;  ///< node of each rank; empty = drawn
  std::optional<int> levels;
  std::optional<MapPeers> map_peers;
  std::optional<InterNode> inter_node;
};

/// The three ways rows can travel.
enum class Route : std::uint8_t { latency, direct, staged };

inline constexpr Route kRoutes[] = {Route::latency, Route::direct, Route::staged};
inline constexpr Layout kLayouts[] = {Layout::rank_major, Layout::expert_major, Layout::expert_padded};

/// Sets path and delivery; staged: with so little memory that several rounds are needed.
void set_route(ExchangeConfig& config, Route route, int num_ranks);

/// Makes a small configuration that is valid everywhere: bf16, 16 experts, top-4, hidden 64, up to 16 tokens.
[[nodiscard]] ExchangeConfig small_config(Route route = Route::latency, int num_ranks = 2);

/// Makes a random case that travels by `route`; the same arguments make the same case.
[[nodiscard]] ExchangeCase random_case(std::uint64_t seed, int num_ranks, Route route);

/// Makes a random case over nodes: one, halves, all but one, two single ranks and the rest, or interleaved; direct or
/// through gateways, mapped or not, sometimes with seats and replicas, sometimes in overlap.
[[nodiscard]] ExchangeCase random_group_case(std::uint64_t seed,
                                             int num_ranks,
                                             Route route,
                                             const GroupChoice& choice = {});

/// Makes the options of one rank of a case's group out of those that are the same for every case: it says which node it
/// is on, with the case's levels and mapping.
[[nodiscard]] GroupOptions group_options(const ExchangeCase& one, int rank, const GroupOptions& common);

/// Returns the group of a case as the oracle sees it: levels decided.
[[nodiscard]] oracle::GroupShape group_of(const ExchangeCase& one);

/// Says in one line what the case is, seed included.
[[nodiscard]] std::string describe(const ExchangeCase& one);

/// One dispatch: what every rank gives, and what every rank must get.
struct DispatchTruth {
  std::uint64_t seed = 0;
  oracle::SharedInputs inputs;
  std::vector<oracle::DispatchExpectation> expected;  // [ranks]
};

/// One combine on such a dispatch. What owners answer follows from the seed and the place of the row.
struct CombineTruth {
  std::uint64_t seed = 0;
  Weighting weighting = Weighting::none;
  std::vector<oracle::HomeInput> homes;              // [ranks]
  std::vector<oracle::CombineExpectation> expected;  // [ranks]
};

[[nodiscard]] DispatchTruth make_dispatch_truth(const ExchangeCase& one, int call);
[[nodiscard]] CombineTruth make_combine_truth(const ExchangeCase& one, const DispatchTruth& dispatched, int call);

/// Makes what `owner` hands to combine for the row at `position` of its result.
void fill_answer(
    const ExchangeConfig& config, std::uint64_t seed, int owner, std::int64_t position, std::span<std::byte> row);

/// The same for the lane.
[[nodiscard]] float answer_lane(int owner, std::int64_t position, int choice);

/// What the calls of a case must send at least, all of them together; dropped rows count.
struct LeastTraffic {
  oracle::Traffic dispatch;
  oracle::Traffic combine;

  void add(const ExchangeCase& one, const DispatchTruth& truth);
};

/// All calls of a case.
struct CaseTruth {
  std::vector<DispatchTruth> dispatched;  // [calls]
  std::vector<CombineTruth> combined;     // [calls]
  std::array<LeastTraffic, 2> least;      // by context
};

[[nodiscard]] CaseTruth make_truth(const ExchangeCase& one);

/// The context of a call.
[[nodiscard]] inline int context_of(const ExchangeCase& one, int call) noexcept {
  return one.in_overlap ? call % 2 : 0;
}

}  // namespace moebus::cases
