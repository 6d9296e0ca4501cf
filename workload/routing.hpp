// Routing: makes the gate's choices for a rank's tokens, from a short description and a seed.
// Room: workload · host.
// Source: [deepseek-v3] group-limited gate; Zipf and hot-rank loads as public benchmarks use them.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace moebus::workload {

/// How experts are chosen.
enum class RoutingKind : std::uint8_t {
  uniform,  ///< every expert alike, distinct within a token
  zipf,     ///< expert of popularity p has weight p^-S; which expert is popular follows from the seed, the same on all
            ///< ranks
  single,   ///< every token chooses experts 0..K-1
  grouped,  ///< random scores through a group-limited gate: keep the best groups by their two best scores, then top-k
            ///< in them
  hot,      ///< experts of rank 0 are F times as likely as the others
  file,     ///< recorded choices, one JSON array of ids a line, used in turn
};

/// What `--routing` said. Written `uniform`, `zipf:S`, `single`, `grouped:G/K`, `hot:F` or `file:PATH`; any but file
/// may be followed by `,masked:P`: that part of all choices (0..1) becomes -1.
struct RoutingSpec {
  RoutingKind kind = RoutingKind::uniform;
  double zipf_exponent = 1.0;  ///< 0..10
  int num_groups = 0;          ///< grouped
  int num_kept_groups = 0;     ///< grouped
  double hot_factor = 1.0;     ///< 0..1000
  double masked_fraction = 0.0;
  std::string path;  ///< file

  /// Returns the description that parse_routing() turns into this.
  [[nodiscard]] std::string text() const;
};

/// Reads a description. Error{invalid_argument} says what is wrong with it and lists what is allowed.
[[nodiscard]] RoutingSpec parse_routing(std::string_view text);

/// The shape that routing is made for.
struct RoutingShape {
  int num_experts = 0;
  int num_topk = 0;
  int num_ranks = 0;
};

/// One rank's choices.
struct RoutingTable {
  std::int64_t num_tokens = 0;
  int num_topk = 0;
  std::vector<std::int64_t> topk_idx;  ///< [T, K], -1 = masked
  std::vector<float> topk_weights;     ///< [T, K] positive, sum of a token's choices about 1; 0 where masked

  /// Returns a hash of ids and weights, to print beside results.
  [[nodiscard]] std::uint64_t hash() const noexcept;
};

/// Makes tables for one shape. The same description, shape, seed, rank and number of tokens give the same table
/// everywhere.
class RoutingGenerator {
 public:
  /// Checks that the description fits the shape, and reads the file if there is one.
  ///
  /// Errors: Error{invalid_argument} names what does not fit, for a file with its line; Error{not_found} if it cannot
  /// be opened.
  RoutingGenerator(const RoutingSpec& spec, const RoutingShape& shape);

  [[nodiscard]] RoutingTable make(int rank, std::int64_t num_tokens, std::uint64_t seed) const;

  [[nodiscard]] const RoutingSpec& spec() const noexcept { return spec_; }

 private:
  RoutingSpec spec_;
  RoutingShape shape_;
  std::vector<std::int64_t> recorded_;     // file: [lines, K]
  std::vector<std::uint64_t> popularity_;  // zipf: weight by popularity, as integers
};

/// Puts NaN into the weights of masked choices: they must have no effect.
void poison_masked_weights(RoutingTable& table) noexcept;

/// Reads recorded choices: one JSON array of `num_topk` ids in [-1, num_experts) a line. Returns [lines, K].
///
/// Errors: Error{not_found}; Error{invalid_argument} names file, line, value and limit.
[[nodiscard]] std::vector<std::int64_t> read_routing_file(const std::string& path, const RoutingShape& shape);

}  // namespace moebus::workload
