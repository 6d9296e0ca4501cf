#include "cli/options.hpp"

#include <algorithm>
#include <map>

#include "moebus/error.hpp"
#include "moebus/types.hpp"
#include "workload/presets.hpp"
#include "workload/routing.hpp"

namespace moebus::cli {

namespace {

constexpr int kDefaultHidden = 7168;  // DeepSeek-V3, the shape that most public figures are for
constexpr int kDefaultTopk = 8;
constexpr int kDefaultExperts = 256;

template <class Value>
Value value_of(const std::string& option, const std::string& text, const std::map<std::string, Value>& allowed) {
  const auto found = allowed.find(text);
  if (found != allowed.end()) return found->second;
  std::string names;
  for (const auto& entry : allowed) names += (names.empty() ? "" : ", ") + entry.first;
  throw UsageError(option + " " + text + ": must be one of " + names);
}

void fill_from_model(BenchOptions& options) {
  if (options.model.empty()) return;
  const std::vector<workload::ModelPreset> presets = workload::load_presets(workload::find_presets_file());
  const workload::ModelPreset* preset = nullptr;
  try {
    preset = &workload::find_preset(presets, options.model);
  } catch (const Error& error) {
    throw UsageError("--model " + options.model + ": " + error.what());
  }
  if (!options.hidden) options.hidden = preset->hidden;
  if (!options.topk) options.topk = preset->num_topk;
  if (!options.experts) options.experts = preset->num_experts;
  if (options.dtype.empty() && !options.has_cast) options.dtype = preset->dtype;
}

void check_number_types(const BenchOptions& options) {
  if (options.has_cast && options.dtype != "fp8") {
    throw UsageError("--cast with --dtype " + options.dtype +
                     ": the cast makes fp8 out of bf16 rows; use --dtype fp8, or "
                     "leave --cast out");
  }
  if (!options.scales.empty() && options.dtype != "fp8") {
    throw UsageError("--scales " + options.scales + " with --dtype " + options.dtype +
                     ": only fp8 rows have scales; use --dtype fp8, or leave --scales out");
  }
}

void check_shape(const BenchOptions& options) {
  if (*options.topk > *options.experts) {
    throw UsageError("--topk " + std::to_string(*options.topk) + ": must be at most the number of experts, --experts " +
                     std::to_string(*options.experts) + ": the generated gates choose distinct experts");
  }
  if (options.delivery != "direct" && options.path != "throughput") {
    throw UsageError("--delivery " + options.delivery +
                     ": only the throughput path delivers in two ways; add --path "
                     "throughput");
  }
  try {
    const workload::RoutingSpec spec = workload::parse_routing(options.routing);
    const workload::RoutingGenerator check(spec, {*options.experts, *options.topk, options.ranks.value_or(1)});
  } catch (const Error& error) {
    throw UsageError("--routing " + options.routing + ": " + error.what());
  }
}

}  // namespace

std::string to_string(BenchKind kind) {
  switch (kind) {
    case BenchKind::dispatch:
      return "dispatch";
    case BenchKind::combine:
      return "combine";
    case BenchKind::exchange:
      return "exchange";
    case BenchKind::layer:
      return "layer";
  }
  return "unknown";
}

void complete(BenchOptions& options) {
  fill_from_model(options);
  if (!options.hidden) options.hidden = kDefaultHidden;
  if (!options.topk) options.topk = kDefaultTopk;
  if (!options.experts) options.experts = kDefaultExperts;
  if (options.dtype.empty()) options.dtype = options.has_cast ? "fp8" : "bf16";
  check_number_types(options);
  if (options.scales.empty()) options.scales = "f32";
  check_shape(options);
  if (!options.plot.empty() && !options.plot.ends_with(".svg") && !options.plot.ends_with(".png")) {
    throw UsageError("--plot " + options.plot + ": the file's name must end in .svg or .png");
  }
}

ExchangeConfig exchange_config(const BenchOptions& options) {
  ExchangeConfig config;
  config.num_experts = *options.experts;
  config.num_topk = *options.topk;
  config.hidden = *options.hidden;
  config.max_tokens_per_rank = std::max(1, options.tokens);
  const bool is_fp8 = options.dtype == "fp8";
  config.dtype =
      value_of<DType>("--dtype",
                      options.dtype,
                      {{"bf16", DType::bf16}, {"f16", DType::f16}, {"f32", DType::f32}, {"fp8", DType::e4m3}});
  config.combine_dtype = is_fp8 ? DType::bf16 : config.dtype;
  if (is_fp8) {
    config.scale_format =
        value_of<ScaleFormat>("--scales", options.scales, {{"f32", ScaleFormat::f32}, {"ue8m0", ScaleFormat::ue8m0}});
  }
  if (options.has_cast) {
    config.dtype = DType::bf16;
    config.cast = Cast::fp8;
  }
  config.layout = value_of<Layout>("--layout",
                                   options.layout,
                                   {{"rank_major", Layout::rank_major},
                                    {"expert_major", Layout::expert_major},
                                    {"expert_padded", Layout::expert_padded}});
  config.path = value_of<Path>("--path", options.path, {{"latency", Path::latency}, {"throughput", Path::throughput}});
  config.delivery =
      value_of<Delivery>("--delivery", options.delivery, {{"direct", Delivery::direct}, {"staged", Delivery::staged}});
  return config;
}

const std::vector<std::string>& mutant_names() {
  static const std::vector<std::string> kNames{"swapped-rows", "dropped-row", "order", "stale-epoch", "skipped-fence"};
  return kNames;
}

}  // namespace moebus::cli
