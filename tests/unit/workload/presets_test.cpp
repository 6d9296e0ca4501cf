#include "workload/presets.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "moebus/error.hpp"
#include "temporary_file.hpp"

namespace moebus::workload {
namespace {

using testing::HasSubstr;

constexpr const char* kGood =
    R"({"name": "a-1", "title": "A", "hidden": 64, "experts": 8, "topk": 2, "groups": 4, "kept_groups": 2,)"
    R"( "shared_experts": 1, "dtype": "bf16", "moe_layers": 3})";

std::string file_of(const std::string& entries) { return R"({"models": [)" + entries + "]}"; }

std::string message_of(const std::string& text) {
  const TemporaryFile file(text);
  try {
    (void)load_presets(file.path());
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_THAT(error.what(), HasSubstr(file.path()));
    return error.what();
  }
  return "no error";
}

// The good entry with one piece of text replaced.
std::string entry_with(const std::string& from, const std::string& to) {
  std::string entry = kGood;
  const std::size_t at = entry.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return entry.replace(at, from.size(), to);
}

TEST(Presets, HoldPublicModels) {
  const auto presets = load_presets(find_presets_file());
  EXPECT_GE(presets.size(), 20U);
  const ModelPreset& v3 = find_preset(presets, "deepseek-v3");
  EXPECT_EQ(v3.hidden, 7168);
  EXPECT_EQ(v3.num_experts, 256);
  EXPECT_EQ(v3.num_topk, 8);
  EXPECT_EQ(v3.num_groups, 8);
  EXPECT_EQ(v3.num_kept_groups, 4);
  EXPECT_EQ(v3.num_shared_experts, 1);
  EXPECT_EQ(v3.dtype, "fp8");
  EXPECT_EQ(v3.num_moe_layers, 58);
  EXPECT_EQ(find_preset(presets, "gpt-oss-120b").hidden, 2880);
  EXPECT_EQ(find_preset(presets, "nemotron-3-super").num_topk, 22);
}

TEST(Presets, ListTheNamesWhenOneIsUnknown) {
  const auto presets = load_presets(find_presets_file());
  try {
    (void)find_preset(presets, "deepseek");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::not_found);
    EXPECT_THAT(error.what(), HasSubstr("no model 'deepseek'; known are deepseek-v2, "));
  }
}

TEST(Presets, TakeAGoodEntry) {
  const TemporaryFile file(file_of(kGood));
  const auto presets = load_presets(file.path());
  ASSERT_EQ(presets.size(), 1U);
  EXPECT_EQ(presets[0].name, "a-1");
  EXPECT_EQ(presets[0].num_moe_layers, 3);
}

TEST(Presets, NameEntryKeyAndValueOfWhatIsWrong) {
  struct Case {
    std::string entry;
    const char* message;
  };

  const Case cases[] = {
      {entry_with("\"hidden\"", "\"width\""), "model 0 (a-1) has the unknown key 'width'"},
      {entry_with("\"hidden\"", "\"" + std::string(200, 'w') + "\""), "has the unknown key 'wwwwwww"},
      {entry_with("\"hidden\": 64, ", ""), "model 0 (a-1) has no 'hidden'"},
      {entry_with("64", "\"64\""), "has hidden = \"64\", allowed: an integer from 1 to 262144"},
      {entry_with("64", "64.5"), "has hidden = 64.5"},
      {entry_with("64", "0"), "has hidden = 0"},
      {entry_with("64", "99999999999999999999"), "has hidden = "},
      {entry_with("\"experts\": 8", "\"experts\": -8"), "has experts = -8"},
      {entry_with("\"topk\": 2", "\"topk\": 9"), "has topk = 9, allowed: an integer from 1 to 8"},
      {entry_with("\"groups\": 4", "\"groups\": 3"), "has groups = 3, allowed: a divisor of experts"},
      {entry_with("\"kept_groups\": 2", "\"kept_groups\": 0"),
       "has kept_groups = 0, allowed: 0 exactly if groups is 0"},
      {entry_with("bf16", "f64"), "has dtype = \"f64\", allowed: \"bf16\" or \"fp8\""},
      {entry_with("a-1", "A 1"), "has name = \"A 1\", allowed: lower-case letters"},
      {entry_with("\"A\"", "\"\""), "has title = \"\", allowed: a text of 1 to 100 bytes"},
      {entry_with("\"A\"", "\"" + std::string(101, 'A') + "\""), "has title = "},
      {std::string(kGood) + ", " + kGood, "model 1 (a-1) has a name that an earlier model has"},
      {"7", "model 0 is not an object"},
  };
  for (const Case& c : cases) EXPECT_THAT(message_of(file_of(c.entry)), HasSubstr(c.message));
}

TEST(Presets, DoNotShowWhatIsNestedHoweverDeep) {
  // As deep as the largest file allows: printing it would need a stack as deep.
  const std::string nested = std::string(500'000, '[') + std::string(500'000, ']');
  EXPECT_THAT(message_of(file_of(entry_with("64", nested))), HasSubstr("has hidden = an array, allowed: an integer"));
  EXPECT_THAT(message_of(file_of(entry_with("\"A\"", R"({"a": {}})"))), HasSubstr("has title = an object"));
}

TEST(Presets, RefuseFilesOfAnotherForm) {
  for (const char* text : {"", "[]", "{}", "{\"models\": {}}", "{\"models\": [", "{\"models\": [], \"more\": 1}"}) {
    EXPECT_THAT(message_of(text), HasSubstr("is not a presets file")) << text;
  }
  EXPECT_THAT(message_of(file_of("")), HasSubstr("0 models, allowed are 1 to"));
  EXPECT_THAT(message_of(std::string(1100000, ' ')), HasSubstr("is larger than"));
}

TEST(Presets, SayWhichFileIsMissing) {
  try {
    (void)load_presets("/nonexistent/models.json");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::not_found);
    EXPECT_THAT(error.what(), HasSubstr("/nonexistent/models.json"));
  }
}

}  // namespace
}  // namespace moebus::workload
