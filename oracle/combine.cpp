#include "oracle/combine.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "moebus/error.hpp"
#include "oracle/numbers.hpp"

namespace moebus::oracle {

namespace {

std::size_t idx(std::int64_t i) noexcept { return static_cast<std::size_t>(i); }

// One token's combine: where its choices went and how their rows add up.
class HomeToken {
 public:
  HomeToken(int home_rank,
            std::int64_t token,
            const std::vector<DispatchExpectation>& dispatched,
            const CombineRequest& request)
      : home_rank_(home_rank),
        token_(token),
        dispatched_(dispatched),
        request_(request),
        config_(dispatched.front().config),
        input_((*dispatched.front().sent)[idx(home_rank)]),
        group_(dispatched.front().group),
        seats_(dispatched.front().choices->seats),
        choices_(dispatched.front().choices->seat[idx(home_rank)]),
        num_columns_(idx(combine_columns(config_))) {}

  // The choice's seat over all ranks, -1 = no expert.
  [[nodiscard]] int seat(int choice) const { return choices_[idx(token_ * config_.num_topk + choice)]; }

  // The rank that holds the choice's seat, -1 = none.
  [[nodiscard]] int owner(int choice) const { return seat(choice) < 0 ? -1 : seats_.rank_of[idx(seat(choice))]; }

  // The row that carries the choice at its owner; null if there is no choice or its row was dropped.
  [[nodiscard]] const ReceivedRow* row(int choice) const {
    const int rank = owner(choice);
    if (rank < 0) return nullptr;
    return dispatched_[idx(rank)].find(seat(choice) - seats_.first_on[idx(rank)], home_rank_, token_);
  }

  [[nodiscard]] std::int64_t missing() const {
    std::uint64_t mask = 0;
    for (int k = 0; k < config_.num_topk; ++k) {
      if (owner(k) >= 0 && row(k) == nullptr) mask |= std::uint64_t{1} << k;
    }
    return static_cast<std::int64_t>(mask);
  }

  [[nodiscard]] float lane(int choice) const {
    const ReceivedRow* found = row(choice);
    return found == nullptr ? 0.0F : request_.lane(owner(choice), *found, choice);
  }

  // The token's sum before its one rounding.
  [[nodiscard]] std::vector<float> sum() const {
    std::vector<float> acc = bias();
    if (config_.layout != Layout::rank_major && config_.combine_rows == CombineRows::per_expert) {
      for (int k = 0; k < config_.num_topk; ++k) add_choice(acc, k);
      return acc;
    }
    if (group_.levels == 1) {
      add_owners(acc, [](int) { return true; });
      return acc;
    }
    for (int k = 0; k < config_.num_topk; ++k) {
      if (is_last_of_its_node(k)) add_node(acc, group_.node_of(owner(k)));
    }
    return acc;
  }

 private:
  [[nodiscard]] std::vector<float> bias() const {
    std::vector<float> acc(num_columns_, 0.0F);
    if (request_.homes.empty()) return acc;
    const auto& given = request_.homes[idx(home_rank_)].bias;
    if (given[0].empty()) return acc;
    read(given[0], acc);
    if (given[1].empty()) return acc;
    std::vector<float> second(num_columns_);
    read(given[1], second);
    for (std::size_t c = 0; c < num_columns_; ++c) acc[c] += second[c];
    return acc;
  }

  void read(const std::vector<std::byte>& rows, std::vector<float>& values) const {
    widen(config_.combine_dtype, rows.data() + idx(token_) * num_columns_ * size_of(config_.combine_dtype), values);
  }

  // By the routing, not by what was kept.
  [[nodiscard]] bool is_last_of_its_owner(int choice) const {
    if (owner(choice) < 0) return false;
    for (int later = choice + 1; later < config_.num_topk; ++later) {
      if (owner(later) == owner(choice)) return false;
    }
    return true;
  }

