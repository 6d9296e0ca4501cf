// Combine, the obvious way: for each token of a rank find its experts' rows and add them up in the contract's order.
// Room: oracle · host.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "moebus/types.hpp"
#include "oracle/dispatch.hpp"

namespace moebus::oracle {

/// Returns what `owner_rank` hands to combine for a row of its dispatch result: combine_columns() elements of
/// config.combine_dtype. The span is used before the next call.
using ExpertRowSource = std::function<std::span<const std::byte>(int owner_rank, const ReceivedRow& row)>;

/// Returns lane[row.position, choice] as `owner_rank` hands it to combine.
using LaneSource = std::function<float(int owner_rank, const ReceivedRow& row, int choice)>;

/// What one home rank hands to combine for its own tokens.
struct HomeInput {
  std::vector<float> topk_weights;             ///< [T, K], with Weighting::given
  std::array<std::vector<std::byte>, 2> bias;  ///< [T, combine columns] of combine_dtype; empty = none
};

/// One combine over all ranks.
struct CombineRequest {
  ExpertRowSource expert_rows;
  Weighting weighting = Weighting::none;  ///< rank_major rows are never multiplied, whatever this says
  std::vector<HomeInput> homes;           ///< index = rank; may be empty: no bias, no given weights
  LaneSource lane;                        ///< optional
  bool adds_rows_once = false;  ///< a row that several choices name is added at the first of them only (gradients)
};

/// What moebus::CombineResult must say on one rank.
struct CombineExpectation {
  ExchangeConfig config;
  int rank = 0;  ///< the home
  std::int64_t num_tokens = 0;
  std::vector<std::byte> tokens;      ///< [T, combine columns] of combine_dtype
  std::vector<float> lane;            ///< [T, K], +0 where there is no choice or it was dropped; empty without a lane
  std::vector<std::int64_t> missing;  ///< [T] bit k: choice k was dropped
  std::int64_t num_incomplete = 0;    ///< tokens with a bit in `missing`
};

/// Returns what combine must bring home to `home_rank`. `dispatched` is the result of dispatch(), which knows the
/// group.
///
/// per_rank:   owner: acc = +0, choices on it in top-k order acc = fma(w, y, acc) (unweighted acc + y), rounded.
///             levels 1: home: acc = bias or +0, plus the owners' rows by the position of their last choice in the
///             token's top-k, rounded once.
///             levels 2: each node: acc = +0, plus its owners' rows in that order, rounded; home: acc = bias or +0,
///             plus the nodes' sums by the position of the node's last choice, rounded once.
/// per_expert: home: acc = bias or +0, choices in top-k order acc = fma(w, y, acc), rounded once. Levels change
/// nothing. rank_major: home as in per_rank, with the rows as they were given. An owner or a node of which no row was
/// kept is not added. Gateways change nothing. Errors:     Error{invalid_argument} if the request does not fit.
[[nodiscard]] CombineExpectation combine_at(int home_rank,
                                            const std::vector<DispatchExpectation>& dispatched,
                                            const CombineRequest& request);

/// Returns combine_at() for every rank.
[[nodiscard]] std::vector<CombineExpectation> combine(const std::vector<DispatchExpectation>& dispatched,
                                                      const CombineRequest& request);

/// Takes the experts' rows from whole buffers: buffers[rank] is laid out as that rank's dispatch result, `row_bytes`
/// per row. The buffers must outlive the source.
[[nodiscard]] ExpertRowSource rows_in(const std::vector<std::vector<std::byte>>& buffers, std::size_t row_bytes);

}  // namespace moebus::oracle
