#include "workload/routing.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>

#include "moebus/error.hpp"
#include "temporary_file.hpp"

namespace moebus::workload {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

RoutingTable make(
    const std::string& text, const RoutingShape& shape, std::int64_t num_tokens, int rank = 0, std::uint64_t seed = 1) {
  return RoutingGenerator(parse_routing(text), shape).make(rank, num_tokens, seed);
}

std::vector<std::int64_t> load_of(const RoutingTable& table, int num_experts) {
  std::vector<std::int64_t> load(static_cast<std::size_t>(num_experts), 0);
  for (const std::int64_t expert : table.topk_idx) {
    if (expert >= 0) ++load.at(static_cast<std::size_t>(expert));
  }
  return load;
}

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(ParseRouting, ReadsWhatItWrites) {
  for (const char* text : {"uniform",
                           "zipf:0.8",
                           "zipf:0",
                           "single",
                           "grouped:8/4",
                           "hot:2.5",
                           "file:a,masked:0.1",
                           "uniform,masked:0.25",
                           "grouped:4/2,masked:1"}) {
    EXPECT_EQ(parse_routing(text).text(), text);
  }
  const RoutingSpec spec = parse_routing("grouped:8/4,masked:0.5");
  EXPECT_EQ(spec.kind, RoutingKind::grouped);
  EXPECT_EQ(spec.num_groups, 8);
  EXPECT_EQ(spec.num_kept_groups, 4);
  EXPECT_EQ(spec.masked_fraction, 0.5);
}

TEST(ParseRouting, RefusesWhatItDoesNotKnowAndListsWhatIsAllowed) {
  for (const char* text :
       {"",         "zip",      "uniform:1",        "zipf",           "zipf:",       "zipf:x",    "zipf:-1", "zipf:11",
        "zipf:nan", "zipf:1 ",  "grouped:8",        "grouped:8/9",    "grouped:0/0", "grouped:/", "hot:",    "hot:1001",
        "file:",    "uniform,", "uniform,masked:2", "uniform,zipf:1", "single:3"}) {
    EXPECT_THAT(message_of([&] { (void)parse_routing(text); }), HasSubstr("allowed are uniform, zipf:S")) << text;
  }
}

TEST(Routing, ChoosesDistinctExpertsInRange) {
  const RoutingShape shape{32, 8, 4};
  for (const char* text : {"uniform", "zipf:1.2", "single", "grouped:8/4", "hot:4"}) {
    const RoutingTable table = make(text, shape, 200);
    ASSERT_EQ(table.topk_idx.size(), 1600U);
    for (std::size_t n = 0; n < 200; ++n) {
      const std::set<std::int64_t> token(table.topk_idx.begin() + static_cast<std::ptrdiff_t>(8 * n),
                                         table.topk_idx.begin() + static_cast<std::ptrdiff_t>(8 * n + 8));
      ASSERT_EQ(token.size(), 8U) << text;
      ASSERT_GE(*token.begin(), 0) << text;
      ASSERT_LT(*token.rbegin(), 32) << text;
    }
  }
}

TEST(Routing, RepeatsForASeedAndDiffersForOthers) {
  const RoutingShape shape{32, 4, 4};
  for (const char* text : {"uniform", "zipf:1", "grouped:8/2", "hot:2", "uniform,masked:0.5"}) {
    const std::uint64_t hash = make(text, shape, 50, 1, 9).hash();
    EXPECT_EQ(make(text, shape, 50, 1, 9).hash(), hash) << text;
    EXPECT_NE(make(text, shape, 50, 2, 9).hash(), hash) << text;
    EXPECT_NE(make(text, shape, 50, 1, 10).hash(), hash) << text;
    EXPECT_NE(make(text, shape, 49, 1, 9).hash(), hash) << text;
  }
}

// Pinned, so that a change of the generators is noticed: the numbers of published results would no longer be the same
// inputs.
TEST(Routing, GivesTheSameTableWithEveryCompiler) {
  const RoutingTable table = make("uniform", {8, 2, 2}, 3, 0, 42);
  EXPECT_THAT(table.topk_idx, ElementsAre(3, 4, 5, 3, 3, 4));
  EXPECT_EQ(make("zipf:0.8", {256, 8, 8}, 128, 3, 42).hash(), 17479426456066120330U);
  EXPECT_EQ(make("grouped:8/4", {256, 8, 8}, 128, 3, 42).hash(), 6573037799360786763U);
}

TEST(Routing, SpreadsUniformlyAndSkewsByZipf) {
  const RoutingShape shape{16, 2, 2};
  const auto even = load_of(make("uniform", shape, 4000), 16);
  EXPECT_LT(*std::max_element(even.begin(), even.end()), 600);  // mean 500
  EXPECT_GT(*std::min_element(even.begin(), even.end()), 400);
  const auto skewed = load_of(make("zipf:1.2", shape, 4000), 16);
  EXPECT_GT(*std::max_element(skewed.begin(), skewed.end()), 1500);
}

TEST(Routing, MakesTheSameExpertsPopularOnAllRanks) {
  const RoutingShape shape{64, 1, 4};
  std::set<std::ptrdiff_t> winners;
  for (int rank = 0; rank < 4; ++rank) {
    const auto load = load_of(make("zipf:2", shape, 500, rank), 64);
    winners.insert(std::max_element(load.begin(), load.end()) - load.begin());
  }
  EXPECT_EQ(winners.size(), 1U);
}

TEST(Routing, KeepsToTheChosenGroups) {
  const RoutingTable table = make("grouped:8/2", {64, 8, 1}, 300);
  for (std::size_t n = 0; n < 300; ++n) {
    std::set<std::int64_t> groups;
    for (std::size_t k = 0; k < 8; ++k) groups.insert(table.topk_idx[8 * n + k] / 8);
    ASSERT_LE(groups.size(), 2U);
  }
}

TEST(Routing, MakesTheExpertsOfRankZeroHot) {
  const auto load =
      load_of(make("hot:4", {10, 1, 4}, 10000), 10);  // rank 0 owns experts 0..2; shares 4 x 3 and 1 x 7 of 19
  EXPECT_NEAR(static_cast<double>(load[0] + load[1] + load[2]), 10000.0 * 12 / 19, 300);
  const auto none = load_of(make("hot:0", {10, 2, 4}, 100), 10);
  EXPECT_EQ(none[0] + none[1] + none[2], 0);
}

TEST(Routing, SendsAllTokensToTheFirstExpertsWhenSingle) {
  EXPECT_THAT(make("single", {8, 2, 4}, 2).topk_idx, ElementsAre(0, 1, 0, 1));
}

TEST(Routing, MasksTheGivenPartAndLeavesOthersAsTheyWere) {
  const RoutingShape shape{16, 4, 2};
  const RoutingTable whole = make("uniform", shape, 1000);
  const RoutingTable masked = make("uniform,masked:0.25", shape, 1000);
  std::int64_t num_masked = 0;
  for (std::size_t i = 0; i < whole.topk_idx.size(); ++i) {
    num_masked += masked.topk_idx[i] == -1;
    ASSERT_TRUE(masked.topk_idx[i] == -1 || masked.topk_idx[i] == whole.topk_idx[i]);
    ASSERT_EQ(masked.topk_idx[i] == -1, masked.topk_weights[i] == 0.0F);
  }
  EXPECT_NEAR(static_cast<double>(num_masked), 1000.0, 150.0);
  const auto all = load_of(make("uniform,masked:1", shape, 10), 16);
  EXPECT_EQ(*std::max_element(all.begin(), all.end()), 0);
}

TEST(Routing, GivesPositiveWeightsThatAddUpToOne) {
  const RoutingTable table = make("uniform", {16, 4, 2}, 100);
  for (std::size_t n = 0; n < 100; ++n) {
    float sum = 0;
    for (std::size_t k = 0; k < 4; ++k) {
      ASSERT_GT(table.topk_weights[4 * n + k], 0.0F);
      sum += table.topk_weights[4 * n + k];
    }
    ASSERT_NEAR(sum, 1.0F, 1e-6F);
  }
}

TEST(Routing, PoisonsOnlyMaskedWeights) {
  RoutingTable table = make("uniform,masked:0.5", {16, 4, 2}, 50);
  poison_masked_weights(table);
  for (std::size_t i = 0; i < table.topk_idx.size(); ++i) {
    ASSERT_EQ(std::isnan(table.topk_weights[i]), table.topk_idx[i] < 0);
  }
}

TEST(Routing, TakesTopkOfAllExpertsAndNoTokens) {
  EXPECT_EQ(make("zipf:10", {64, 64, 1}, 3).topk_idx.size(), 192U);
  EXPECT_TRUE(make("uniform", {8, 2, 2}, 0).topk_idx.empty());
}

TEST(Routing, RefusesShapesThatDoNotFit) {
  const auto error = [](const char* text, const RoutingShape& shape) {
    return message_of([&] { RoutingGenerator(parse_routing(text), shape); });
  };
  EXPECT_THAT(error("uniform", {8, 9, 2}), HasSubstr("top-k 9 needs as many different experts, there are 8"));
  EXPECT_THAT(error("grouped:3/1", {8, 2, 2}), HasSubstr("8 experts do not divide into 3 groups"));
  EXPECT_THAT(error("grouped:8/2", {8, 4, 2}), HasSubstr("the kept groups hold 2 experts"));
  EXPECT_THAT(error("hot:0", {4, 3, 2}), HasSubstr("leaves 2 experts"));
  EXPECT_THAT(error("uniform", {0, 1, 1}), HasSubstr("at least 1"));
}

TEST(RoutingFile, IsUsedInTurnOverRanksAndTokens) {
  const TemporaryFile file("[0, 1]\n[2, -1]\n[3, 3]\n");
  const std::string text = "file:" + file.path();
  EXPECT_THAT(make(text, {4, 2, 2}, 3, 0).topk_idx, ElementsAre(0, 1, 3, 3, 2, -1));
  EXPECT_THAT(make(text, {4, 2, 2}, 2, 1).topk_idx, ElementsAre(2, -1, 0, 1));
}

TEST(RoutingFile, NamesTheWrongLine) {
  struct Case {
    const char* text;
    const char* message;
  };

  const Case cases[] = {
      {"[0, 1]\n[0, 4]\n", "line 2 has the id 4, allowed are -1 (no expert) to 3"},
      {"[0, -2]\n", "line 1 has the id -2"},
      {"[0, 1099511627776]\n", "line 1 has the id 1099511627776"},
      {"[0, 18446744073709551615]\n", "line 1 has the id 18446744073709551615"},
      {"[0, 1.0]\n", "line 1 has the id 1.0"},
      {"[0, \"1\"]\n", "line 1 has the id \"1\""},
      {"[0, 1]\n[0, 1, 2]\n", "line 2 has 3 ids, top-k is 2"},
      {"[0, 1]\n\n", "line 2 is not a JSON array"},
      {"{\"ids\": [0, 1]}\n", "line 1 is not a JSON array"},
      {"[0, 1\n", "line 1 is not a JSON array"},
      {"", "has no lines"},
  };
  for (const Case& c : cases) {
    const TemporaryFile file(c.text);
    EXPECT_THAT(message_of([&] { (void)read_routing_file(file.path(), {4, 2, 2}); }), HasSubstr(c.message)) << c.text;
  }
}

TEST(RoutingFile, TakesALastLineWithoutANewlineAndOneOfTheGreatestLength) {
  const std::string longest = "[0, 1" + std::string((std::size_t{16} << 10U) - 6, ' ') + "]";
  const TemporaryFile file(longest + "\n[2, 3]");
  EXPECT_THAT(read_routing_file(file.path(), {4, 2, 2}), ElementsAre(0, 1, 2, 3));
  const TemporaryFile longer(longest + " \n");
  EXPECT_THAT(message_of([&] { (void)read_routing_file(longer.path(), {4, 2, 2}); }),
              HasSubstr("line 1 is longer than 16384 bytes"));
}

TEST(RoutingFile, ReadsNoMoreOfAnEndlessLineThanShowsIt) {
  EXPECT_THAT(message_of([&] { (void)read_routing_file("/dev/zero", {4, 2, 2}); }),
              HasSubstr("line 1 is longer than 16384 bytes"));
}

TEST(RoutingFile, DoesNotShowWhatIsNested) {
  const TemporaryFile file("[0, " + std::string(8000, '[') + std::string(8000, ']') + "]\n");
  EXPECT_THAT(message_of([&] { (void)read_routing_file(file.path(), {4, 2, 2}); }),
              HasSubstr("line 1 has the id that is an array"));
}

TEST(RoutingFile, RefusesLongLinesAndMissingFiles) {
  const TemporaryFile file("[0, 1" + std::string(20000, ' ') + "]\n");
  EXPECT_THAT(message_of([&] { (void)read_routing_file(file.path(), {4, 2, 2}); }), HasSubstr("line 1 is longer than"));
  EXPECT_THAT(message_of([&] { (void)read_routing_file(file.path() + ".missing", {4, 2, 2}); }),
              HasSubstr("cannot be opened"));
}

}  // namespace
}  // namespace moebus::workload
