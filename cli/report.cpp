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
             {"seed", options.seed},
             {"input_sets", setup.num_sets},
             {"input_set_bytes", setup.set_bytes}};
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
  text += fmt::format("  verified: the first call equals the oracle bit for bit on every rank (inputs {})\n\n",
                      shape["input_hash"].get<std::string>());
  text += phase_rows(report["phases"]);
  text += fmt::format("\n  slowest rank of each of {} calls, inputs rotate over {} sets of {}\n",
                      report["iterations"].get<int>(),
                      shape["input_sets"].get<int>(),
                      bytes_text(shape["input_set_bytes"]));
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
  return text;
}

}  // namespace moebus::cli
