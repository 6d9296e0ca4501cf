// Options: what a user asked for on the command line, checked as a whole.
// Room: cli · host.

#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "cli/nodes.hpp"
#include "moebus/config.hpp"

namespace moebus::cli {

/// The statuses with which the command ends; an Error ends it with kFirstErrorStatus + its code.
inline constexpr int kOk = 0;
inline constexpr int kMismatch = 1;
inline constexpr int kUsage = 2;
inline constexpr int kFirstErrorStatus = 10;

/// A wrong option: the message names option, value and what is allowed.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A result that is not what the oracle says.
class Mismatch : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// What was said of the group: which ranks share a node, whose memory is mapped, how rows cross between nodes. Empty
/// = not given.
struct TopologyOptions {
  std::string nodes;       ///< see Nodes
  std::string map;         ///< reachable, node or none
  std::string inter_node;  ///< gateway or direct
  std::optional<int> levels;
};

enum class BenchKind : std::uint8_t { dispatch, combine, exchange, layer };

std::string to_string(BenchKind kind);

struct BenchOptions {
  BenchKind kind = BenchKind::exchange;
  std::optional<int> ranks;  ///< 2 unless an outer launcher says otherwise
  int tokens = 128;          ///< per rank
  // Those not given come from the model, or else from the shape of DeepSeek-V3.
  std::optional<int> hidden;
  std::optional<int> topk;
  std::optional<int> experts;
  std::string dtype;  ///< bf16, f16, f32 or fp8; empty = not given
  bool has_cast = false;
  std::string scales;  ///< f32 or ue8m0; empty = not given
  std::string layout = "rank_major";
  std::string path = "latency";
  std::string delivery = "direct";
  std::string routing = "uniform";
  std::string model;
  bool list_models = false;
  std::string device = "cpu";
  std::string transport = "auto";
  std::string store;  ///< rendezvous under an outer launcher
  TopologyOptions topology;
  bool compares_map = false;  ///< the same calls on a group that maps whom it can, in turn
  bool has_overlap = false;   ///< layer: two half batches, one's exchange beside the other's experts
  std::optional<int> iterations;
  double time_s = 2;
  std::uint64_t seed = 1;
  bool has_json = false;
  std::string plot;  ///< file of the picture, empty = none
};

struct CheckOptions {
  int cases = 200;
  std::uint64_t seed = 1;
  std::optional<int> only_case;  ///< run this one alone
  std::vector<int> ranks;        ///< empty = all of default_ranks() that the nodes allow
  TopologyOptions topology;
  std::string mutant;  ///< fault to plant, empty = none
  bool has_json = false;
};

struct InfoOptions {
  bool has_json = false;
};

/// Fills what was not given from the model preset and the defaults, and checks the options against each other.
///
/// Errors: UsageError names option, value and what is allowed.
void complete(BenchOptions& options);

/// Returns the exchange that completed options describe, for `num_ranks` ranks.
ExchangeConfig exchange_config(const BenchOptions& options);

/// Fills in the numbers of ranks, and checks them against the nodes. Errors: UsageError.
void complete(CheckOptions& options);

/// Numbers of ranks that check chooses from.
const std::vector<int>& default_ranks();

/// Read values that were given. Errors: UsageError names option, value and what is allowed.
MapPeers map_peers_of(const std::string& text);
InterNode inter_node_of(const std::string& text);

/// Names of the faults that `check --mutant` can plant.
const std::vector<std::string>& mutant_names();

}  // namespace moebus::cli
