#include "workload/presets.hpp"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <nlohmann/json.hpp>

#include "moebus/error.hpp"

namespace moebus::workload {

namespace {

using nlohmann::json;

constexpr std::size_t kMaxFileBytes = std::size_t{1} << 20U;
constexpr std::size_t kMaxModels = 1000;
constexpr std::size_t kMaxTextLength = 100;

constexpr std::array kKeys = {
    "name", "title", "hidden", "experts", "topk", "groups", "kept_groups", "shared_experts", "dtype", "moe_layers"};

// Reads one entry; every complaint names file, entry, key and value.
class EntryReader {
 public:
  EntryReader(const std::string& path, std::size_t number, const json& entry)
      : path_(path), number_(number), entry_(entry) {
    if (!entry.is_object()) reject("is not an object");
    for (const auto& [key, value] : entry.items()) {
      if (std::find(kKeys.begin(), kKeys.end(), key) == kKeys.end())
        reject("has the unknown key '" + key.substr(0, kMaxTextLength) + "'");
    }
  }

  ModelPreset read() const {
    ModelPreset preset;
    preset.name = text("name");
    preset.title = text("title");
    preset.hidden = integer("hidden", 1, 1 << 18);
    preset.num_experts = integer("experts", 1, 1 << 16);
    preset.num_topk = integer("topk", 1, std::min(64, preset.num_experts));
    preset.num_groups = integer("groups", 0, preset.num_experts);
    preset.num_kept_groups = integer("kept_groups", 0, preset.num_groups);
    preset.num_shared_experts = integer("shared_experts", 0, 64);
    preset.num_moe_layers = integer("moe_layers", 1, 1000);
    preset.dtype = text("dtype");
    if (preset.dtype != "bf16" && preset.dtype != "fp8") reject_value("dtype", "\"bf16\" or \"fp8\"");
    const bool is_id = std::all_of(preset.name.begin(), preset.name.end(), [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.';
    });
    if (!is_id) reject_value("name", "lower-case letters, digits, '-' and '.'");
    check_groups(preset);
    return preset;
  }

  [[noreturn]] void reject(const std::string& what) const {
    std::string name;
    if (entry_.is_object() && entry_.contains("name") && entry_["name"].is_string()) {
      name = " (" + entry_["name"].get<std::string>().substr(0, kMaxTextLength) + ")";
    }
    throw Error(ErrorCode::invalid_argument, path_ + ": model " + std::to_string(number_) + name + " " + what);
  }

 private:
  [[noreturn]] void reject_value(const char* key, const std::string& allowed) const {
    const json& found = entry_[key];
    // Only scalars are shown: printing what is nested goes as deep as it does.
    const std::string shown = found.is_structured() ? std::string("an ") + found.type_name() : found.dump();
    reject(std::string("has ") + key + " = " + shown.substr(0, kMaxTextLength) + ", allowed: " + allowed);
  }

  const json& value(const char* key) const {
    if (!entry_.contains(key)) reject(std::string("has no '") + key + "'");
    return entry_[key];
  }

  std::string text(const char* key) const {
    const json& found = value(key);
    if (!found.is_string() || found.get_ref<const std::string&>().empty() ||
        found.get_ref<const std::string&>().size() > kMaxTextLength) {
      reject_value(key, "a text of 1 to " + std::to_string(kMaxTextLength) + " bytes");
    }
    return found.get<std::string>();
  }

  int integer(const char* key, int least, int most) const {
    const json& found = value(key);
    const bool fits = found.is_number_unsigned() && found.get<std::uint64_t>() <= static_cast<std::uint64_t>(most) &&
                      found.get<std::uint64_t>() >= static_cast<std::uint64_t>(least);
    if (!fits) reject_value(key, "an integer from " + std::to_string(least) + " to " + std::to_string(most));
    return found.get<int>();
  }

  void check_groups(const ModelPreset& preset) const {
    const int groups = preset.num_groups;
    if ((groups == 0) != (preset.num_kept_groups == 0)) reject_value("kept_groups", "0 exactly if groups is 0");
    if (groups > 0 &&
        (preset.num_experts % groups != 0 || preset.num_experts / groups * preset.num_kept_groups < preset.num_topk)) {
      reject_value("groups", "a divisor of experts, and kept groups with at least topk experts");
    }
  }

  const std::string& path_;
  std::size_t number_;
  const json& entry_;
};

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Error(ErrorCode::not_found, path + " cannot be opened; is the path right?");
  std::string text(kMaxFileBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (text.size() > kMaxFileBytes) {
    throw Error(ErrorCode::invalid_argument,
                path + " is larger than " + std::to_string(kMaxFileBytes) + " bytes, the most a presets file may have");
  }
  return text;
}

}  // namespace

std::vector<ModelPreset> load_presets(const std::string& path) {
  const json document = json::parse(read_file(path), nullptr, false);
  if (!document.is_object() || document.size() != 1 || !document.contains("models") || !document["models"].is_array()) {
    throw Error(ErrorCode::invalid_argument, path + " is not a presets file: it must be JSON, {\"models\": [...]}");
  }
  const json& models = document["models"];
  if (models.empty() || models.size() > kMaxModels) {
    throw Error(
        ErrorCode::invalid_argument,
        path + ": " + std::to_string(models.size()) + " models, allowed are 1 to " + std::to_string(kMaxModels));
  }
  std::vector<ModelPreset> presets;
  for (const json& entry : models) {
    const EntryReader reader(path, presets.size(), entry);
    ModelPreset preset = reader.read();
    const bool is_known =
        std::any_of(presets.begin(), presets.end(), [&](const auto& p) { return p.name == preset.name; });
    if (is_known) reader.reject("has a name that an earlier model has");
    presets.push_back(std::move(preset));
  }
  return presets;
}

std::string find_presets_file() {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  const std::array candidates = {program.parent_path() / ".." / "share" / "moebus" / "models.json",
                                 fs::path(MOEBUS_MODELS_FILE)};
  std::string places;
  for (const fs::path& candidate : candidates) {
    if (fs::is_regular_file(candidate, error)) return candidate.lexically_normal().string();
    places += (places.empty() ? "" : ", ") + candidate.lexically_normal().string();
  }
  throw Error(ErrorCode::not_found, "models.json is in none of the places where it is looked for: " + places);
}

const ModelPreset& find_preset(const std::vector<ModelPreset>& presets, std::string_view name) {
  const auto found = std::find_if(presets.begin(), presets.end(), [&](const auto& p) { return p.name == name; });
  if (found != presets.end()) return *found;
  std::string names;
  for (const ModelPreset& preset : presets) names += (names.empty() ? "" : ", ") + preset.name;
  throw Error(ErrorCode::not_found, "there is no model '" + std::string(name) + "'; known are " + names);
}

}  // namespace moebus::workload
