// Check case: one random exchange, all of it made from a seed and a number, and its comparison with the oracle.
// Room: cli · host.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "moebus/config.hpp"
#include "workload/routing.hpp"

namespace moebus::cli {

/// Everything that is random about a case, except the bytes.
struct CheckCase {
  std::uint64_t seed = 0;  ///< of this case
  int num_ranks = 1;
  bool as_processes = false;
  int num_calls = 1;  ///< dispatch and combine, on other inputs each time
  ExchangeConfig config;
  workload::RoutingSpec routing;
  bool has_repeats = false;  ///< some tokens list an expert twice
  bool has_weights = false;
  bool has_short_ids = false;  ///< ids as i32 instead of i64
  bool has_row_gaps = false;   ///< token rows with a stride
  bool has_output = false;     ///< results go to tensors of the caller
  Weighting weighting = Weighting::none;
  int num_bias = 0;
};

/// Makes case `index` of `seed`; the number of ranks is one of `ranks`.
CheckCase make_case(std::uint64_t seed, int index, const std::vector<int>& ranks);

/// Says in one line what the case is.
std::string describe(const CheckCase& one);

/// Faults that a check can plant into what it has received, to show that it would notice.
enum class Mutant : std::uint8_t { none, swapped_rows, dropped_row, order };

/// Runs a case and returns what differs first from the oracle, or nothing.
///
/// Errors: as the library's; an Error is a failure of the case too, unless it is resource_exhausted.
std::optional<std::string> run_case(const CheckCase& one, Mutant mutant);

}  // namespace moebus::cli
