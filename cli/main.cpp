// moebus: the command. The option tree, and how the process ends.
// Room: cli · host.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <string>

#include "cli/commands.hpp"
#include "cli/completion.hpp"
#include "cli/option_tree.hpp"
#include "moebus/error.hpp"
#include "moebus/types.hpp"
#include "moebus/version.hpp"

namespace moebus::cli {

namespace {

constexpr const char* kMainExamples = R"(
Begin with:
  moebus info                                                 what this machine and this build can do
  moebus bench exchange --model deepseek-v3 --ranks 8         tokens of a real model's shape, checked, then timed
  moebus check --cases 50                                     random shapes against the oracle, bit for bit

Exit status: 0 all right, 1 a result is wrong, 2 wrong options, 10 + code for errors (docs/errors.md).
)";

constexpr const char* kBenchExamples = R"(
Every bench first makes one call and compares it with the oracle, bit for bit; only then is anything timed.
Times are those of the slowest rank of each call. The floor is the copies that the layout needs, timed in the same run.

Examples:
  moebus bench dispatch --tokens 128 --dtype fp8              fp8 rows and their scales are given
  moebus bench dispatch --tokens 128 --cast --scales ue8m0    bf16 rows are cast inside
  moebus bench exchange --model deepseek-v3 --ranks 8 --plot exchange.svg
  moebus bench combine --path throughput --tokens 4096 --layout expert_major
  moebus bench layer --model mixtral-8x7b --tokens 32         with small stand-ins for the experts
  moebus bench exchange --ranks 8 --nodes 2                   pretended nodes: bytes between and inside them
  moebus bench exchange --nodes 3+1 --inter-node direct       uneven nodes, no stop at a gateway
  moebus bench exchange --map none --compare-map              peers that are not mapped, beside the same mapped
  moebus bench layer --overlap                                two half batches: how much of the exchange is hidden
  moebus bench exchange --routing zipf:0.8 --json             for machines; docs/bench-json.md says what is in it
  mpirun -n 2 moebus bench exchange                           as ranks of mpirun, torchrun or srun
  moebus bench exchange --list-models
)";

constexpr const char* kCheckExamples = R"(
Each case is a random shape, layout, element type, routing, number of ranks, set of nodes, mapping and placement, with or
without calls in overlap, all made from the seed alone. Bytes are compared, and what was sent with the least that must be.
A failure prints the line that runs that one case again, and what differs first.

Examples:
  moebus check
  moebus check --cases 1000 --ranks 2,4,8 --seed 7
  moebus check --nodes 3+1 --map none --inter-node gateway    what is said of the group is kept, the rest is drawn
  moebus check --seed 7 --case 12                             one case again
  moebus check --mutant swapped-rows                          plant a fault: the check must end with status 1
)";

constexpr const char* kCompletionExamples = R"(
Installed packages have put these scripts in place. By hand:
  source <(moebus completion bash)                            likewise in zsh, after compinit
  moebus completion fish | source
)";

constexpr int kMaxTokens = 1 << 20;
constexpr int kMaxHidden = 1 << 20;
constexpr int kMaxExperts = 1 << 16;

struct Parsed {
  BenchOptions bench;
  CheckOptions check;
  InfoOptions info;
  Shell shell = Shell::bash;
  const CLI::App* tree = nullptr;
  int (*command)(const Parsed&) = nullptr;
};

void add_shape_options(CLI::App& app, BenchOptions& options) {
  app.add_option("--tokens", options.tokens, "Tokens of each rank in a call")
      ->check(CLI::Range(0, kMaxTokens))
      ->capture_default_str();
  app.add_option("--hidden", options.hidden, "Columns of a row [7168, or the model's]")
      ->check(CLI::Range(1, kMaxHidden));
  app.add_option("--topk", options.topk, "Experts that a token chooses [8, or the model's]")
      ->check(CLI::Range(1, kMaxTopk));
  app.add_option("--experts", options.experts, "Experts over all ranks [256, or the model's]")
      ->check(CLI::Range(1, kMaxExperts));
  app.add_option("--dtype", options.dtype, "Element type of rows [bf16, or the model's]")
      ->check(CLI::IsMember({"bf16", "f16", "f32", "fp8"}));
  app.add_flag("--cast", options.has_cast, "fp8 is made inside from bf16 rows; without it fp8 rows are given");
  app.add_option("--scales", options.scales, "Scales of fp8 rows [f32]")->check(CLI::IsMember({"f32", "ue8m0"}));
  app.add_option("--layout", options.layout, "How received rows are arranged")
      ->check(CLI::IsMember({"rank_major", "expert_major", "expert_padded"}))
      ->capture_default_str();
  app.add_option("--path", options.path, "latency: fixed slots; throughput: counts first, for thousands of tokens")
      ->check(CLI::IsMember({"latency", "throughput"}))
      ->capture_default_str();
  app.add_option("--delivery", options.delivery, "Throughput path: rows straight to the result, or in rounds")
      ->check(CLI::IsMember({"direct", "staged"}))
      ->capture_default_str();
  app.add_option("--routing",
                 options.routing,
                 "uniform, zipf:S, single, grouped:G/K, hot:F or file:F (one JSON array of ids a line)")
      ->capture_default_str();
  app.add_option("--model", options.model, "Takes hidden, top-k, experts and element type of a public model");
  app.add_flag("--list-models", options.list_models, "Prints the models and ends");
}

