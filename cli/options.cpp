#include "cli/options.hpp"

#include <fmt/format.h>

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

void check_topology(const BenchOptions& options) {
  if (options.ranks) Nodes::parse(options.topology.nodes).check(*options.ranks);
  if (options.compares_map && (options.topology.map.empty() || options.topology.map == "reachable")) {
    throw UsageError(
        "--compare-map with --map reachable: both groups would be the same; add --map none, or --map node with "
        "--nodes");
  }
  if (options.has_overlap && options.kind != BenchKind::layer) {
    throw UsageError("--overlap with bench " + to_string(options.kind) +
                     ": only a layer has experts to compute meanwhile; use bench layer");
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
  check_topology(options);
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
  if (!options.topology.inter_node.empty()) config.inter_node = inter_node_of(options.topology.inter_node);
  return config;
}

void complete(CheckOptions& options) {
  const Nodes nodes = Nodes::parse(options.topology.nodes);
  if (options.ranks.empty()) {
    if (nodes.num_ranks()) options.ranks = {*nodes.num_ranks()};
    for (const int ranks : default_ranks()) {
      if (!nodes.num_ranks() && nodes.fits(ranks)) options.ranks.push_back(ranks);
    }
  }
  if (options.ranks.empty()) {
    throw UsageError(fmt::format(
        "--nodes {}: more than the {} ranks of any case; add --ranks", options.topology.nodes, default_ranks().back()));
  }
  for (const int ranks : options.ranks) nodes.check(ranks);
}

const std::vector<int>& default_ranks() {
  static const std::vector<int> kRanks{1, 2, 3, 4, 7, 8};
  return kRanks;
}

MapPeers map_peers_of(const std::string& text) {
  return value_of<MapPeers>(
      "--map", text, {{"reachable", MapPeers::reachable}, {"node", MapPeers::node}, {"none", MapPeers::none}});
}

InterNode inter_node_of(const std::string& text) {
  return value_of<InterNode>("--inter-node", text, {{"gateway", InterNode::gateway}, {"direct", InterNode::direct}});
}

const std::vector<std::string>& mutant_names() {
  static const std::vector<std::string> kNames{"swapped-rows", "dropped-row", "order", "stale-epoch", "skipped-fence"};
  return kNames;
}

}  // namespace moebus::cli
