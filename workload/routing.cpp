#include "workload/routing.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>

#include "moebus/error.hpp"
#include "workload/random.hpp"

namespace moebus::workload {

namespace {

constexpr double kPopularityUnit = 4294967296.0;  // weights are integers, so that the last bit of pow() does not matter
constexpr double kMaxZipfExponent = 10;
constexpr double kMaxHotFactor = 1000;
constexpr std::uint64_t kColdWeight = 1000;

// Streams of random numbers, so that one use does not shift another.
enum class Stream : std::uint64_t { popularity, choices, weights, masks };

Random random_for(Stream stream, std::uint64_t seed, int rank = 0) {
  return Random(seed_from(seed, static_cast<std::uint64_t>(stream), static_cast<std::uint64_t>(rank)));
}

std::size_t idx(std::int64_t i) noexcept { return static_cast<std::size_t>(i); }

[[noreturn]] void reject(std::string_view text, const std::string& why) {
  throw Error(ErrorCode::invalid_argument,
              "routing '" + std::string(text) + "': " + why +
                  "; allowed are uniform, zipf:S (0 <= S <= 10), single, grouped:G/K (keep K of G groups), hot:F (0 <= "
                  "F <= 1000) "
                  "and file:PATH, each but file also with ,masked:P (0 <= P <= 1), e.g. zipf:0.8,masked:0.1");
}

template <class Number>
std::optional<Number> parse_number(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

double parse_real(std::string_view whole, std::string_view name, std::string_view text, double limit) {
  const auto value = parse_number<double>(text);
  if (!value || !(*value >= 0 && *value <= limit)) {  // NaN is out too
    reject(whole, std::string(name) + " needs a number from 0 to " + std::to_string(static_cast<int>(limit)));
  }
  return *value;
}

void parse_groups(std::string_view whole, std::string_view text, RoutingSpec& spec) {
  const std::size_t slash = text.find('/');
  const auto groups = parse_number<int>(text.substr(0, slash));
  const auto kept = slash == std::string_view::npos ? std::nullopt : parse_number<int>(text.substr(slash + 1));
  if (!groups || !kept || *kept < 1 || *kept > *groups) reject(whole, "grouped needs G/K with 1 <= K <= G");
  spec.num_groups = *groups;
  spec.num_kept_groups = *kept;
}

RoutingSpec parse_kind(std::string_view whole, std::string_view part) {
  const std::size_t colon = part.find(':');
  const std::string_view name = part.substr(0, colon);
  const bool has_value = colon != std::string_view::npos;
  const std::string_view value = has_value ? part.substr(colon + 1) : std::string_view{};
  RoutingSpec spec;
  if (name == "uniform" || name == "single") {
    if (has_value) reject(whole, std::string(name) + " takes no value");
    spec.kind = name == "single" ? RoutingKind::single : RoutingKind::uniform;
  } else if (name == "zipf") {
    spec.kind = RoutingKind::zipf;
    spec.zipf_exponent = parse_real(whole, name, value, kMaxZipfExponent);
  } else if (name == "hot") {
    spec.kind = RoutingKind::hot;
    spec.hot_factor = parse_real(whole, name, value, kMaxHotFactor);
  } else if (name == "grouped") {
    spec.kind = RoutingKind::grouped;
    parse_groups(whole, value, spec);
  } else {
    reject(whole, "there is no kind '" + std::string(name) + "'");
  }
  return spec;
}

std::string real_text(double value) {
  std::array<char, 40> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
  return {text.data(), end};
}

// Draws `num_choices` distinct indices, each time in proportion to the weights that are left.
void draw_distinct(std::vector<std::uint64_t> weights, Random& random, std::int64_t* choices, int num_choices) {
  std::uint64_t total = std::accumulate(weights.begin(), weights.end(), std::uint64_t{0});
  for (int k = 0; k < num_choices; ++k) {
    std::uint64_t left = random.below(total);
    std::size_t expert = 0;
    while (left >= weights[expert]) left -= weights[expert++];
    total -= weights[expert];
    weights[expert] = 0;
    choices[k] = static_cast<std::int64_t>(expert);
  }
}

// Orders by falling score; among equals the lower index first.
std::vector<int> best_first(const std::vector<std::uint64_t>& scores) {
  std::vector<int> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int a, int b) {
    return scores[idx(a)] != scores[idx(b)] ? scores[idx(a)] > scores[idx(b)] : a < b;
  });
  return order;
}

// A group's score is the sum of its two best experts'; experts of groups that are not kept cannot be chosen.
void draw_grouped(const RoutingSpec& spec, const RoutingShape& shape, Random& random, std::int64_t* choices) {
  constexpr int kScoreShift = 16;  // 48 bits: two of them add without overflow
  std::vector<std::uint64_t> scores(idx(shape.num_experts));
  for (std::uint64_t& score : scores) score = 1 + (random.next() >> kScoreShift);
  const std::int64_t group_size = shape.num_experts / spec.num_groups;
  std::vector<std::uint64_t> group_scores;
  for (std::int64_t g = 0; g < spec.num_groups; ++g) {
    std::vector<std::uint64_t> group(scores.begin() + g * group_size, scores.begin() + (g + 1) * group_size);
    std::sort(group.rbegin(), group.rend());
    group_scores.push_back(group[0] + (group.size() > 1 ? group[1] : 0));
  }
  const std::vector<int> groups = best_first(group_scores);
  for (std::size_t i = idx(spec.num_kept_groups); i < groups.size(); ++i) {
    std::fill_n(scores.begin() + groups[i] * group_size, group_size, std::uint64_t{0});
  }
  const std::vector<int> experts = best_first(scores);
  std::copy_n(experts.begin(), shape.num_topk, choices);
}

void check_shape(const RoutingSpec& spec, const RoutingShape& shape) {
  const auto fail = [&](const std::string& why) {
    throw Error(ErrorCode::invalid_argument, "routing '" + spec.text() + "' does not fit: " + why);
  };
  if (shape.num_experts < 1 || shape.num_topk < 1 || shape.num_ranks < 1)
    fail("experts, top-k and ranks must be at least 1");
  const std::string topk = "top-k " + std::to_string(shape.num_topk);
  if (spec.kind != RoutingKind::file && shape.num_topk > shape.num_experts) {
    fail(topk + " needs as many different experts, there are " + std::to_string(shape.num_experts) +
         "; take a smaller top-k or more experts");
  }
  if (spec.kind != RoutingKind::grouped) return;
  if (spec.num_groups < 1 || spec.num_kept_groups < 1 || spec.num_kept_groups > spec.num_groups) {
    fail("kept groups must be 1 to groups");
  }
  if (shape.num_experts % spec.num_groups != 0) {
    fail(std::to_string(shape.num_experts) + " experts do not divide into " + std::to_string(spec.num_groups) +
         " groups");
  }
  const int reachable = shape.num_experts / spec.num_groups * spec.num_kept_groups;
  if (reachable < shape.num_topk) fail(topk + ", but the kept groups hold " + std::to_string(reachable) + " experts");
}

// Weights by which experts are drawn; for zipf still by popularity, not by expert.
std::vector<std::uint64_t> draw_weights(const RoutingSpec& spec, const RoutingShape& shape) {
  std::vector<std::uint64_t> weights(idx(shape.num_experts), kColdWeight);
  if (spec.kind == RoutingKind::zipf) {
    for (std::size_t p = 0; p < weights.size(); ++p) {
      const double weight = std::pow(static_cast<double>(p + 1), -spec.zipf_exponent) * kPopularityUnit;
      weights[p] = std::max<std::uint64_t>(1, static_cast<std::uint64_t>(weight));
    }
  } else if (spec.kind == RoutingKind::hot) {
    // Rank 0 owns the first experts: contiguous blocks, the first (experts mod ranks) ranks one more.
    const int num_hot = shape.num_experts / shape.num_ranks + (shape.num_experts % shape.num_ranks > 0 ? 1 : 0);
    std::fill_n(
        weights.begin(), num_hot, static_cast<std::uint64_t>(spec.hot_factor * static_cast<double>(kColdWeight)));
  }
  const auto num_possible = std::count_if(weights.begin(), weights.end(), [](std::uint64_t w) { return w > 0; });
  if (num_possible < shape.num_topk && spec.kind == RoutingKind::hot) {
    throw Error(ErrorCode::invalid_argument,
                "routing '" + spec.text() + "' leaves " + std::to_string(num_possible) +
                    " experts to choose from, top-k is " + std::to_string(shape.num_topk));
  }
  return weights;
}

// Gives popularity to experts by a permutation that follows from the seed alone.
std::vector<std::uint64_t> shuffled(std::vector<std::uint64_t> weights, std::uint64_t seed) {
  Random random = random_for(Stream::popularity, seed);
  for (std::size_t i = weights.size(); i > 1; --i) std::swap(weights[i - 1], weights[random.below(i)]);
  return weights;
}

void mask_choices(double fraction, Random random, std::vector<std::int64_t>& choices) {
  if (fraction <= 0) return;
  for (std::int64_t& choice : choices) {
    if (static_cast<double>(random.next() >> 11U) * 0x1p-53 < fraction) choice = -1;
  }
}

// Positive weights that add up to about 1 over a token's choices.
std::vector<float> make_weights(const RoutingTable& table, Random random) {
  constexpr float kSmallest = 0.05F;
  const auto topk = idx(table.num_topk);
  std::vector<float> weights(table.topk_idx.size(), 0.0F);
  for (std::size_t first = 0; first < weights.size(); first += topk) {
    float sum = 0;
    for (std::size_t i = first; i < first + topk; ++i) {
      const float weight = kSmallest + random.unit();
      if (table.topk_idx[i] < 0) continue;
      weights[i] = weight;
      sum += weight;
    }
    for (std::size_t i = first; sum > 0 && i < first + topk; ++i) weights[i] /= sum;
  }
  return weights;
}

}  // namespace