// `is_drawn`: what is not given is drawn for each case; else it has a default.
void add_topology_options(CLI::App& app, TopologyOptions& options, bool is_drawn) {
  const auto help = [&](const std::string& text, const std::string& otherwise) {
    return text + " [" + (is_drawn ? "drawn" : otherwise) + "]";
  };
  app.add_option("--nodes",
                 options.nodes,
                 help("Pretended nodes: how many (2), their sizes (3+1), or the node of each rank (0,1,0,1)", "one"));
  app.add_option(
         "--map",
         options.map,
         help("Whose memory ranks map: all they can reach, their node's, or none; bytes to others go through the "
              "transport",
              "reachable"))
      ->check(CLI::IsMember({"reachable", "node", "none"}));
  app.add_option(
         "--inter-node",
         options.inter_node,
         help("Rows between nodes: once per token and node through a gateway, or direct to each rank", "gateway"))
      ->check(CLI::IsMember({"gateway", "direct"}));
  app.add_option(
         "--levels",
         options.levels,
         help("1: combine adds over ranks; 2: over the ranks of a node, then over nodes; 0: 2 if there are several",
              "0"))
      ->check(CLI::Range(0, 2));
}

void add_run_options(CLI::App& app, BenchOptions& options) {
  app.add_option("--ranks", options.ranks, "Ranks to start on this machine [2]")->check(CLI::Range(1, kMaxRanks));
  app.add_option("--device", options.device, "Where tensors live")
      ->check(CLI::IsMember({"cpu"}))
      ->capture_default_str();
  app.add_option("--transport", options.transport, "auto, loopback (ranks are threads) or shm (processes)")
      ->check(CLI::IsMember({"auto", "loopback", "shm"}))
      ->capture_default_str();
  app.add_option(
      "--store", options.store, "Where ranks of an outer launcher meet, e.g. tcp://HOST:PORT [MOEBUS_STORE]");
  CLI::Option* const iterations =
      app.add_option("--iterations", options.iterations, "Timed calls; without it as many as --time allows")
          ->check(CLI::Range(1, 1'000'000));
  app.add_option("--time", options.time_s, "Seconds of timed calls")
      ->check(CLI::Range(0.01, 3600.0))
      ->capture_default_str()
      ->excludes(iterations);
  app.add_option("--seed", options.seed, "Seed of all inputs")->capture_default_str();
  app.add_flag("--json", options.has_json, "One JSON object instead of the table");
  app.add_option("--plot", options.plot, "Also writes a picture: FILE.svg or FILE.png");
}

void add_bench(CLI::App& app, Parsed& parsed) {
  CLI::App* const bench =
      app.add_subcommand("bench", "Times dispatch, combine, both, or a whole layer, once they are checked");
  bench->require_subcommand(1);
  bench->footer(kBenchExamples);
  const std::vector<std::pair<BenchKind, std::string>> kinds{
      {BenchKind::dispatch, "Tokens to the ranks of their experts"},
      {BenchKind::combine, "Experts' rows home, weighted and summed"},
      {BenchKind::exchange, "Dispatch, then combine"},
      {BenchKind::layer, "Dispatch, stand-ins for experts, combine"}};
  for (const auto& [kind, text] : kinds) {
    CLI::App* const one = bench->add_subcommand(to_string(kind), text);
    add_shape_options(*one, parsed.bench);
    add_run_options(*one, parsed.bench);
    add_topology_options(*one, parsed.bench.topology, false);
    one->add_flag("--compare-map",
                  parsed.bench.compares_map,
                  "The same calls on a group that maps every peer, in turn; with --map none or node");
    if (kind == BenchKind::layer) {
      one->add_flag("--overlap",
                    parsed.bench.has_overlap,
                    "Also two half batches, one's exchange beside the other's experts: how much of it is hidden");
    }
    one->footer(kBenchExamples);
    one->callback([&parsed, chosen = kind] {
      parsed.bench.kind = chosen;
      parsed.command = [](const Parsed& all) { return run_bench(all.bench); };
    });
  }
}

