#include "cli/completion.hpp"

#include <fmt/format.h>

namespace moebus::cli {

namespace {

std::string joined(const std::vector<std::string>& words, const char* between = " ") {
  return fmt::format("{}", fmt::join(words, between));
}

std::vector<std::string> names_of(const std::vector<CommandWords>& commands) {
  std::vector<std::string> names;
  for (const CommandWords& command : commands) names.push_back(command.name);
  return names;
}

/// Puts a backslash before each of `marks`.
std::string marked(const std::string& text, const std::string& marks) {
  std::string result;
  for (const char c : text) {
    if (marks.find(c) != std::string::npos) result += '\\';
    result += c;
  }
  return result;
}

/// Returns `text` in single quotes, as bash and zsh read it.
std::string quoted(const std::string& text) {
  std::string result = "'";
  for (const char c : text) result += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return result + "'";
}

// Bash: one function. It walks the words before the cursor down to a command, its "path", and offers what can follow.

std::string bash_paths(const CommandWords& command, const std::string& path) {
  std::string lines;
  for (const CommandWords& sub : command.subcommands) {
    lines += fmt::format("      '{} {}') path+=\" $word\" ;;\n", path, sub.name);
    lines += bash_paths(sub, path + " " + sub.name);
  }
  return lines;
}

std::string bash_values(const CommandWords& command, const std::string& path) {
  const std::string root = path.substr(0, path.find(' '));
  std::string lines;
  for (const OptionWords& option : command.options) {
    if (!option.takes_value) continue;
    std::vector<std::string> patterns;
    for (const std::string& name : option.names) patterns.push_back(fmt::format("'{} {}'", path, name));
    std::string answer;
    if (!option.choices.empty()) {
      answer = fmt::format("_{}_answer -W '{}'; ", root, joined(option.choices));
    } else if (!option.is_number) {
      answer = fmt::format("_{}_answer -f; ", root);
    }
    lines += fmt::format("    {}) {}return ;;\n", joined(patterns, " | "), answer);
  }
  for (const CommandWords& sub : command.subcommands) lines += bash_values(sub, path + " " + sub.name);
  return lines;
}

std::string bash_words(const CommandWords& command, const std::string& path) {
  std::vector<std::string> words = names_of(command.subcommands);
  for (const OptionWords& option : command.options) words.insert(words.end(), option.names.begin(), option.names.end());
  const std::string root = path.substr(0, path.find(' '));
  std::string lines = fmt::format("    '{}') _{}_answer -W '{}' ;;\n", path, root, joined(words));
  for (const CommandWords& sub : command.subcommands) lines += bash_words(sub, path + " " + sub.name);
  return lines;
}

constexpr const char* kBash = R"(# Completion of {0} for bash.
_{0}_answer() {{ mapfile -t COMPREPLY < <(compgen "$@" -- "$current"); }}
_{0}() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD - 1]}} path={0} word
  COMPREPLY=()
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    case "$path $word" in
{1}    esac
  done
  case "$path $previous" in
{2}  esac
  case "$path" in
{3}  esac
}}
complete -F _{0} {0}
)";

std::string bash_script(const CommandWords& root) {
  return fmt::format(
      kBash, root.name, bash_paths(root, root.name), bash_values(root, root.name), bash_words(root, root.name));
}

// Zsh: one function for each command; those with subcommands hand over to theirs.

std::string zsh_option(const OptionWords& option) {
  std::string value;
  if (!option.choices.empty()) {
    value = fmt::format(":value:({})", joined(option.choices));
  } else if (option.takes_value) {
    value = option.is_number ? ":number: " : ":value:_files";
  }
  const std::string about = fmt::format("[{}]{}", marked(option.description, "[]:\\"), value);
  if (option.names.size() == 1) return quoted(option.names.front() + about);
  // Several names exclude each other.
  return fmt::format("'({})'{{{}}}{}", joined(option.names), joined(option.names, ","), quoted(about));
}

