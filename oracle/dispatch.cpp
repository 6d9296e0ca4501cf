#include "oracle/dispatch.hpp"

#include <algorithm>
#include <limits>
#include <string>
#include <tuple>
#include <utility>

#include "moebus/error.hpp"
#include "oracle/numbers.hpp"

namespace moebus::oracle {

namespace {

std::size_t idx(std::int64_t i) noexcept { return static_cast<std::size_t>(i); }

// A token's choices, seen from one destination.
struct Choices {
  const RankInput& input;
  const std::vector<int>& seats;  // [T * K] of the source
  std::int64_t token;
  int num_topk;
  int first_seat;  // of the destination
  int num_seats;   // of the destination

  // Returns the local expert of a choice, -1 if it is masked or lives elsewhere.
  [[nodiscard]] int local_expert(int choice) const {
    const int seat = seats[idx(token * num_topk + choice)];
    return seat >= first_seat && seat < first_seat + num_seats ? seat - first_seat : -1;
  }

  [[nodiscard]] float weight(int choice) const {
    return input.has_weights ? input.topk_weights[idx(token * num_topk + choice)] : 0.0F;
  }

  [[nodiscard]] bool has(int expert) const {
    for (int k = 0; k < num_topk; ++k) {
      if (local_expert(k) == expert) return true;
    }
    return false;
  }

  [[nodiscard]] bool has_any() const {
    for (int k = 0; k < num_topk; ++k) {
      if (local_expert(k) >= 0) return true;
    }
    return false;
  }

  [[nodiscard]] float weight_of(int expert) const {
    float sum = 0.0F;
    for (int k = 0; k < num_topk; ++k) {
      if (local_expert(k) == expert) sum += weight(k);
    }
    return sum;
  }
};

class Destination {
 public:
  Destination(const ExchangeConfig& config,
              const SharedInputs& sent,
              const GroupShape& group,
              std::shared_ptr<const SeatChoices> choices,
              int rank) {
    result_.config = config;
    result_.num_ranks = static_cast<int>(sent->size());
    result_.rank = rank;
    result_.has_weights = sent->front().has_weights;
    result_.sent = sent;
    result_.group = group;
    result_.choices = std::move(choices);
    num_experts_ = result_.choices->seats.num_on(rank);
    capacity_ = capacity_of(config, result_.num_ranks);
    result_.counts.assign(idx(num_experts_), 0);
    result_.wanted.assign(idx(num_experts_), 0);
    result_.rank_counts.assign(sent->size(), 0);
  }

  DispatchExpectation build() {
    for_each_token([&](const Choices& token, int src_rank) {
      if (token.has_any()) ++result_.rank_counts[idx(src_rank)];
    });
    if (result_.config.layout == Layout::rank_major) {
      build_rank_major();
    } else {
      build_expert_layout();
    }
    return std::move(result_);
  }

 private:
  template <class Visit>
  void for_each_token(Visit visit) const {
    for (int src_rank = 0; src_rank < result_.num_ranks; ++src_rank) {
      const RankInput& input = (*result_.sent)[idx(src_rank)];
      const std::vector<int>& seats = result_.choices->seat[idx(src_rank)];
      const int first_seat = result_.choices->seats.first_on[idx(result_.rank)];
      for (std::int64_t n = 0; n < input.num_tokens; ++n) {
        visit(Choices{input, seats, n, result_.config.num_topk, first_seat, num_experts_}, src_rank);
      }
    }
  }

  void build_rank_major() {
    std::int64_t position = 0;
    for_each_token([&](const Choices& token, int src_rank) {
      if (!token.has_any()) return;
      const bool is_kept = position < capacity_;
      for (int expert = 0; expert < num_experts_; ++expert) {
        if (!token.has(expert)) continue;
        ++result_.wanted[idx(expert)];
        if (is_kept) ++result_.counts[idx(expert)];
      }
      if (is_kept) {
        result_.rows.push_back({position, -1, src_rank, token.token, 0.0F});
        append_local_choices(token);
      } else {
        ++result_.num_overflowed;
      }
      ++position;
    });
    result_.num_rows = static_cast<std::int64_t>(result_.rows.size());
  }

  void append_local_choices(const Choices& token) {
    for (int k = 0; k < result_.config.num_topk; ++k) {
      const int expert = token.local_expert(k);
      result_.topk_idx.push_back(expert);
      if (result_.has_weights) result_.topk_weights.push_back(expert >= 0 ? token.weight(k) : 0.0F);
    }
  }

  // Every wanted row has an index; those whose index reaches the capacity are dropped, and move nobody else.
  void build_expert_layout() {
    const bool is_padded = result_.config.layout == Layout::expert_padded;
    std::int64_t start = 0;
    if (!is_padded) result_.offsets.push_back(0);
    for (int expert = 0; expert < num_experts_; ++expert) {
      std::int64_t index = is_padded ? 0 : start;
      for_each_token([&](const Choices& token, int src_rank) {
        if (!token.has(expert)) return;
        ++result_.wanted[idx(expert)];
        if (index < capacity_) {
          ++result_.counts[idx(expert)];
          const std::int64_t position = is_padded ? expert * capacity_ + index : index;
          result_.rows.push_back({position, expert, src_rank, token.token, token.weight_of(expert)});
        } else {
          ++result_.num_overflowed;
        }
        ++index;
      });
      if (!is_padded) {
        const std::int64_t alignment = result_.config.expert_alignment;
        start = (index + alignment - 1) / alignment * alignment;
        result_.offsets.push_back(start);
      }
    }
    result_.num_rows = is_padded ? static_cast<std::int64_t>(result_.rows.size()) : std::min(capacity_, start);
  }

