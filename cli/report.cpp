#include "cli/report.hpp"

#include <fmt/format.h>

#include "moebus/version.hpp"

namespace moebus::cli {

namespace {

std::string time_text(double us) {
  if (us >= 1e5) return fmt::format("{:.1f} ms", us / 1e3);
  return us >= 1e3 ? fmt::format("{:.0f} us", us) : fmt::format("{:.1f} us", us);
}

std::string optional_time(const Json& value) { return value.is_null() ? "-" : time_text(value.get<double>()); }

std::string optional_ratio(const Json& value) {
  return value.is_null() ? "-" : fmt::format("{:.2f} x", value.get<double>());
}

std::string shape_line(const Json& shape) {
  std::string dtype = shape["dtype"].get<std::string>();
  if (dtype == "fp8") {
    dtype += fmt::format(" rows {} with {} scales",
                         shape["cast"].get<bool>() ? "cast from bf16 inside," : "given,",
                         shape["scales"].get<std::string>());
  }
  return fmt::format("{} ranks x {} tokens, hidden {}, top-{} of {} experts, {}, {}, {} path, routing {}",
                     shape["ranks"].get<int>(),
                     shape["tokens"].get<int>(),
                     shape["hidden"].get<int>(),
                     shape["topk"].get<int>(),
                     shape["experts"].get<int>(),
                     dtype,
                     shape["layout"].get<std::string>(),
                     shape["path"].get<std::string>(),
                     shape["routing"].get<std::string>());
}

std::string topology_line(const Json& shape) {
  const std::vector<int> nodes = shape["nodes"].get<std::vector<int>>();
  const int num_nodes = number_of_nodes(nodes);
  std::string text = num_nodes == 1 ? "one node" : fmt::format("{} nodes ({})", num_nodes, ranks_by_node(nodes));
  text += fmt::format(
      ", combine adds in {} level{}", shape["levels"].get<int>(), shape["levels"].get<int>() == 1 ? "" : "s");
  if (num_nodes > 1) text += fmt::format(", rows between nodes: {}", shape["inter_node"].get<std::string>());
  return text + fmt::format("; mapped: {}", shape["map"].get<std::string>());
}

// What all ranks together sent between nodes and inside them; only where there are several.
std::string link_rows(const Json& report) {
  if (number_of_nodes(report["shape"]["nodes"].get<std::vector<int>>()) == 1) return "";
  std::string text = fmt::format(
      "\n  {:<22}{:>12}{:>12}{:>14}{:>12}\n", "all ranks, a call", "between", "least", "inside nodes", "least");
  for (const auto& [name, phase] : report["phases"].items()) {
    if (name == "experts") continue;
    text += fmt::format("  {:<22}{:>12}{:>12}{:>14}{:>12}\n",
                        name,
                        bytes_text(phase["between_nodes"]["bytes_sent"]),
                        bytes_text(phase["between_nodes"]["bytes_minimum"]),
                        bytes_text(phase["inside_nodes"]["bytes_sent"]),
                        bytes_text(phase["inside_nodes"]["bytes_minimum"]));
  }
  return text;
}

std::string mapped_line(const Json& report) {
  if (!report.contains("mapped")) return "";
  const Json& mapped = report["mapped"];
  return fmt::format(
      "  the same calls in a group that maps every peer: {} (min {}); here {:.2f} x by medians, {:.2f} x by "
      "minima\n",
      time_text(mapped["median_us"]),
      time_text(mapped["min_us"]),
      mapped["ratio_of_medians"].get<double>(),
      mapped["ratio_of_minima"].get<double>());
}

std::string overlap_lines(const Json& report) {
  if (!report.contains("overlap")) return "";
  const Json& overlap = report["overlap"];
  return fmt::format(
      "\n  two half batches, {} rounds: one by one {}, in overlap {}; experts alone {}, exchange alone {}\n"
      "  hidden: {:.0f} % of the exchange{}\n  {}\n",
      overlap["rounds"].get<int>(),
      time_text(overlap["without"]["median_us"]),
      time_text(overlap["with"]["median_us"]),
      time_text(overlap["compute"]["median_us"]),
      time_text(overlap["exchange"]["median_us"]),
      100 * overlap["hidden"].get<double>(),
      overlap["is_trusted"].get<bool>() ? "" : ": do not trust it, times vary from round to round by about as much",
      overlap["remark"].get<std::string>());
}

std::string phase_rows(const Json& phases) {
  std::string text = fmt::format("  {:<10}{:>11}{:>11}{:>11}{:>11}{:>11}{:>10}{:>12}{:>12}{:>12}\n",
                                 "phase",
                                 "median",
                                 "p99",
                                 "min",
                                 "max",
                                 "floor",
                                 "x floor",
                                 "sent",
                                 "least",
                                 "control");
  for (const auto& [name, phase] : phases.items()) {
    text += fmt::format("  {:<10}{:>11}{:>11}{:>11}{:>11}{:>11}{:>10}{:>12}{:>12}{:>12}\n",
                        name,
                        time_text(phase["median_us"]),
                        time_text(phase["p99_us"]),
                        time_text(phase["min_us"]),
                        time_text(phase["max_us"]),
                        optional_time(phase["floor_us"]),
                        optional_ratio(phase["ratio_to_floor"]),
                        bytes_text(phase["bytes_sent"]),
                        bytes_text(phase["bytes_minimum"]),
                        bytes_text(phase["bytes_control"]));
  }
  return text;
}

std::string copy_rows_text(const Json& copies) {
  std::string text;
  for (const auto& [name, copy] : copies.items()) {
    text +=
        fmt::format("  floor of {}: {:.1f} GB/s a rank by the library's copy; best copy here: {:.1f} GB/s ({}){}\n",
                    name,
                    copy["library_gbps"].get<double>(),
                    copy["best_gbps"].get<double>(),
                    copy["best_copy"].get<std::string>(),
                    copy["is_trusted"].get<bool>() ? "" : ": the library's is below 0.9 of it, so no ratio is given");
  }
  return text;
}

Json shape_json(const BenchSetup& setup, const std::string& transport) {
  const BenchOptions& options = setup.options;
  const bool is_fp8 = options.dtype == "fp8";
  Json shape{{"model", nullptr},
             {"device", options.device},
             {"transport", transport},
             {"ranks", setup.num_ranks},
             {"tokens", options.tokens},
             {"hidden", *options.hidden},
             {"topk", *options.topk},
             {"experts", *options.experts},
             {"dtype", options.dtype},
             {"cast", options.has_cast},
             {"scales", nullptr},
             {"layout", options.layout},
             {"path", options.path},
             {"delivery", options.delivery},
             {"routing", options.routing},
             {"nodes", setup.group.nodes},
             {"levels", setup.group.levels},
             {"map", std::string(to_string(map_peers_of(options)))},
             {"inter_node", std::string(to_string(setup.config.inter_node))},
             {"seed", options.seed},
             {"input_sets", setup.num_sets},
             {"input_set_bytes", setup.set_bytes}};
  if (setup.group.nodes.empty()) shape["nodes"] = std::vector<int>(static_cast<std::size_t>(setup.num_ranks), 0);
  if (!options.model.empty()) shape["model"] = options.model;
  if (is_fp8) shape["scales"] = options.scales;
  return shape;
}

}  // namespace

std::string bytes_text(double bytes) {
  if (bytes >= 1024.0 * 1024.0 / 4) return fmt::format("{:.2f} MiB", bytes / 1024.0 / 1024.0);
  return bytes >= 1024.0 ? fmt::format("{:.1f} KiB", bytes / 1024.0) : fmt::format("{:.0f} B", bytes);
}

Json machine_json(const Machine& machine) {
  return Json{{"cpu", machine.cpu},
              {"sockets", machine.sockets},
              {"numa_nodes", machine.numa_nodes},
              {"cores", machine.cores},
              {"threads", machine.threads},
              {"l2_bytes", machine.l2_bytes},
              {"l3_bytes", machine.l3_bytes},
              {"memory_bytes", machine.memory_bytes},
              {"load", machine.load},
              {"kernel", machine.kernel},
              {"host", machine.host}};
}

Json bench_report(const BenchSetup& setup,
                  const Machine& machine,
                  const std::string& input_hash,
                  const Json& measured) {
  Json report{{"command", "moebus bench " + to_string(setup.options.kind)},
              {"version", std::string(version())},
              {"machine", machine_json(machine)},
              {"shape", shape_json(setup, measured.at("transport").get<std::string>())}};
  report["shape"]["input_hash"] = input_hash;
  for (const auto& [key, value] : measured.items()) {
    if (key != "transport") report[key] = value;
  }
  return report;
}

std::string bench_table(const Json& report) {
  const Json& shape = report["shape"];
  const Json& machine = report["machine"];
  const Json& prepare = report["prepare_ms"];
  const std::string model = shape["model"].is_null() ? "" : shape["model"].get<std::string>() + ": ";
  std::string text = fmt::format("{}\n  {}{}\n", report["command"].get<std::string>(), model, shape_line(shape));
  text += fmt::format("  {}, {} threads, L3 {}, load {:.1f}; ranks over {}{}\n",
                      machine["cpu"].get<std::string>(),
                      machine["threads"].get<int>(),
                      bytes_text(machine["l3_bytes"]),
                      machine["load"].get<double>(),
                      shape["transport"].get<std::string>(),
                      report["is_pinned"].get<bool>() ? ", each tied to a core" : ", not tied to cores");
  text += fmt::format("  {}\n", topology_line(shape));
  text += fmt::format(
      "  verified: the first call equals the oracle bit for bit on every rank, and sent the least (inputs "
      "{})\n\n",
      shape["input_hash"].get<std::string>());
  text += phase_rows(report["phases"]);
  text += link_rows(report);
  text += fmt::format("\n  slowest rank of each of {} calls, inputs rotate over {} sets of {}\n",
                      report["iterations"].get<int>(),
                      shape["input_sets"].get<int>(),
                      bytes_text(shape["input_set_bytes"]));
  text += mapped_line(report);
  if (report["copies"].empty()) text += "  no floor: it knows rows that go straight, and these stop at gateways\n";
  text += copy_rows_text(report["copies"]);
  text +=
      fmt::format("  first call {}, second {}; prepare: agree {:.1f} ms, allocate {:.1f}, map {:.1f}, warm up {:.1f}\n",
                  time_text(report["first_call_us"]),
                  time_text(report["second_call_us"]),
                  prepare["agree"].get<double>(),
                  prepare["allocate"].get<double>(),
                  prepare["map"].get<double>(),
                  prepare["warm_up"].get<double>());
  if (!report["flag_round_trip_us"].is_null()) {
    text += fmt::format("  a bare flag goes round in {}\n", time_text(report["flag_round_trip_us"]));
  }
  text += fmt::format("  registered memory: {} a rank\n", bytes_text(report["registered_bytes"]));
  return text + overlap_lines(report);
}

}  // namespace moebus::cli
