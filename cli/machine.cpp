#include "cli/machine.hpp"

#include <hwloc.h>
#include <sched.h>
#include <sys/sysinfo.h>
#include <sys/utsname.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "moebus/error.hpp"

namespace moebus::cli {

namespace {

class Topology {
 public:
  Topology() {
    if (hwloc_topology_init(&topology_) != 0) throw Error(ErrorCode::internal, "hwloc: no memory for a topology");
    if (hwloc_topology_load(topology_) != 0) {
      hwloc_topology_destroy(topology_);
      throw Error(ErrorCode::internal, "hwloc cannot read this machine's topology");
    }
  }

  ~Topology() { hwloc_topology_destroy(topology_); }

  Topology(const Topology&) = delete;
  Topology& operator=(const Topology&) = delete;

  [[nodiscard]] int count(hwloc_obj_type_t type) const {
    return std::max(0, hwloc_get_nbobjs_by_type(topology_, type));
  }

  [[nodiscard]] std::size_t cache_bytes(hwloc_obj_type_t type) const {
    std::size_t largest = 0;
    for (int i = 0; i < count(type); ++i) {
      const hwloc_obj_t cache = hwloc_get_obj_by_type(topology_, type, static_cast<unsigned>(i));
      if (cache != nullptr && cache->attr != nullptr) {
        largest = std::max(largest, static_cast<std::size_t>(cache->attr->cache.size));
      }
    }
    return largest;
  }

  [[nodiscard]] std::string cpu_model() const {
    const hwloc_obj_t package = hwloc_get_obj_by_type(topology_, HWLOC_OBJ_PACKAGE, 0);
    const char* name = package == nullptr ? nullptr : hwloc_obj_get_info_by_name(package, "CPUModel");
    if (name == nullptr) name = hwloc_obj_get_info_by_name(hwloc_get_root_obj(topology_), "CPUModel");
    return name == nullptr ? "unknown" : name;
  }

 private:
  hwloc_topology_t topology_ = nullptr;
};

int usable_threads() {
  cpu_set_t allowed;
  return sched_getaffinity(0, sizeof(allowed), &allowed) == 0 ? CPU_COUNT(&allowed) : 0;
}

void look_at_node(Machine& machine) {
  const char* const name = std::getenv("MOEBUS_HOST_ID");
  machine.is_node_named = name != nullptr && *name != '\0';
  if (machine.is_node_named) {
    machine.node = name;
    return;
  }
  std::ifstream("/proc/sys/kernel/random/boot_id") >> machine.node;
  if (machine.node.empty()) machine.node = "unknown";
}

}  // namespace

Machine look_at_machine() {
  const Topology topology;
  Machine machine;
  machine.cpu = topology.cpu_model();
  machine.sockets = topology.count(HWLOC_OBJ_PACKAGE);
  machine.numa_nodes = topology.count(HWLOC_OBJ_NUMANODE);
  machine.cores = topology.count(HWLOC_OBJ_CORE);
  machine.threads = usable_threads();
  machine.l2_bytes = topology.cache_bytes(HWLOC_OBJ_L2CACHE);
  machine.l3_bytes = topology.cache_bytes(HWLOC_OBJ_L3CACHE);
  struct sysinfo memory{};
  if (sysinfo(&memory) == 0) machine.memory_bytes = memory.totalram * memory.mem_unit;
  double load = 0;
  if (getloadavg(&load, 1) == 1) machine.load = load;
  utsname name{};
  if (uname(&name) == 0) {
    machine.kernel = std::string(name.sysname) + " " + name.release + " " + name.machine;
    machine.host = name.nodename;
  }
  look_at_node(machine);
  return machine;
}

}  // namespace moebus::cli