  [[nodiscard]] bool is_last_of_its_node(int choice) const {
    if (owner(choice) < 0) return false;
    for (int later = choice + 1; later < config_.num_topk; ++later) {
      if (owner(later) >= 0 && group_.node_of(owner(later)) == group_.node_of(owner(choice))) return false;
    }
    return true;
  }

  // Adds the rows of those owners that `is_meant`; returns how many there were.
  template <class IsMeant>
  int add_owners(std::vector<float>& acc, IsMeant is_meant) const {
    int num_added = 0;
    for (int k = 0; k < config_.num_topk; ++k) {
      if (is_last_of_its_owner(k) && is_meant(owner(k)) && add_owner(acc, owner(k))) ++num_added;
    }
    return num_added;
  }

  // The sum over one node's ranks, rounded even if it is the home's own node or has one row only.
  void add_node(std::vector<float>& acc, int node) const {
    std::vector<float> partial(num_columns_, 0.0F);
    if (add_owners(partial, [&](int rank) { return group_.node_of(rank) == node; }) == 0) return;
    round(partial);
    for (std::size_t c = 0; c < num_columns_; ++c) acc[c] += partial[c];
  }

  // What one rank sends home: nothing (false) if none of the token's rows were kept there.
  bool add_owner(std::vector<float>& acc, int rank) const {
    std::vector<float> partial(num_columns_, 0.0F);
    bool is_empty = true;
    for (int k = 0; k < config_.num_topk; ++k) {
      if (owner(k) != rank || row(k) == nullptr) continue;
      is_empty = false;
      if (config_.layout == Layout::rank_major) {
        partial = expert_row(k);  // summed over its experts by the caller; the same row whichever choice it is
        break;
      }
      add_choice(partial, k);
    }
    if (is_empty) return false;
    round(partial);
    for (std::size_t c = 0; c < num_columns_; ++c) acc[c] += partial[c];
    return true;
  }

  [[nodiscard]] bool is_repeat(int choice) const {
    for (int earlier = 0; earlier < choice; ++earlier) {
      if (seat(earlier) == seat(choice)) return true;
    }
    return false;
  }

  void add_choice(std::vector<float>& acc, int choice) const {
    if (row(choice) == nullptr || (request_.adds_rows_once && is_repeat(choice))) return;
    const std::vector<float> y = expert_row(choice);
    if (request_.weighting == Weighting::none) {
      for (std::size_t c = 0; c < num_columns_; ++c) acc[c] += y[c];
      return;
    }
    const float w = weight(choice);
    for (std::size_t c = 0; c < num_columns_; ++c) acc[c] = std::fma(w, y[c], acc[c]);
  }

  [[nodiscard]] float weight(int choice) const {
    const std::size_t at = idx(token_ * config_.num_topk + choice);
    return request_.weighting == Weighting::given ? request_.homes[idx(home_rank_)].topk_weights[at]
                                                  : input_.topk_weights[at];
  }

  [[nodiscard]] std::vector<float> expert_row(int choice) const {
    const std::span<const std::byte> bytes = request_.expert_rows(owner(choice), *row(choice));
    if (bytes.size() != num_columns_ * size_of(config_.combine_dtype)) {
      throw Error(ErrorCode::invalid_argument,
                  "oracle: an expert's row has " + std::to_string(bytes.size()) + " bytes, combine needs " +
                      std::to_string(num_columns_ * size_of(config_.combine_dtype)));
    }
    std::vector<float> values(num_columns_);
    widen(config_.combine_dtype, bytes.data(), values);
    return values;
  }

  void round(std::vector<float>& values) const {
    std::vector<std::byte> wire(num_columns_ * size_of(config_.combine_dtype));
    narrow(config_.combine_dtype, values, wire.data());
    widen(config_.combine_dtype, wire.data(), values);
  }

