// Process state: what this process holds of the system, to show that nothing is left behind.
// Room: tests · host.

#pragma once

#include <cstddef>
#include <set>
#include <string>

namespace moebus::tests {

/// Counts of what a library can leak without losing memory.
struct ProcessState {
  int descriptors = 0;
  int threads = 0;
  int shared_mappings = 0;             ///< memory shared by descriptor
  std::size_t shared_bytes = 0;        ///< sum of their sizes
  std::set<std::string> named_things;  ///< of ours in /dev/shm and the temporary folder

  friend bool operator==(const ProcessState&, const ProcessState&) = default;

  [[nodiscard]] std::string text() const;
};

[[nodiscard]] ProcessState process_state();

}  // namespace moebus::tests