std::string RoutingSpec::text() const {
  std::string text;
  switch (kind) {
    case RoutingKind::uniform:
      text = "uniform";
      break;
    case RoutingKind::zipf:
      text = "zipf:" + real_text(zipf_exponent);
      break;
    case RoutingKind::single:
      text = "single";
      break;
    case RoutingKind::grouped:
      text = "grouped:" + std::to_string(num_groups) + "/" + std::to_string(num_kept_groups);
      break;
    case RoutingKind::hot:
      text = "hot:" + real_text(hot_factor);
      break;
    case RoutingKind::file:
      return "file:" + path;
  }
  return masked_fraction > 0 ? text + ",masked:" + real_text(masked_fraction) : text;
}

RoutingSpec parse_routing(std::string_view text) {
  constexpr std::string_view kFile = "file:";
  constexpr std::string_view kMasked = "masked:";
  if (text.starts_with(kFile)) {
    RoutingSpec spec;
    spec.kind = RoutingKind::file;
    spec.path = text.substr(kFile.size());
    if (spec.path.empty()) reject(text, "file needs a path");
    return spec;
  }
  const std::size_t comma = text.find(',');
  RoutingSpec spec = parse_kind(text, text.substr(0, comma));
  if (comma == std::string_view::npos) return spec;
  const std::string_view rest = text.substr(comma + 1);
  if (!rest.starts_with(kMasked)) reject(text, "after the comma only masked:P may stand");
  spec.masked_fraction = parse_real(text, "masked", rest.substr(kMasked.size()), 1);
  return spec;
}

