#include <fmt/format.h>

#include <cstdio>
#include <optional>

#include "cli/bench.hpp"
#include "cli/commands.hpp"
#include "cli/launch.hpp"
#include "cli/plot.hpp"
#include "cli/report.hpp"
#include "workload/presets.hpp"

namespace moebus::cli {

namespace {

constexpr int kDefaultRanks = 2;

int number_of_ranks(const BenchOptions& options, const std::optional<OuterSeat>& outer) {
  if (!outer) {
    const std::optional<int> named = Nodes::parse(options.topology.nodes).num_ranks();
    return options.ranks.value_or(named.value_or(kDefaultRanks));
  }
  if (options.compares_map) {
    throw UsageError(
        "--compare-map under " + outer->launcher +
        ": it joins a second group, whose meeting place only ranks that are started here know; leave it out");
  }
  const int given = outer->seat.num_ranks;
  if (options.ranks && *options.ranks != given) {
    throw UsageError(fmt::format("--ranks {}: {} started {} ranks; leave --ranks out, or start as many",
                                 *options.ranks,
                                 outer->launcher,
                                 given));
  }
  if (options.transport == "loopback") {
    throw UsageError("--transport loopback: it joins threads of one process, but " + outer->launcher +
                     " started processes; use --transport auto or shm");
  }
  return given;
}

// Returns rank 0's text, or nothing on other ranks of an outer launcher.
std::optional<std::string> run_ranks(const BenchSetup& setup,
                                     const BenchTruth& truth,
                                     const std::optional<OuterSeat>& outer) {
  const FloorWindows windows(setup, outer.has_value());
  const RankBody body = [&](const Seat& seat) { return bench_body(setup, truth, windows, seat); };
  if (outer) {
    const std::string text = body(outer->seat);
    return outer->seat.rank == 0 ? std::optional(text) : std::nullopt;
  }
  if (setup.options.transport == "loopback") return run_as_threads(setup.num_ranks, body).front();
  return run_as_processes(setup.num_ranks, body).front();
}

void throw_if_different(const Json& measured) {
  if (measured.at("verified").get<bool>()) return;
  std::string text = "the first call is not what the oracle says; nothing was timed";
  for (const Json& one : measured.at("mismatches")) text += "\n  " + one.get<std::string>();
  throw Mismatch(text);
}

}  // namespace

int list_models() {
  std::printf("%-28s %7s %8s %6s %7s %7s %6s  %s\n",
              "name",
              "hidden",
              "experts",
              "top-k",
              "groups",
              "shared",
              "dtype",
              "model");
  for (const workload::ModelPreset& preset : workload::load_presets(workload::find_presets_file())) {
    const std::string groups =
        preset.num_groups > 0 ? fmt::format("{}/{}", preset.num_groups, preset.num_kept_groups) : "-";
    std::printf("%-28s %7d %8d %6d %7s %7d %6s  %s\n",
                preset.name.c_str(),
                preset.hidden,
                preset.num_experts,
                preset.num_topk,
                groups.c_str(),
                preset.num_shared_experts,
                preset.dtype.c_str(),
                preset.title.c_str());
  }
  return kOk;
}

int run_bench(BenchOptions options) {
  if (options.list_models) return list_models();
  const std::optional<OuterSeat> outer = outer_seat(process_environment(), options.store);
  const int num_ranks = number_of_ranks(options, outer);
  options.ranks = num_ranks;
  complete(options);
  if (!options.plot.empty() && (!outer || outer->seat.rank == 0)) check_can_plot();
  const Machine machine = look_at_machine();
  // An outer launcher may have tied this rank to one core; the others have theirs.
  const BenchSetup setup = make_setup(options, num_ranks, machine, outer ? machine.cores : machine.threads);
  Exchange::bytes_needed(setup.config, num_ranks);  // refuses a wrong configuration before ranks are started
  const BenchTruth truth = make_truth(setup);
  const std::optional<std::string> text = run_ranks(setup, truth, outer);
  if (!text) return kOk;
  const Json measured = Json::parse(*text);
  throw_if_different(measured);
  const Json report = bench_report(setup, machine, truth.hash, measured);
  if (options.has_json) {
    std::printf("%s\n", report.dump(2).c_str());
  } else {
    std::printf("%s", bench_table(report).c_str());
  }
  std::fflush(stdout);
  if (options.plot.empty()) return kOk;
  plot(report.dump(), options.plot);
  if (!options.has_json) std::printf("  picture: %s\n", options.plot.c_str());
  return kOk;
}

}  // namespace moebus::cli
