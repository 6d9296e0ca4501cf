#include "cli/check_case.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "workload/random.hpp"

namespace moebus::cli {

namespace {

using workload::Random;

template <class T, std::size_t kSize>
T pick(Random& random, const std::array<T, kSize>& from) {
  return from[random.below(kSize)];
}

bool happens(Random& random, unsigned percent) { return random.below(100) < percent; }

void choose_types(Random& random, ExchangeConfig& config) {
  constexpr std::array kAll{DType::u8,
                            DType::i8,
                            DType::e4m3,
                            DType::e5m2,
                            DType::bf16,
                            DType::bf16,
                            DType::f16,
                            DType::i16,
                            DType::i32,
                            DType::f32,
                            DType::i64,
                            DType::f64};
  constexpr std::array kSummable{DType::bf16, DType::bf16, DType::f16, DType::f32};
  config.dtype = pick(random, kAll);
  config.combine_dtype = pick(random, kSummable);
  if (happens(random, 30)) config.combine_hidden = pick(random, std::array{1, 3, 32, 100, 513});
  if (happens(random, 25)) {
    config.dtype = DType::bf16;
    config.cast = Cast::fp8;
  }
  if (config.cast == Cast::fp8 || happens(random, 25)) {
    config.scale_format = happens(random, 50) ? ScaleFormat::f32 : ScaleFormat::ue8m0;
    config.scale_order = happens(random, 50) ? ScaleOrder::row_major : ScaleOrder::column_major;
  }
  if (happens(random, 25)) config.side_bytes[0] = pick(random, std::array{1, 4, 13, 16, 100});
  if (config.side_bytes[0] > 0 && happens(random, 50)) config.side_bytes[1] = pick(random, std::array{2, 8, 33});
}

void choose_layout(Random& random, ExchangeConfig& config, int num_ranks) {
  config.layout = pick(random, std::array{Layout::rank_major, Layout::expert_major, Layout::expert_padded});
  if (config.layout == Layout::expert_major) config.expert_alignment = pick(random, std::array{1, 1, 2, 8, 16});
  if (config.layout != Layout::rank_major && happens(random, 40)) config.combine_rows = CombineRows::per_expert;
  if (happens(random, 30)) {
    const auto most = static_cast<std::uint64_t>(config.max_tokens_per_rank) * static_cast<std::uint64_t>(num_ranks);
    config.capacity_rows = static_cast<std::int64_t>(1 + random.below(most));
  }
  config.zero_padding = happens(random, 30);
  config.combine_lane = happens(random, 30);
  config.path = happens(random, 50) ? Path::latency : Path::throughput;
  if (config.path == Path::throughput && happens(random, 50)) {
    config.delivery = Delivery::staged;
    config.stage_bytes = pick(random, std::array{std::size_t{1} << 18, std::size_t{1} << 20, std::size_t{64} << 20});
  }
}

// Generated gates choose distinct experts; with more choices than experts there are none.
workload::RoutingSpec choose_routing(Random& random, const ExchangeConfig& config) {
  workload::RoutingSpec spec;
  spec.kind = pick(random,
                   std::array{workload::RoutingKind::uniform,
                              workload::RoutingKind::uniform,
                              workload::RoutingKind::zipf,
                              workload::RoutingKind::single,
                              workload::RoutingKind::hot});
  if (spec.kind == workload::RoutingKind::zipf) spec.zipf_exponent = pick(random, std::array{0.5, 1.0, 2.0});
  if (spec.kind == workload::RoutingKind::hot) spec.hot_factor = 8;
  if (happens(random, 40)) spec.masked_fraction = pick(random, std::array{0.1, 0.5, 1.0});
  if (config.num_topk > config.num_experts) spec.kind = workload::RoutingKind::uniform;
  return spec;
}

void choose_call(Random& random, CheckCase& one) {
  const ExchangeConfig& config = one.config;
  one.has_repeats = config.num_topk > config.num_experts || happens(random, 30);
  one.has_weights = happens(random, 75);
  one.has_short_ids = happens(random, 40);
  one.has_row_gaps = happens(random, 20);
  const bool is_direct = config.path == Path::throughput && config.delivery == Delivery::direct;
  // Results in column-major scales are laid out by the library; a caller's own tensors are given row-major.
  one.has_output = !is_direct && config.scale_order == ScaleOrder::row_major && happens(random, 25);
  one.config.caller_results = one.has_output;
  if (config.layout != Layout::rank_major) {
    one.weighting = pick(random, std::array{Weighting::none, Weighting::dispatched, Weighting::given});
    if (one.weighting == Weighting::dispatched) one.has_weights = true;
  }
  one.num_bias = static_cast<int>(random.below(3));
}

}  // namespace

CheckCase make_case(std::uint64_t seed, int index, const std::vector<int>& ranks) {
  CheckCase one;
  one.seed = workload::seed_from(seed, static_cast<std::uint64_t>(index));
  Random random(one.seed);
  one.num_ranks = ranks[random.below(ranks.size())];
  one.as_processes = happens(random, 12);
  one.num_calls = 1 + static_cast<int>(random.below(3));
  ExchangeConfig& config = one.config;
  config.num_experts = 1 + static_cast<int>(random.below(happens(random, 20) ? 100 : 24));
  config.num_topk = happens(random, 5) ? kMaxTopk : 1 + static_cast<int>(random.below(9));
  config.hidden = pick(random, std::array{1, 2, 7, 16, 63, 64, 127, 128, 129, 256, 520, 1024});
  config.max_tokens_per_rank = pick(random, std::array{1, 2, 3, 8, 17, 40});
  choose_types(random, config);
  choose_layout(random, config, one.num_ranks);
  one.routing = choose_routing(random, config);
  choose_call(random, one);
  return one;
}

std::string describe(const CheckCase& one) {
  const ExchangeConfig& config = one.config;
  return fmt::format(
      "{} ranks as {}, {} experts, top-{}, hidden {}, <= {} tokens, {}{}, scales {} {}, {} path ({}), {}, alignment "
      "{}, capacity {}, "
      "combine {} {} {}, weighting {}, {} bias, lane {}, routing {}{}",
      one.num_ranks,
      one.as_processes ? "processes" : "threads",
      config.num_experts,
      config.num_topk,
      config.hidden,
      config.max_tokens_per_rank,
      to_string(config.dtype),
      config.cast == Cast::fp8 ? " cast to fp8" : "",
      to_string(config.scale_format),
      to_string(config.scale_order),
      to_string(config.path),
      to_string(config.delivery),
      to_string(config.layout),
      config.expert_alignment,
      config.capacity_rows,
      to_string(config.combine_dtype),
      config.combine_hidden,
      to_string(config.combine_rows),
      to_string(one.weighting),
      one.num_bias,
      config.combine_lane,
      one.routing.text(),
      one.has_repeats ? " with repeats" : "");
}

}  // namespace moebus::cli