std::uint64_t RoutingTable::hash() const noexcept {
  std::uint64_t hash = hash_word(static_cast<std::uint64_t>(num_tokens), static_cast<std::uint64_t>(num_topk));
  for (const std::int64_t expert : topk_idx) hash = hash_word(hash, static_cast<std::uint64_t>(expert));
  for (const float weight : topk_weights) hash = hash_word(hash, std::bit_cast<std::uint32_t>(weight));
  return hash;
}

RoutingGenerator::RoutingGenerator(const RoutingSpec& spec, const RoutingShape& shape) : spec_(spec), shape_(shape) {
  check_shape(spec, shape);
  if (spec.kind == RoutingKind::file) {
    recorded_ = read_routing_file(spec.path, shape);
  } else {
    popularity_ = draw_weights(spec, shape);
  }
}

RoutingTable RoutingGenerator::make(int rank, std::int64_t num_tokens, std::uint64_t seed) const {
  const std::int64_t topk = shape_.num_topk;
  RoutingTable table{num_tokens, shape_.num_topk, std::vector<std::int64_t>(idx(num_tokens * topk)), {}};
  const auto weights = spec_.kind == RoutingKind::zipf ? shuffled(popularity_, seed) : popularity_;
  Random random = random_for(Stream::choices, seed, rank);
  for (std::int64_t n = 0; n < num_tokens; ++n) {
    std::int64_t* choices = table.topk_idx.data() + n * topk;
    if (spec_.kind == RoutingKind::single) {
      std::iota(choices, choices + topk, 0);
    } else if (spec_.kind == RoutingKind::grouped) {
      draw_grouped(spec_, shape_, random, choices);
    } else if (spec_.kind == RoutingKind::file) {
      const auto num_lines = static_cast<std::int64_t>(recorded_.size()) / topk;
      std::copy_n(recorded_.data() + (n * shape_.num_ranks + rank) % num_lines * topk, topk, choices);
    } else {
      draw_distinct(weights, random, choices, shape_.num_topk);
    }
  }
  mask_choices(spec_.masked_fraction, random_for(Stream::masks, seed, rank), table.topk_idx);
  table.topk_weights = make_weights(table, random_for(Stream::weights, seed, rank));
  return table;
}

void poison_masked_weights(RoutingTable& table) noexcept {
  for (std::size_t i = 0; i < table.topk_idx.size(); ++i) {
    if (table.topk_idx[i] < 0) table.topk_weights[i] = std::numeric_limits<float>::quiet_NaN();
  }
}

}  // namespace moebus::workload
