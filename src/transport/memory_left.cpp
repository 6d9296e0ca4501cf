#include "transport/memory_left.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

#include "moebus/error.hpp"

namespace moebus::transport {
namespace {

constexpr std::size_t kNoLimit = std::numeric_limits<std::size_t>::max();

/// Reads the lines "MemAvailable:   123 kB" and "SwapFree: ...".
std::size_t machine_left_bytes() {
  std::ifstream file("/proc/meminfo");
  std::size_t total_kib = 0;
  bool is_known = false;
  std::string name;
  std::size_t kib = 0;
  std::string unit;
  while (file >> name >> kib && std::getline(file, unit)) {
    if (name == "MemAvailable:") is_known = true;
    if (name == "MemAvailable:" || name == "SwapFree:") total_kib += kib;
  }
  return is_known ? total_kib << 10 : kNoLimit;
}

/// Reads memory.max of this process's cgroup (version 2); a file that is not there, or says "max", is no limit.
std::size_t cgroup_limit_bytes() {
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    if (!line.starts_with("0::")) continue;
    std::ifstream limit("/sys/fs/cgroup" + line.substr(3) + "/memory.max");
    std::size_t bytes = 0;
    if (limit >> bytes) return bytes;
  }
  return kNoLimit;
}

}  // namespace

std::size_t memory_left_bytes() { return std::min(machine_left_bytes(), cgroup_limit_bytes()); }

void check_memory_left(std::size_t size_bytes, int num_ranks) {
  const std::size_t left_bytes = memory_left_bytes();
  const auto ranks = static_cast<std::size_t>(num_ranks);
  if (size_bytes <= left_bytes / ranks) return;
  throw Error(
      ErrorCode::resource_exhausted,
      fmt::format("{} bytes were asked for on each of {} ranks, this machine has {} bytes left; use fewer ranks, fewer "
                  "tokens per rank or a capacity",
                  size_bytes,
                  num_ranks,
                  left_bytes));
}

}  // namespace moebus::transport