std::string zsh_function(const CommandWords& command, const std::string& name) {
  std::string options;
  for (const OptionWords& option : command.options) options += " \\\n    " + zsh_option(option);
  if (command.subcommands.empty()) return fmt::format("{}() {{\n  _arguments{}\n}}\n", name, options);
  std::string subs;
  std::string calls;
  std::string functions;
  for (const CommandWords& sub : command.subcommands) {
    const std::string function = name + "_" + sub.name;
    subs += fmt::format("      {}\n", quoted(sub.name + ":" + marked(sub.description, ":\\")));
    calls += fmt::format("      {}) {} ;;\n", sub.name, function);
    functions += zsh_function(sub, function);
  }
  constexpr const char* kFunction = R"({0}() {{
  local curcontext=$curcontext state line
  _arguments -C{1} \
    '1:command:->command' '*::argument:->argument'
  case $state in
  command)
    local -a commands=(
{2}    )
    _describe command commands
    ;;
  argument)
    case $line[1] in
{3}    esac
    ;;
  esac
}}
)";
  return fmt::format(kFunction, name, options, subs, calls) + functions;
}

std::string zsh_script(const CommandWords& root) {
  // Loaded from $fpath the file is the body of the function; sourced, it only defines it.
  constexpr const char* kScript = R"(#compdef {0}
# Completion of {0} for zsh.
{1}if [[ $funcstack[1] == _{0} ]]; then
  _{0} "$@"
else
  compdef _{0} {0}
fi
)";
  return fmt::format(kScript, root.name, zsh_function(root, "_" + root.name));
}

// Fish: one line for each option and command, under the condition that the words before it name its command.

std::string fish_quoted(const std::string& text) { return fmt::format("'{}'", marked(text, "'\\")); }

std::string fish_option(const OptionWords& option) {
  std::string line;
  for (const std::string& name : option.names) {
    const bool is_long = name.rfind("--", 0) == 0;
    line += is_long ? " -l " + name.substr(2) : " -s " + name.substr(1);
  }
  if (option.takes_value) line += option.choices.empty() && !option.is_number ? " -r -F" : " -x";
  if (!option.choices.empty()) line += fmt::format(" -a '{}'", joined(option.choices));
  return line + " -d " + fish_quoted(option.description);
}

std::string fish_lines(const CommandWords& command, const std::string& root, const std::string& seen) {
  const std::string and_then = seen.empty() ? "" : seen + "; and ";
  std::string here = seen.empty() ? "true" : seen;
  std::string lines;
  if (!command.subcommands.empty()) {
    here = fmt::format("{}not __fish_seen_subcommand_from {}", and_then, joined(names_of(command.subcommands)));
  }
  for (const CommandWords& sub : command.subcommands) {
    lines += fmt::format("complete -c {} -n '{}' -a {} -d {}\n", root, here, sub.name, fish_quoted(sub.description));
  }
  for (const OptionWords& option : command.options) {
    lines += fmt::format("complete -c {} -n '{}'{}\n", root, here, fish_option(option));
  }
  for (const CommandWords& sub : command.subcommands) {
    lines += fish_lines(sub, root, and_then + "__fish_seen_subcommand_from " + sub.name);
  }
  return lines;
}

std::string fish_script(const CommandWords& root) {
  return fmt::format(
      "# Completion of {0} for fish.\ncomplete -c {0} -f\n{1}", root.name, fish_lines(root, root.name, ""));
}

}  // namespace

std::string to_string(Shell shell) {
  switch (shell) {
    case Shell::bash:
      return "bash";
    case Shell::zsh:
      return "zsh";
    case Shell::fish:
      return "fish";
  }
  return "unknown";
}

std::string completion_script(Shell shell, const CommandWords& root) {
  switch (shell) {
    case Shell::bash:
      return bash_script(root);
    case Shell::zsh:
      return zsh_script(root);
    case Shell::fish:
      return fish_script(root);
  }
  return {};
}

}  // namespace moebus::cli
