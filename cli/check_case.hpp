// Check case: one random exchange over a group, made from a seed and a number, run and compared with the oracle.
// Room: cli · host.

#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cases/exchange_case.hpp"
#include "cases/exchange_run.hpp"
#include "cli/options.hpp"

namespace moebus::cli {

/// Makes case `index` of options.seed; what the options say of ranks and topology is kept, the rest is drawn.
cases::ExchangeCase make_case(const CheckOptions& options, int index);

/// Runs a case on ranks of its own and returns what differs first from the oracle, or nothing.
///
/// Errors: as the library's; an Error is a failure of the case too, unless it is resource_exhausted.
std::optional<std::string> run_case(const cases::ExchangeCase& one, cases::Mutant mutant);

}  // namespace moebus::cli
