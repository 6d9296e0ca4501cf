#include "engine/agreement.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <sstream>

#include "base/env.hpp"
#include "moebus/version.hpp"

namespace moebus::engine {

namespace {

/// Variables that would make ranks behave differently. Logging and SIMD level do not change a byte and are left out.
constexpr const char* kRelevant[] = {"MOEBUS_FAULT", "MOEBUS_TEST_TRANSPORT"};

std::map<std::string, std::string> parse(const std::string& text) {
  std::map<std::string, std::string> values;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t at = line.find('=');
    if (at != std::string::npos) values[line.substr(0, at)] = line.substr(at + 1);
  }
  return values;
}

std::string describe_values(const std::string& name, const std::map<std::string, std::vector<int>>& ranks_by_value) {
  std::string text = name + " is ";
  bool is_first = true;
  for (const auto& [value, ranks] : ranks_by_value) {
    text += fmt::format("{}{} on rank{} {}",
                        is_first ? "" : "; ",
                        value.empty() ? "not set" : value,
                        ranks.size() > 1 ? "s" : "",
                        fmt::join(ranks, ", "));
    is_first = false;
  }
  return text;
}

}  // namespace

std::string agreement_header() {
  std::string text = fmt::format("moebus version={}\n", version());
  for (const char* name : kRelevant) text += fmt::format("environment {}={}\n", name, base::env(name).value_or(""));
  return text;
}

std::optional<std::string> find_differences(const std::vector<std::string>& texts) {
  std::map<std::string, std::map<std::string, std::vector<int>>> seen;  // name -> value -> ranks
  std::map<std::string, std::size_t> num_seen;
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    for (const auto& [name, value] : parse(texts[rank])) {
      seen[name][value].push_back(static_cast<int>(rank));
      ++num_seen[name];
    }
  }
  std::string differences;
  for (const auto& [name, ranks_by_value] : seen) {
    if (ranks_by_value.size() == 1 && num_seen[name] == texts.size()) continue;
    differences += (differences.empty() ? "" : ". ") + describe_values(name, ranks_by_value);
  }
  if (differences.empty()) return std::nullopt;
  return differences;
}

}  // namespace moebus::engine
