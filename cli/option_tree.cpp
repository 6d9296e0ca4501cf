#include "cli/option_tree.hpp"

#include <sstream>

namespace moebus::cli {

namespace {

/// Returns a, b and c of a type such as "TEXT:{a,b,c}": so the parser writes what it compares a value with.
std::vector<std::string> choices_of(const std::string& type) {
  const std::size_t open = type.find('{');
  const std::size_t close = type.rfind('}');
  if (open == std::string::npos || close == std::string::npos || close < open) return {};
  std::vector<std::string> choices;
  std::istringstream list(type.substr(open + 1, close - open - 1));
  for (std::string choice; std::getline(list, choice, ',');) choices.push_back(choice);
  return choices;
}

OptionWords words_of_option(const CLI::Option& option) {
  OptionWords words;
  for (const std::string& name : option.get_snames()) words.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) words.names.push_back("--" + name);
  words.description = option.get_description();
  words.takes_value = option.get_items_expected_max() > 0;
  const std::string type = option.get_type_name();
  words.is_number = type.rfind("TEXT", 0) != 0;
  words.choices = choices_of(type);
  return words;
}

}  // namespace

CommandWords words_of(const CLI::App& app) {
  CommandWords words;
  words.name = app.get_name();
  words.description = app.get_description();
  for (const CLI::Option* const option :
       app.get_options([](const CLI::Option* o) { return !o->get_group().empty(); })) {
    if (!option->get_positional() || option->nonpositional()) words.options.push_back(words_of_option(*option));
  }
  for (const CLI::App* const sub : app.get_subcommands([](const CLI::App* a) { return !a->get_group().empty(); })) {
    words.subcommands.push_back(words_of(*sub));
  }
  return words;
}

}  // namespace moebus::cli
