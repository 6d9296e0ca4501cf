#include <fmt/format.h>

#include <cstdio>

#include "cli/commands.hpp"
#include "cli/report.hpp"
#include "moebus/info.hpp"

namespace moebus::cli {

namespace {

Json capabilities_json(const std::vector<Capability>& list) {
  Json array = Json::array();
  for (const Capability& one : list) {
    array.push_back({{"name", one.name}, {"is_available", one.is_available}, {"remark", one.remark}});
  }
  return array;
}

std::string capabilities_text(const char* title, const std::vector<Capability>& list) {
  std::string text = fmt::format("{}\n", title);
  for (const Capability& one : list) {
    text += fmt::format("  {:<10} {:<4} {}\n", one.name, one.is_available ? "yes" : "no", one.remark);
  }
  return text;
}

Json devices_json(const std::vector<DeviceCapability>& devices) {
  Json array = Json::array();
  for (const DeviceCapability& one : devices) {
    array.push_back({{"ordinal", one.ordinal},
                     {"name", one.name},
                     {"uuid", one.uuid},
                     {"compute_capability", one.compute_capability},
                     {"memory_bytes", one.memory_bytes},
                     {"num_multiprocessors", one.num_multiprocessors},
                     {"driver", one.driver}});
  }
  return array;
}

/// Nothing on a machine without devices: the backend's line says why.
std::string devices_text(const std::vector<DeviceCapability>& devices) {
  std::string text = devices.empty() ? "" : "devices\n";
  for (const DeviceCapability& one : devices) {
    text += fmt::format("  {:<10} {}, compute capability {}, {} multiprocessors, {:.1f} GiB, driver for CUDA {}\n",
                        one.ordinal,
                        one.name,
                        one.compute_capability,
                        one.num_multiprocessors,
                        static_cast<double>(one.memory_bytes) / (1 << 30),
                        one.driver);
  }
  return text;
}

std::string machine_text(const Machine& machine) {
  return fmt::format(
      "machine\n  {}\n  {} socket(s), {} NUMA node(s), {} cores, {} threads usable here\n"
      "  L2 {} a core, L3 {}, memory {:.1f} GiB, load {:.1f}\n  {}\n",
      machine.cpu,
      machine.sockets,
      machine.numa_nodes,
      machine.cores,
      machine.threads,
      bytes_text(static_cast<double>(machine.l2_bytes)),
      bytes_text(static_cast<double>(machine.l3_bytes)),
      static_cast<double>(machine.memory_bytes) / (1 << 30),
      machine.load,
      machine.kernel);
}

std::string node_text(const Machine& machine) {
  constexpr std::size_t kShown = 13;  // a boot id tells machines apart long before its end
  const std::string name =
      machine.node.size() > kShown && !machine.is_node_named ? machine.node.substr(0, kShown) + "..." : machine.node;
  return fmt::format(
      "node\n  {} ({})\n"
      "  map: reachable = ranks map every peer's memory that they can; node = their own node's; none = nobody's. Bytes "
      "to\n"
      "    others go through the transport, for the same results\n"
      "  levels: 1 = combine adds over ranks; 2 = over the ranks of a node, rounded, then over nodes: part of the "
      "result's "
      "bits.\n    0 = 2 where there are several nodes\n",
      name,
      machine.is_node_named ? "from MOEBUS_HOST_ID" : "the kernel's boot id; MOEBUS_HOST_ID names another");
}

}  // namespace

int run_info(const InfoOptions& options) {
  const Capabilities can = capabilities();
  const Machine machine = look_at_machine();
  if (options.has_json) {
    const Json report{
        {"command", "moebus info"},
        {"version", can.version},
        {"compiler", can.compiler},
        {"simd_level", can.simd_level},
        {"backends", capabilities_json(can.backends)},
        {"transports", capabilities_json(can.transports)},
        {"simd_levels", capabilities_json(can.simd_levels)},
        {"devices", devices_json(can.devices)},
        {"machine", machine_json(machine)},
        {"node", {{"name", machine.node}, {"source", machine.is_node_named ? "MOEBUS_HOST_ID" : "boot_id"}}}};
    std::printf("%s\n", report.dump(2).c_str());
    return kOk;
  }
  std::printf("moebus %s, built by %s\n", can.version.c_str(), can.compiler.c_str());
  std::printf("%s", capabilities_text("backends", can.backends).c_str());
  std::printf("%s", devices_text(can.devices).c_str());
  std::printf("%s", capabilities_text("transports", can.transports).c_str());
  std::printf("%s",
              capabilities_text(fmt::format("SIMD levels of the CPU backend ({} in use)", can.simd_level).c_str(),
                                can.simd_levels)
                  .c_str());
  std::printf("%s", machine_text(machine).c_str());
  std::printf("%s", node_text(machine).c_str());
  return kOk;
}

}  // namespace moebus::cli
