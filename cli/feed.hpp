// Feed: the inputs of a bench, made alike on every rank from the seed, in several sets so that caches do not help.
// Room: cli · host.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cli/machine.hpp"
#include "cli/options.hpp"
#include "cli/pages.hpp"
#include "moebus/exchange.hpp"
#include "oracle/group_shape.hpp"
#include "oracle/inputs.hpp"
#include "workload/routing.hpp"

namespace moebus::cli {

/// What every rank knows before any rank starts.
struct BenchSetup {
  BenchOptions options;  ///< completed
  ExchangeConfig config;
  oracle::GroupShape group;  ///< nodes and levels, decided
  int num_ranks = 0;
  int num_sets = 1;
  double ranks_per_core = 1;      ///< 1 where every rank can have a core to itself
  std::size_t set_bytes = 0;      ///< of one input set, all ranks together
  std::size_t rotated_bytes = 0;  ///< what the sets are to exceed
};

/// Bytes of a row as it travels in dispatch: elements, scales and side tensors.
std::size_t travel_bytes(const ExchangeConfig& config);

/// Bytes of a row that combine carries.
std::size_t answer_bytes(const ExchangeConfig& config);

/// Decides how many input sets are needed so that what rotates exceeds twice the caches, within a memory limit.
/// `num_cores`: those that the ranks share.
BenchSetup make_setup(const BenchOptions& options, int num_ranks, const Machine& machine, int num_cores);

/// Returns set 0 of all ranks, which the oracle is asked about.
oracle::SharedInputs first_inputs(const BenchSetup& setup);

/// Returns one rank's inputs of one set.
oracle::RankInput make_input(const BenchSetup& setup, const workload::RoutingGenerator& routing, int rank, int set);

/// Returns one rank's routing of one set.
workload::RoutingTable make_table(const BenchSetup& setup,
                                  const workload::RoutingGenerator& routing,
                                  int rank,
                                  int set);

/// Returns what `rank` says when it joins. `map_peers`: as the options say, or another for comparison.
GroupOptions group_options(const BenchSetup& setup, int rank, MapPeers map_peers);

/// Returns whose memory the options say is mapped.
MapPeers map_peers_of(const BenchOptions& options);

/// Returns the generator that the options describe.
workload::RoutingGenerator routing_of(const BenchSetup& setup);

/// Fills one row that a rank hands to combine: the expert's answer, the same whoever makes it.
void fill_answer(
    const ExchangeConfig& config, int owner_rank, std::int64_t position, std::byte* row, std::size_t row_bytes);

/// Returns the inputs as dispatch takes them.
DispatchInput dispatch_input(const ExchangeConfig& config, const oracle::RankInput& input);

/// Rows that one (source, destination) pair or one rank has in one set; what floors are made of.
struct RowCounts {
  std::vector<std::int64_t> sent;      ///< [ranks] tokens of this rank with an expert on that rank
  std::vector<std::int64_t> received;  ///< [ranks] tokens of that rank with an expert here
  std::int64_t result_rows = 0;        ///< rows of the result that a token fills: per expert in expert layouts
};

/// Counts rows for `rank` in every set, from the routing of all ranks.
std::vector<RowCounts> count_rows(const BenchSetup& setup, int rank);

/// Returns a hash of all ranks' routing of set 0, to print beside results.
std::string input_hash(const BenchSetup& setup, const oracle::SharedInputs& inputs);

}  // namespace moebus::cli
