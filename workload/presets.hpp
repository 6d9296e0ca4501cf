// Presets: the MoE shapes of public models, from a data file.
// Room: workload · host.

#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace moebus::workload {

/// One model's MoE layer as an exchange sees it.
struct ModelPreset {
  std::string name;   ///< id for the command line, e.g. "deepseek-v3"
  std::string title;  ///< for people
  int hidden = 0;     ///< columns that are dispatched (the routed width, where it differs from the model's)
  int num_experts = 0;
  int num_topk = 0;
  int num_groups = 0;       ///< of a group-limited gate, 0 = none
  int num_kept_groups = 0;  ///< 0 = none
  int num_shared_experts = 0;
  std::string dtype;  ///< usual element type of dispatched rows: "bf16" or "fp8"
  int num_moe_layers = 0;
};

/// Reads a presets file strictly: every key known and present, every value of its type and in range, names unique.
///
/// Errors: Error{not_found}; Error{invalid_argument} names file, entry, key, value and what is allowed.
[[nodiscard]] std::vector<ModelPreset> load_presets(const std::string& path);

/// Returns the path of models.json: ../share/moebus/ beside the running program, else where it was built.
///
/// Errors: Error{not_found} names the places that were looked at.
[[nodiscard]] std::string find_presets_file();

/// Returns the entry called `name`. Error{not_found} lists the names that exist.
[[nodiscard]] const ModelPreset& find_preset(const std::vector<ModelPreset>& presets, std::string_view name);

}  // namespace moebus::workload
