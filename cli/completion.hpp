// Completion: scripts that teach a shell the command's options, written from the option tree itself.
// Room: cli · host.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace moebus::cli {

/// One option as a shell sees it.
struct OptionWords {
  std::vector<std::string> names;  ///< with their dashes, e.g. {"-h", "--help"}
  std::string description;
  bool takes_value = false;
  bool is_number = false;            ///< of the value: no file name will do
  std::vector<std::string> choices;  ///< of the value; empty = anything
};

/// A command, its options and what can follow it.
struct CommandWords {
  std::string name;
  std::string description;
  std::vector<OptionWords> options;
  std::vector<CommandWords> subcommands;
};

enum class Shell : std::uint8_t { bash, zsh, fish };

std::string to_string(Shell shell);

/// Returns a script that completes `root` in that shell: `source` it, or put it where the shell looks for such scripts.
/// Names and choices are words without blanks and quotes; descriptions are free.
std::string completion_script(Shell shell, const CommandWords& root);

}  // namespace moebus::cli