void add_check(CLI::App& app, Parsed& parsed) {
  CLI::App* const check = app.add_subcommand("check", "Compares random cases with the oracle, bit for bit");
  CheckOptions& options = parsed.check;
  check->add_option("--cases", options.cases, "How many")->check(CLI::Range(1, 1'000'000))->capture_default_str();
  check->add_option("--seed", options.seed, "All cases follow from it")->capture_default_str();
  check->add_option("--case", options.only_case, "Runs this case alone")->check(CLI::Range(0, 999'999));
  check->add_option("--ranks", options.ranks, "Numbers of ranks to choose from [1,2,3,4,7,8, or what --nodes says]")
      ->delimiter(',')
      ->check(CLI::Range(1, kMaxRanks));
  add_topology_options(*check, options.topology, true);
  check->add_option("--mutant", options.mutant, "Plants a fault that the check must find")
      ->check(CLI::IsMember(mutant_names()));
  check->add_flag("--json", options.has_json, "One JSON object instead of text");
  check->footer(kCheckExamples);
  check->callback([&parsed] { parsed.command = [](const Parsed& all) { return run_check(all.check); }; });
}

void add_info(CLI::App& app, Parsed& parsed) {
  CLI::App* const about = app.add_subcommand("info", "Says what this machine and this build can do, and why not more");
  about->add_flag("--json", parsed.info.has_json, "One JSON object instead of text");
  about->callback([&parsed] { parsed.command = [](const Parsed& all) { return run_info(all.info); }; });
}

void add_completion(CLI::App& app, Parsed& parsed) {
  CLI::App* const completion = app.add_subcommand("completion", "Prints a script that teaches a shell the options");
  completion->require_subcommand(1);
  completion->footer(kCompletionExamples);
  parsed.tree = &app;
  for (const Shell shell : {Shell::bash, Shell::zsh, Shell::fish}) {
    CLI::App* const one = completion->add_subcommand(to_string(shell), "The script for " + to_string(shell));
    one->footer(kCompletionExamples);
    one->callback([&parsed, shell] {
      parsed.shell = shell;
      parsed.command = [](const Parsed& all) {
        std::fputs(completion_script(all.shell, words_of(*all.tree)).c_str(), stdout);
        return kOk;
      };
    });
  }
}

int parse_and_run(int argc, char** argv) {
  CLI::App app("moebus: dispatch tokens to experts and bring the answers home", "moebus");
  app.set_version_flag("--version", std::string(version()));
  app.require_subcommand(1);
  app.footer(kMainExamples);
  app.get_formatter()->column_width(34);
  Parsed parsed;
  add_bench(app, parsed);
  add_check(app, parsed);
  add_info(app, parsed);
  add_completion(app, parsed);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& wanted) {  // --help or --version
    return app.exit(wanted);
  } catch (const CLI::ParseError& error) {
    if (argc == 1) std::fprintf(stderr, "%s\n", app.help().c_str());
    std::fprintf(stderr, "moebus: %s\nTry --help after the command.\n", error.what());
    return kUsage;
  }
  return parsed.command(parsed);
}

int run(int argc, char** argv) {
  try {
    return parse_and_run(argc, argv);
  } catch (const UsageError& error) {
    std::fprintf(stderr, "moebus: %s\n", error.what());
    return kUsage;
  } catch (const Mismatch& mismatch) {
    std::fprintf(stderr, "moebus: %s\n", mismatch.what());
    return kMismatch;
  } catch (const Error& error) {
    std::fprintf(stderr, "moebus: %s\n", error.what());
    return kFirstErrorStatus + static_cast<int>(error.code());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "moebus: %s\n", error.what());
    return kFirstErrorStatus + static_cast<int>(ErrorCode::internal);
  }
}

}  // namespace

}  // namespace moebus::cli

int main(int argc, char** argv) { return moebus::cli::run(argc, argv); }