  int home_rank_;
  std::int64_t token_;
  const std::vector<DispatchExpectation>& dispatched_;
  const CombineRequest& request_;
  const ExchangeConfig& config_;
  const RankInput& input_;
  const GroupShape& group_;
  const Seats& seats_;
  const std::vector<int>& choices_;  // [T * K] seats
  std::size_t num_columns_;
};

void check_home(
    const ExchangeConfig& config, int home_rank, const RankInput& input, const HomeInput& home, Weighting weighting) {
  const auto num_tokens = idx(input.num_tokens);
  const std::size_t row_bytes = idx(combine_columns(config)) * size_of(config.combine_dtype);
  const auto fail = [&](const std::string& what) {
    throw Error(
        ErrorCode::invalid_argument, "oracle: combine on rank " + std::to_string(home_rank) + ": " + what, home_rank);
  };
  for (const auto& bias : home.bias) {
    if (!bias.empty() && bias.size() != num_tokens * row_bytes) fail("bias does not have the output's size");
  }
  if (home.bias[0].empty() && !home.bias[1].empty()) fail("bias[1] without bias[0]");
  if (weighting == Weighting::given && config.layout != Layout::rank_major &&
      home.topk_weights.size() != input.topk_idx.size()) {
    fail("Weighting::given needs topk_weights [T, K]");
  }
}

void check_request(int home_rank, const std::vector<DispatchExpectation>& dispatched, const CombineRequest& request) {
  if (home_rank < 0 || idx(home_rank) >= dispatched.size() || dispatched.size() != dispatched.front().sent->size() ||
      !request.expert_rows || (!request.homes.empty() && request.homes.size() != dispatched.size())) {
    throw Error(ErrorCode::invalid_argument,
                "oracle: combine needs expectations of all ranks, a home among them, expert_rows, and homes of all "
                "ranks or none");
  }
  const RankInput& input = (*dispatched.front().sent)[idx(home_rank)];
  const bool is_weighted = dispatched.front().config.layout != Layout::rank_major;
  if (is_weighted && request.weighting == Weighting::dispatched && !input.has_weights) {
    throw Error(ErrorCode::invalid_argument, "oracle: Weighting::dispatched, but no weights were given to dispatch");
  }
  const HomeInput none;
  const HomeInput& home = request.homes.empty() ? none : request.homes[idx(home_rank)];
  check_home(dispatched.front().config, home_rank, input, home, request.weighting);
}

}  // namespace

CombineExpectation combine_at(int home_rank,
                              const std::vector<DispatchExpectation>& dispatched,
                              const CombineRequest& request) {
  check_request(home_rank, dispatched, request);
  const ExchangeConfig& config = dispatched.front().config;
  const std::size_t row_bytes = idx(combine_columns(config)) * size_of(config.combine_dtype);
  CombineExpectation result;
  result.config = config;
  result.rank = home_rank;
  result.num_tokens = (*dispatched.front().sent)[idx(home_rank)].num_tokens;
  result.tokens.resize(idx(result.num_tokens) * row_bytes);
  for (std::int64_t n = 0; n < result.num_tokens; ++n) {
    const HomeToken token(home_rank, n, dispatched, request);
    narrow(config.combine_dtype, token.sum(), result.tokens.data() + idx(n) * row_bytes);
    result.missing.push_back(token.missing());
    if (result.missing.back() != 0) ++result.num_incomplete;
    for (int k = 0; request.lane && k < config.num_topk; ++k) result.lane.push_back(token.lane(k));
  }
  return result;
}

std::vector<CombineExpectation> combine(const std::vector<DispatchExpectation>& dispatched,
                                        const CombineRequest& request) {
  std::vector<CombineExpectation> results;
  for (int rank = 0; rank < static_cast<int>(dispatched.size()); ++rank) {
    results.push_back(combine_at(rank, dispatched, request));
  }
  return results;
}

ExpertRowSource rows_in(const std::vector<std::vector<std::byte>>& buffers, std::size_t row_bytes) {
  return [&buffers, row_bytes](int owner_rank, const ReceivedRow& row) {
    return std::span<const std::byte>(buffers[idx(owner_rank)]).subspan(idx(row.position) * row_bytes, row_bytes);
  };
}

}  // namespace moebus::oracle
