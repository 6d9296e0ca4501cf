// Overlap: a layer as two half batches, one's exchange beside the other's experts, against the same work one by one.
// Room: cli · host.

#pragma once

#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/bench.hpp"
#include "cli/samples.hpp"

namespace moebus::cli {

/// Returns the part of the exchange's time that overlap hid, 0 to 1: what (compute + exchange - overlapped) is of the
/// exchange. 0 if there was no exchange.
double hidden_part(double compute_us, double exchange_us, double overlapped_us) noexcept;

/// True if times vary so little from round to round that the hidden part of that exchange can be told.
bool can_tell_hidden(const Summary& compute, const Summary& overlapped, double exchange_us) noexcept;

/// One rank's two half batches, each in a context of its own.
class Overlap {
 public:
  /// Collective. `whole` is the rank's layer on whole batches: its inputs are halved here.
  Overlap(const BenchSetup& setup, const Group& group, const BenchRank& whole);

  /// Runs set 0 both ways and returns what differs first from the oracle, or nothing. Collective.
  std::optional<std::string> difference(const BenchTruth& truth);

  /// Times rounds of: one by one, in overlap, exchange alone; ranks start each together. Collective.
  void measure(int rounds, Gather& gather);

  /// Returns the figures, of the slowest rank of each round. Collective.
  nlohmann::ordered_json report(Gather& gather);

 private:
  // What a half needs from its dispatch to its combine.
  struct Half {
    Exchange exchange;
    Pages rows;
    std::int64_t first = 0;  // token of the whole batch
    std::int64_t num_tokens = 0;
    DispatchResult dispatched{};
    PendingDispatch dispatch{};
    PendingCombine combine{};
  };

  Half make_half(const Group& group, int context) const;
  DispatchInput input_of(const Half& half, int set) const;
  CombineInput answers_of(Half& half);
  void run_experts(Half& half) const;
  double one_by_one(int set, bool has_experts);  // returns the time that experts took
  void in_overlap(int set);
  void finish() noexcept;
  std::optional<std::string> wrong(const oracle::CombineExpectation& expected, const char* way) const;

  const BenchSetup& setup_;
  const BenchRank& whole_;
  std::array<Half, 2> halves_;
  std::vector<std::byte> output_;  // [T, columns]: both halves write their part
  std::vector<double> without_us_;
  std::vector<double> with_us_;
  std::vector<double> compute_us_;
  std::vector<double> exchange_us_;
};

}  // namespace moebus::cli
