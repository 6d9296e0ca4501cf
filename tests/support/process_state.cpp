#include "tests/support/process_state.hpp"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace moebus::tests {
namespace {

namespace fs = std::filesystem;

int count_entries(const char* folder) {
  int count = 0;
  for (auto at = fs::directory_iterator(folder); at != fs::directory_iterator(); ++at) ++count;
  return count;
}

void add_ours(const fs::path& folder, std::set<std::string>& names) {
  std::error_code error;
  for (auto at = fs::directory_iterator(folder, error); !error && at != fs::directory_iterator(); at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (name.find("moebus") != std::string::npos) names.insert(at->path().string());
  }
}

}  // namespace

std::string ProcessState::text() const {
  std::ostringstream text;
  text << descriptors << " descriptors, " << threads << " threads, " << shared_mappings << " shared mappings of "
       << shared_bytes << " bytes, named:";
  for (const std::string& name : named_things) text << " " << name;
  return text.str();
}

ProcessState process_state() {
  ProcessState state;
  state.descriptors = count_entries("/proc/self/fd");
  state.threads = count_entries("/proc/self/task");
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:moebus") == std::string::npos) continue;
    ++state.shared_mappings;
    std::istringstream range(line);
    std::size_t begin = 0;
    std::size_t end = 0;
    char dash = 0;
    range >> std::hex >> begin >> dash >> end;
    state.shared_bytes += end - begin;
  }
  add_ours("/dev/shm", state.named_things);
  add_ours("/tmp", state.named_things);
  return state;
}

}  // namespace moebus::tests
