#include "oracle/backward.hpp"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>

#include "moebus/error.hpp"
#include "oracle/numbers.hpp"

namespace moebus::oracle {

namespace {

std::size_t idx(std::int64_t i) noexcept { return static_cast<std::size_t>(i); }

// One owner's rows on the way back.
class OwnerGradient {
 public:
  OwnerGradient(const DispatchExpectation& owner, const CombineGradientRequest& request)
      : owner_(owner),
        request_(request),
        config_(owner.config),
        num_columns_(idx(combine_columns(config_))),
        row_bytes_(num_columns_ * size_of(config_.combine_dtype)) {}

  CombineGradient build() const {
    const bool is_padded = config_.layout == Layout::expert_padded;
    const std::int64_t capacity = capacity_of(config_, owner_.num_ranks);
    const std::int64_t num_groups = static_cast<std::int64_t>(owner_.counts.size());
    const std::size_t positions = idx(is_padded ? num_groups * capacity : owner_.num_rows);
    const bool has_weights = request_.expert_rows && config_.layout != Layout::rank_major;
    CombineGradient result;
    result.rank = owner_.rank;
    result.grad_tokens.resize(positions * row_bytes_);
    result.grad_rows.resize(positions * row_bytes_);
    if (has_weights) result.grad_weights.resize(positions * idx(config_.num_topk));
    for (const ReceivedRow& row : owner_.rows) {
      const std::span grad = grad_of(row);
      std::memcpy(result.grad_tokens.data() + idx(row.position) * row_bytes_, grad.data(), row_bytes_);
      write_row(row, grad, result.grad_rows.data() + idx(row.position) * row_bytes_);
      if (has_weights) write_weights(row, grad, result.grad_weights.data() + idx(row.position * config_.num_topk));
    }
    return result;
  }

 private:
  [[nodiscard]] std::span<const std::byte> grad_of(const ReceivedRow& row) const {
    return std::span(request_.grad_tokens[idx(row.src_rank)]).subspan(idx(row.src_token) * row_bytes_, row_bytes_);
  }

  [[nodiscard]] std::vector<float> floats(std::span<const std::byte> bytes) const {
    std::vector<float> values(num_columns_);
    widen(config_.combine_dtype, bytes.data(), values);
    return values;
  }

  // True if the choice of the row's token names this row (expert layouts).
  [[nodiscard]] bool is_carried(const ReceivedRow& row, int choice) const {
    const int seat = owner_.choices->seat[idx(row.src_rank)][idx(row.src_token * config_.num_topk + choice)];
    return seat == owner_.choices->seats.first_on[idx(owner_.rank)] + row.local_expert;
  }

  [[nodiscard]] float weight(const ReceivedRow& row, int choice) const {
    const std::size_t at = idx(row.src_token * config_.num_topk + choice);
    switch (request_.weighting) {
      case Weighting::none:
        return 1.0F;
      case Weighting::dispatched:
        return (*owner_.sent)[idx(row.src_rank)].topk_weights[at];
      case Weighting::given:
        return request_.homes[idx(row.src_rank)].topk_weights[at];
    }
    return 0.0F;
  }

  void write_row(const ReceivedRow& row, std::span<const std::byte> grad, std::byte* sink) const {
    float sum = 0.0F;
    for (int k = 0; k < config_.num_topk; ++k) {
      if (is_carried(row, k)) sum += weight(row, k);
    }
    const bool is_plain = request_.weighting == Weighting::none && sum == 1.0F;
    if (config_.layout == Layout::rank_major || is_plain) {
      std::memcpy(sink, grad.data(), row_bytes_);
      return;
    }
    std::vector<float> values = floats(grad);
    for (float& value : values) value = sum * value;
    narrow(config_.combine_dtype, values, sink);
  }

  void write_weights(const ReceivedRow& row, std::span<const std::byte> grad, float* sink) const {
    const std::span<const std::byte> y = request_.expert_rows(owner_.rank, row);
    if (y.size() != row_bytes_) {
      throw Error(ErrorCode::invalid_argument,
                  "oracle: an expert's row has " + std::to_string(y.size()) + " bytes, combine needs " +
                      std::to_string(row_bytes_));
    }
    const float dot = ordered_dot(floats(grad), floats(y));
    for (int k = 0; k < config_.num_topk; ++k) {
      if (is_carried(row, k)) sink[k] = std::isnan(dot) ? std::bit_cast<float>(kCanonicalNanF32) : dot;
    }
  }

  const DispatchExpectation& owner_;
  const CombineGradientRequest& request_;
  const ExchangeConfig& config_;
  std::size_t num_columns_;
  std::size_t row_bytes_;
};

void check_rank(const DispatchExpectation& any, const CombineGradientRequest& request, std::size_t rank) {
  const RankInput& input = (*any.sent)[rank];
  const std::size_t row_bytes = idx(combine_columns(any.config)) * size_of(any.config.combine_dtype);
  const auto fail = [&](const std::string& what) {
    throw Error(ErrorCode::invalid_argument,
                "oracle: gradient of combine on rank " + std::to_string(rank) + ": " + what,
                static_cast<int>(rank));
  };
  if (request.grad_tokens[rank].size() != idx(input.num_tokens) * row_bytes) {
    fail("grad_tokens does not have the output's size");
  }
  if (any.config.layout == Layout::rank_major) return;
  if (request.weighting == Weighting::dispatched && !input.has_weights) fail("no weights were given to dispatch");
  if (request.weighting == Weighting::given &&
      (request.homes.size() != any.sent->size() || request.homes[rank].topk_weights.size() != input.topk_idx.size())) {
    fail("Weighting::given needs topk_weights [T, K]");
  }
}

}  // namespace

std::vector<CombineGradient> combine_gradient(const std::vector<DispatchExpectation>& dispatched,
                                              const CombineGradientRequest& request) {
  if (dispatched.empty() || request.grad_tokens.size() != dispatched.size()) {
    throw Error(ErrorCode::invalid_argument,
                "oracle: gradient of combine needs expectations and grad_tokens of all ranks");
  }
  std::vector<CombineGradient> results;
  for (std::size_t rank = 0; rank < dispatched.size(); ++rank) check_rank(dispatched.front(), request, rank);
  for (const DispatchExpectation& owner : dispatched) results.push_back(OwnerGradient(owner, request).build());
  return results;
}

std::vector<CombineExpectation> dispatch_gradient(const std::vector<DispatchExpectation>& dispatched,
                                                  const ExpertRowSource& grad_x,
                                                  const LaneSource& lane) {
  CombineRequest request;
  request.expert_rows = grad_x;
  request.lane = lane;
  request.adds_rows_once = true;
  return combine(dispatched, request);
}

LaneSource lane_of(const std::vector<CombineGradient>& gradients, int num_topk) {
  return [&gradients, num_topk](int owner_rank, const ReceivedRow& row, int choice) {
    return gradients[idx(owner_rank)].grad_weights[idx(row.position * num_topk + choice)];
  };
}

float ordered_dot(std::span<const float> a, std::span<const float> b) noexcept {
  std::array<float, 16> sums{};
  for (std::size_t c = 0; c < a.size(); ++c) sums[c % 16] = std::fma(a[c], b[c], sums[c % 16]);
  for (std::size_t half = 8; half > 0; half /= 2) {
    for (std::size_t j = 0; j < half; ++j) sums[j] += sums[j + half];
  }
  return sums[0];
}

}  // namespace moebus::oracle
