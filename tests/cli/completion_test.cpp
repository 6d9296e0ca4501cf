#include "cli/completion.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>

#include "cli/option_tree.hpp"

namespace moebus::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

/// A command with one option of every kind, and one that is hidden.
class Tree : public testing::Test {
 protected:
  Tree() : app_("carries things", "cart") {
    CLI::App* const load = app_.add_subcommand("load", "Puts [things] on: it's heavy");
    load->add_option("-n,--number", number_, "How many")->check(CLI::Range(1, 9));
    load->add_option("--size", size_, "How big")->check(CLI::IsMember({"small", "large"}));
    load->add_option("--list", list_, "Where they are named");
    load->add_flag("--tie", is_tied_, "Ties them");
    load->add_option("--secret", secret_, "Not for everyone")->group("");
    app_.add_subcommand("hidden", "Not for everyone")->group("");
  }

  const OptionWords& option(const std::string& name) {
    words_ = words_of(app_);
    for (const OptionWords& one : words_.subcommands.at(0).options) {
      if (one.names.back() == name) return one;
    }
    throw std::out_of_range(name);
  }

  CLI::App app_;
  CommandWords words_;
  int number_ = 0;
  std::string size_;
  std::string list_;
  std::string secret_;
  bool is_tied_ = false;
};

TEST_F(Tree, HoldsWhatHelpShowsAndNothingElse) {
  const CommandWords words = words_of(app_);
  EXPECT_EQ(words.name, "cart");
  ASSERT_EQ(words.subcommands.size(), 1U);
  EXPECT_EQ(words.subcommands[0].name, "load");
  std::vector<std::string> names;
  for (const OptionWords& one : words.subcommands[0].options) names.push_back(one.names.back());
  EXPECT_THAT(names, ElementsAre("--help", "--number", "--size", "--list", "--tie"));
}

TEST_F(Tree, KnowsNamesAndKindsOfValues) {
  EXPECT_THAT(option("--number").names, ElementsAre("-n", "--number"));
  EXPECT_TRUE(option("--number").takes_value);
  EXPECT_TRUE(option("--number").is_number);
  EXPECT_FALSE(option("--list").is_number);
  EXPECT_TRUE(option("--list").takes_value);
  EXPECT_FALSE(option("--tie").takes_value);
}

TEST_F(Tree, KnowsTheChoicesThatTheParserTakes) {
  EXPECT_THAT(option("--size").choices, ElementsAre("small", "large"));
  EXPECT_THAT(option("--list").choices, IsEmpty());
  EXPECT_THAT(option("--number").choices, IsEmpty());
}

TEST_F(Tree, IsCompletedByEveryShellWithoutWhatIsHidden) {
  for (const Shell shell : {Shell::bash, Shell::zsh, Shell::fish}) {
    const std::string script = completion_script(shell, words_of(app_));
    EXPECT_THAT(script, HasSubstr("small large")) << to_string(shell);
    EXPECT_THAT(script, HasSubstr("number")) << to_string(shell);
    EXPECT_THAT(script, Not(HasSubstr("secret"))) << to_string(shell);
    EXPECT_THAT(script, Not(HasSubstr("hidden"))) << to_string(shell);
  }
}

TEST_F(Tree, IsDescribedWithMarksThatTheShellsReadAsText) {
  const CommandWords words = words_of(app_);
  EXPECT_THAT(completion_script(Shell::zsh, words), HasSubstr(R"('load:Puts [things] on\: it'\''s heavy')"));
  EXPECT_THAT(completion_script(Shell::fish, words), HasSubstr(R"(-d 'Puts [things] on: it\'s heavy')"));
}

TEST(ZshOption, HasItsDescriptionInBrackets) {
  CommandWords words;
  words.name = "cart";
  words.options.push_back({{"--tie"}, "Ties [all]: now", false, false, {}});
  EXPECT_THAT(completion_script(Shell::zsh, words), HasSubstr(R"('--tie[Ties \[all\]\: now]')"));
}

}  // namespace
}  // namespace moebus::cli