  DispatchExpectation result_;
  int num_experts_ = 0;  // seats, empty ones included
  std::int64_t capacity_ = 0;
};

RankInput cast_input(const ExchangeConfig& config, const RankInput& given) {
  const std::size_t given_bytes = given_row_bytes(config);
  const std::size_t cast_bytes = received_row_bytes(config);
  const std::size_t scale_bytes = scale_row_bytes(config.hidden, config.scale_format);
  RankInput cast = {given.num_tokens, {}, {}, given.side, given.topk_idx, given.topk_weights, given.has_weights};
  cast.tokens.resize(idx(given.num_tokens) * cast_bytes);
  cast.scales.resize(idx(given.num_tokens) * scale_bytes);
  for (std::size_t n = 0; n < idx(given.num_tokens); ++n) {
    cast_fp8_row(given.tokens.data() + n * given_bytes,
                 config.hidden,
                 config.scale_format,
                 cast.tokens.data() + n * cast_bytes,
                 cast.scales.data() + n * scale_bytes);
  }
  return cast;
}

std::span<const std::byte> row_of(const std::vector<std::byte>& rows, std::int64_t row, std::size_t row_bytes) {
  return std::span(rows).subspan(idx(row) * row_bytes, row_bytes);
}

}  // namespace

std::span<const std::byte> DispatchExpectation::token_bytes(const ReceivedRow& row) const {
  return row_of((*sent)[idx(row.src_rank)].tokens, row.src_token, received_row_bytes(config));
}

std::span<const std::byte> DispatchExpectation::scale_bytes(const ReceivedRow& row) const {
  return row_of((*sent)[idx(row.src_rank)].scales, row.src_token, scale_row_bytes(config.hidden, config.scale_format));
}

std::span<const std::byte> DispatchExpectation::side_bytes(const ReceivedRow& row, int side_idx) const {
  return row_of((*sent)[idx(row.src_rank)].side[idx(side_idx)], row.src_token, idx(config.side_bytes[idx(side_idx)]));
}

const ReceivedRow* DispatchExpectation::find(int local_expert, int src_rank, std::int64_t src_token) const {
  const auto key = std::tuple(config.layout == Layout::rank_major ? -1 : local_expert, src_rank, src_token);
  const auto key_of = [](const ReceivedRow& row) { return std::tuple(row.local_expert, row.src_rank, row.src_token); };
  const auto found =
      std::lower_bound(rows.begin(), rows.end(), key, [&](const ReceivedRow& row, const auto& wanted_key) {
        return key_of(row) < wanted_key;
      });
  return found != rows.end() && key_of(*found) == key ? &*found : nullptr;
}

SharedInputs as_sent(const ExchangeConfig& config, const SharedInputs& inputs) {
  if (config.cast == Cast::none) return inputs;
  std::vector<RankInput> cast;
  cast.reserve(inputs->size());
  for (const RankInput& given : *inputs) cast.push_back(cast_input(config, given));
  return std::make_shared<const std::vector<RankInput>>(std::move(cast));
}

std::int64_t capacity_of(const ExchangeConfig& config, int num_ranks) noexcept {
  if (config.capacity_rows > 0) return config.capacity_rows;
  if (config.layout == Layout::expert_padded) return std::int64_t{num_ranks} * config.max_tokens_per_rank;
  return std::numeric_limits<std::int64_t>::max();
}

std::vector<DispatchExpectation> dispatch(const ExchangeConfig& config,
                                          const SharedInputs& inputs,
                                          const GroupShape& group,
                                          const Placement& placement,
                                          const ReplicaRule& rule) {
  check_inputs(config, *inputs);
  check_group(group);
  if (group.num_ranks != static_cast<int>(inputs->size())) {
    throw Error(ErrorCode::invalid_argument,
                "oracle: a group of " + std::to_string(group.num_ranks) + " ranks, but inputs of " +
                    std::to_string(inputs->size()) + "; give every rank's");
  }
  const SharedInputs sent = as_sent(config, inputs);
  const auto choices = std::make_shared<const SeatChoices>(choose_seats(config, *inputs, placement, rule));
  std::vector<DispatchExpectation> results;
  for (int rank = 0; rank < group.num_ranks; ++rank) {
    results.push_back(Destination(config, sent, group, choices, rank).build());
  }
  return results;
}

std::vector<DispatchExpectation> dispatch(const ExchangeConfig& config, const SharedInputs& inputs) {
  return dispatch(config, inputs, GroupShape::one_node(static_cast<int>(inputs->size())));
}

std::vector<DispatchExpectation> dispatch(const ExchangeConfig& config, const std::vector<RankInput>& inputs) {
  return dispatch(config, std::make_shared<const std::vector<RankInput>>(inputs));
}

}  // namespace moebus::oracle
