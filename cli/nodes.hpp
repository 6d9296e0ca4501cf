// Nodes: reads what --nodes says of pretended nodes, and says in words which ranks live together.
// Room: cli · host.

#pragma once

#include <optional>
#include <string>
#include <vector>

namespace moebus::cli {

/// Pretended nodes as they were asked for: "N" blocks of about equal size, sizes "3+1", or the node of each rank
/// "0,1,0,1".
class Nodes {
 public:
  /// No wish: one node.
  Nodes() = default;

  /// Errors: UsageError names the option, the text and the three forms.
  static Nodes parse(const std::string& text);

  [[nodiscard]] bool is_given() const noexcept { return !numbers_.empty(); }

  /// Returns how many ranks the text speaks of; nothing for "N".
  [[nodiscard]] std::optional<int> num_ranks() const noexcept;

  /// True if that many ranks can live on these nodes.
  [[nodiscard]] bool fits(int num_ranks) const noexcept;

  /// Throws UsageError unless that many ranks can.
  void check(int num_ranks) const;

  /// Returns the node of each rank, empty if nothing was given. "N": the first nodes are one larger if need be.
  ///
  /// Errors: UsageError if the number of ranks does not fit.
  [[nodiscard]] std::vector<int> of_ranks(int num_ranks) const;

 private:
  enum class Form : unsigned char { count, sizes, list };

  std::string text_;
  Form form_ = Form::count;
  std::vector<int> numbers_;
};

/// Returns the ranks of each node, e.g. "0-2 | 3" or "0,2 | 1,3". `nodes`: of each rank, not empty.
std::string ranks_by_node(const std::vector<int>& nodes);

/// Returns how many different nodes there are.
int number_of_nodes(const std::vector<int>& nodes);

}  // namespace moebus::cli
