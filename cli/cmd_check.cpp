#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <map>

#include "cli/check_case.hpp"
#include "cli/commands.hpp"
#include "cli/progress.hpp"
#include "cli/report.hpp"
#include "moebus/error.hpp"
#include "moebus/version.hpp"

namespace moebus::cli {

namespace {

// Faults in the data are planted here; those in the protocol by the library itself, when this variable asks for them.
constexpr const char* kMutantVariable = "MOEBUS_FAULT";

using cases::Mutant;

Mutant plant(const std::string& name) {
  static const std::map<std::string, Mutant> kPlantedHere{
      {"swapped-rows", Mutant::swapped_rows}, {"dropped-row", Mutant::dropped_row}, {"order", Mutant::order}};
  const auto found = kPlantedHere.find(name);
  if (found != kPlantedHere.end()) return found->second;
  if (!name.empty()) ::setenv(kMutantVariable, name.c_str(), 1);
  return Mutant::none;
}

std::string line_again(const CheckOptions& options, int index) {
  std::string line = fmt::format("moebus check --seed {} --case {}", options.seed, index);
  if (options.ranks != default_ranks()) line += fmt::format(" --ranks {}", fmt::join(options.ranks, ","));
  const TopologyOptions& topology = options.topology;
  if (!topology.nodes.empty()) line += " --nodes " + topology.nodes;
  if (!topology.map.empty()) line += " --map " + topology.map;
  if (!topology.inter_node.empty()) line += " --inter-node " + topology.inter_node;
  if (topology.levels) line += fmt::format(" --levels {}", *topology.levels);
  if (!options.mutant.empty()) line += " --mutant " + options.mutant;
  return line;
}

// Returns what is wrong with a case, or nothing.
std::optional<std::string> failure_of(const cases::ExchangeCase& one, Mutant mutant) {
  try {
    return run_case(one, mutant);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::resource_exhausted) throw;  // says something of this machine, not of the case
    return std::string(to_string(error.code())) + ": " + error.what();
  }
}

Json report_json(const CheckOptions& options, int num_run, const std::string& line, const std::string& what) {
  Json report{{"command", "moebus check"},
              {"version", std::string(version())},
              {"seed", options.seed},
              {"cases", num_run},
              {"passed", line.empty()},
              {"failure", nullptr}};
  if (!line.empty()) report["failure"] = {{"line", line}, {"what", what}};
  return report;
}

}  // namespace

int run_check(CheckOptions options) {
  complete(options);
  const Mutant mutant = plant(options.mutant);
  const int first = options.only_case.value_or(0);
  const int end = options.only_case ? first + 1 : options.cases;
  Progress progress(!options.has_json);
  for (int index = first; index < end; ++index) {
    const cases::ExchangeCase one = make_case(options, index);
    progress.show("cases", index - first, end - first);
    const std::optional<std::string> what = failure_of(one, mutant);
    if (!what) continue;
    progress.clear();
    const std::string line = line_again(options, index);
    if (options.has_json) {
      std::printf("%s\n", report_json(options, index - first + 1, line, *what).dump(2).c_str());
    } else {
      std::printf("%s\n", line.c_str());
    }
    std::fflush(stdout);
    throw Mismatch(fmt::format("case {} differs: {}\n  the case: {}", index, *what, describe(one)));
  }
  progress.clear();
  if (options.has_json) {
    std::printf("%s\n", report_json(options, end - first, "", "").dump(2).c_str());
  } else {
    std::printf("%d cases equal the oracle bit for bit (seed %llu)\n",
                end - first,
                static_cast<unsigned long long>(options.seed));
  }
  return kOk;
}

}  // namespace moebus::cli
