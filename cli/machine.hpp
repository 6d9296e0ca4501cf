// Machine: what a measurement must say about where it was taken.
// Room: cli · host.

#pragma once

#include <cstddef>
#include <string>

namespace moebus::cli {

/// Facts about this machine at this moment. Unknown text is "unknown", unknown numbers are 0.
struct Machine {
  std::string cpu;  ///< model name
  int sockets = 0;
  int numa_nodes = 0;
  int cores = 0;             ///< physical cores
  int threads = 0;           ///< hardware threads that this process may use
  std::size_t l2_bytes = 0;  ///< of one core
  std::size_t l3_bytes = 0;  ///< of the largest shared cache
  std::size_t memory_bytes = 0;
  double load = 0;             ///< runnable processes, average of the last minute
  std::string kernel;          ///< e.g. "Linux 6.1.0 x86_64"
  std::string host;            ///< host name
  std::string node;            ///< what a rank started here says of its node, unless it is told otherwise
  bool is_node_named = false;  ///< by MOEBUS_HOST_ID; else it is the boot id of the kernel
};

/// Looks at the machine through hwloc and the kernel. Starts no threads.
///
/// Errors:  Error{internal} if hwloc cannot read the topology.
Machine look_at_machine();

}  // namespace moebus::cli
