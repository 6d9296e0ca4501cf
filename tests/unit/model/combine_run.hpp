// CombineRun: a whole combine of a pretended group in plain memory: the plans under test, and arithmetic of one column
// at a time. And expect_combined: what must come home, from the rule alone. Room: tests · host.

#pragma once

#include "combine_cases.hpp"

namespace moebus::model::cases {

/// How owners and gateways make their rows: where they are read, or densely in a buffer from which each is put.
enum class Making { in_place, dense };

/// A bias that identifies itself; home and token count.
inline float bias_at(int home, std::int64_t token, int column) {
  return 0.25F * static_cast<float>(home + 1) - 0.125F * static_cast<float>(token) + 0.5F * static_cast<float>(column);
}

class CombineRun {
 public:
  /// Home's tokens come in rounds of `round_tokens`; home adds `block_tokens` at a time.
  CombineRun(const Group& group, Making making, int round_tokens, int block_tokens, bool has_bias)
      : g_(group), making_(making), round_tokens_(round_tokens), block_tokens_(block_tokens), has_bias_(has_bias) {}

  Combined run() {
    const Case& c = g_.c;
    for (int home = 0; home < c.num_ranks; ++home) {
      const std::size_t num_tokens = idx(c.choices[idx(home)].num_tokens);
      out_.tokens.emplace_back(num_tokens * idx(c.config.hidden), Bf16{0x7FC0});
      out_.lanes.emplace_back(c.config.combine_lane ? num_tokens * idx(c.config.num_topk) : 0, -7.0F);
      out_.missing.emplace_back(num_tokens, ~std::uint64_t{0});
      for (int first = 0; first < c.choices[idx(home)].num_tokens; first += round_tokens_) run_round(home, first);
    }
    return std::move(out_);
  }

 private:
  [[nodiscard]] bool is_per_expert() const { return g_.c.config.combine_rows == CombineRows::per_expert; }

  [[nodiscard]] bool moves_rows() const { return is_per_expert() || g_.c.config.layout == Layout::rank_major; }

  [[nodiscard]] const CombineRowFormat& format() const { return g_.shape().combine_row; }

  [[nodiscard]] std::vector<std::byte> slots_memory(int slots_per_token) const {
    return std::vector<std::byte>(idx(slots_per_token * round_tokens_) * format().stride_bytes, std::byte{0xEE});
  }

  void run_round(int home, int first) {
    const Shape& shape = g_.shape(home);
    std::vector<std::byte> memory = slots_memory(shape.combine_slots_per_token);
    const HomeSlots home_slots{memory.data(), round_tokens_, first};
    for (int node = 0; node < shape.topology.num_nodes(); ++node) {
      const bool is_foreign = node != shape.topology.node_of(home);
      const bool has_gateway = shape.has_partial_sums && is_foreign;
      std::vector<std::byte> relay_memory = slots_memory(shape.relay_slots_per_token);
      const HomeSlots relay_slots{relay_memory.data(), round_tokens_, first};
      for (const int owner : shape.topology.ranks_of(node)) {
        if (owner != home || !moves_rows()) push(owner, home, has_gateway ? relay_slots : home_slots);
      }
      if (has_gateway) relay(shape.topology.gateway(home, node), home, relay_slots, home_slots);
    }
    const int last = std::min(first + round_tokens_, g_.c.choices[idx(home)].num_tokens);
    for (int block = first; block < last; block += block_tokens_) {
      add_at_home(home, block, std::min(block + block_tokens_, last), home_slots);
    }
    read_round(home, first, last, home_slots);
  }

  /// Has the rows made, and brings them to their slots.
  template <class Make>
  void deliver(const HomeSlots& to,
               const std::vector<std::int32_t>& slot,
               const std::vector<std::uint8_t>& has_payload,
               const Make& make) {
    if (making_ == Making::in_place) {
      make(to.data, std::span<const std::int32_t>(slot));
      return;
    }
    const std::size_t stride = format().stride_bytes;
    std::vector<std::byte> rows(slot.size() * stride, std::byte{0xDD});
    make(rows.data(), std::span<const std::int32_t>());
    for (std::size_t i = 0; i < slot.size(); ++i) {
      const std::size_t skipped = has_payload[i] != 0 ? 0 : format().payload_bytes;
      std::memcpy(to.data + idx(slot[i]) * stride + skipped, rows.data() + i * stride + skipped, stride - skipped);
    }
  }

  void push(int owner, int home, const HomeSlots& to) {
    const Shape& shape = g_.shape(owner);
    const ReceivePlan& plan = g_.receive(owner);
    const RowRange rows = rows_of_tokens(plan, home, to.first_token, to.first_token + round_tokens_);
    const std::size_t num_rows = idx(rows.last - rows.first);
    std::vector<std::int32_t> slot(num_rows * idx(is_per_expert() ? g_.c.config.num_topk : 1));
    std::vector<std::uint8_t> has_payload(slot.size());
    slot.resize(list_owner_slots(shape, plan, rows, to, slot, has_payload));
    deliver(to, slot, has_payload, [&](std::byte* data, std::span<const std::int32_t> at) {
      if (moves_rows()) {
        std::vector<RowMove> moves(slot.size());
        moves.resize(list_owner_moves(shape, plan, rows, at, moves));
        for (const RowMove& move : moves) {
          std::memcpy(
              data + idx(move.dst) * format().stride_bytes, g_.results(owner).row(move.src), format().payload_bytes);
        }
      } else {
        Terms terms(num_rows, idx(g_.c.config.num_topk));
        SumTerms view = terms.view();
        list_owner_sums(shape, plan, rows, g_.results(owner), nullptr, data, at, view);
        add(terms, num_rows, g_.has_weights());
      }
      write_tails(shape, plan, rows, g_.lane(owner), data, at);
    });
  }

  void relay(int gateway, int home, const HomeSlots& from, const HomeSlots& to) {
    const Shape& shape = g_.shape(gateway);
    const RelayPlan& plan = g_.relay(gateway);
    const int index = static_cast<int>(std::find(plan.served.begin(), plan.served.end(), home) - plan.served.begin());
    const RowRange rows = relay_rows_of_tokens(plan, index, to.first_token, to.first_token + round_tokens_);
    const std::size_t num_rows = idx(rows.last - rows.first);
    std::vector<std::int32_t> slot(num_rows);
    list_relay_slots(plan, rows, to, slot);
    deliver(to, slot, std::vector<std::uint8_t>(num_rows, 1), [&](std::byte* data, std::span<const std::int32_t> at) {
      Terms terms(num_rows, idx(shape.relay_slots_per_token));
      SumTerms view = terms.view();
      list_relay_sums(shape, plan, rows, from, data, at, view);
      add(terms, num_rows, false);
      write_relay_tails(shape, plan, rows, g_.c.config.combine_lane, from, data, at);
    });
  }

  void add_at_home(int home, int first, int last, const HomeSlots& slots) {
    const Shape& shape = g_.shape(home);
    const Choices& chosen = g_.c.choices[idx(home)];
    const std::size_t most = idx((last - first) * partial_rows_per_token(shape));
    std::vector<std::byte> memory(most * format().payload_bytes, std::byte{0xCC});
    const PartialSums partial{memory.data(), static_cast<std::int64_t>(format().payload_bytes)};
    Terms partial_terms(most, idx(g_.c.config.num_topk));
    SumTerms view = partial_terms.view();
    const std::int64_t num_partial =
        list_partial_sums(shape, g_.send(home), g_.receive(home), first, last, g_.results(home), slots, partial, view);
    add(partial_terms, idx(num_partial), false);
    Terms terms(idx(last - first), idx(g_.c.config.num_topk));
    view = terms.view();
    list_home_sums(shape,
                   g_.send(home),
                   g_.receive(home),
                   first,
                   last,
                   g_.results(home),
                   chosen.weights.empty() ? nullptr : chosen.weights.data(),
                   slots,
                   partial,
                   view);
    for (int token = first; token < last; ++token) {
      Bf16* row = out_.tokens[idx(home)].data() + token * g_.c.config.hidden;
      terms.output_row[idx(token - first)] = std::as_writable_bytes(std::span(row, 1)).data();
    }
    add(terms, idx(last - first), is_per_expert() && g_.has_weights(), has_bias_ ? home : -1, first);
  }

  /// Adds terms into their outputs; `bias_home` >= 0: on top of that rank's bias, from token `first` on.
  void add(const Terms& terms, std::size_t num_outputs, bool is_weighted, int bias_home = -1, std::int64_t first = 0) {
    for (std::size_t output = 0; output < num_outputs; ++output) {
      for (int column = 0; column < g_.c.config.hidden; ++column) {
        const std::size_t offset = idx(column) * sizeof(Bf16);
        const std::int64_t token = first + static_cast<std::int64_t>(output);
        float sum = bias_home >= 0 ? bias_at(bias_home, token, column) : 0.0F;
        for (std::size_t t = idx(terms.first[output]); t < idx(terms.first[output + 1]); ++t) {
          Bf16 value;
          std::memcpy(&value, terms.term[t] + offset, sizeof(value));
          sum = is_weighted ? std::fma(terms.weight[t], widen(value), sum) : sum + widen(value);
        }
        const Bf16 rounded = narrow(sum);
        std::memcpy(terms.output_row[output] + offset, &rounded, sizeof(rounded));
      }
    }
  }

  void read_round(int home, int first, int last, const HomeSlots& slots) {
    float* lane = g_.c.config.combine_lane ? out_.lanes[idx(home)].data() : nullptr;
    std::uint64_t* missing = out_.missing[idx(home)].data();
    const std::int64_t num_incomplete =
        read_tails(g_.shape(home), g_.send(home), g_.receive(home), first, last, g_.lane(home), slots, lane, missing);
    const auto is_incomplete = [](std::uint64_t choices) { return choices != 0; };
    if (num_incomplete != std::count_if(missing + first, missing + last, is_incomplete)) {
      throw std::logic_error("read_tails counts other tokens than it reports");
    }
  }

  const Group& g_;
  Making making_;
  int round_tokens_;
  int block_tokens_;
  bool has_bias_;
  Combined out_;
};

// The reference
// -------------------------------------------------------------------------------------------------------------------

using Row = std::vector<float>;

inline void add_row(Row& sum, const Row& row) {
  for (std::size_t column = 0; column < sum.size(); ++column) sum[column] += row[column];
}

inline Row rounded(Row row) {
  for (float& value : row) value = widen(narrow(value));
  return row;
}

/// Adds the kept experts' rows of a token, of one owner or (-1) of all, in top-k order; returns how many there were.
inline int add_experts(const Group& g, int home, int token, int only_owner, Row& sum) {
  int num = 0;
  for (int k = 0; k < g.c.config.num_topk; ++k) {
    const int owner = owner_of(g.c, id_at(g.c, home, token, k));
    if (owner < 0 || (only_owner >= 0 && owner != only_owner)) continue;
    const std::int64_t at = g.place(owner, {home, token}, k);
    if (at < 0) continue;
    ++num;
    const std::vector<float>& weights = g.c.choices[idx(home)].weights;
    for (std::size_t column = 0; column < sum.size(); ++column) {
      const float value = widen(g.result_row(owner, at)[column]);
      sum[column] = weights.empty() ? sum[column] + value
                                    : std::fma(weights[idx(token * g.c.config.num_topk + k)], value, sum[column]);
    }
  }
  return num;
}

/// What an owner sends of a token; empty = nothing.
inline Row rank_row(const Group& g, int home, int token, int owner) {
  Row row(idx(g.c.config.hidden), 0.0F);
  if (g.c.config.layout != Layout::rank_major) {
    if (add_experts(g, home, token, owner, row) == 0) return {};
    return rounded(row);
  }
  const std::int64_t at = g.place(owner, {home, token}, last_choice_of(g.c, home, token, owner));
  if (at < 0) return {};
  for (std::size_t column = 0; column < row.size(); ++column) row[column] = widen(g.result_row(owner, at)[column]);
  return row;
}

/// Adds a token's rows by the rule for the group's levels.
inline Row combined_row(const Group& g, int home, int token, bool has_bias) {
  Row sum(idx(g.c.config.hidden), 0.0F);
  if (has_bias) {
    for (int column = 0; column < g.c.config.hidden; ++column) sum[idx(column)] = bias_at(home, token, column);
  }
  if (g.c.config.combine_rows == CombineRows::per_expert) {
    add_experts(g, home, token, -1, sum);
    return rounded(sum);
  }
  const std::vector<int> ranks = ranks_of(g.c, home, token);
  if (g.shape().levels == 1) {
    for (const int owner : ranks) {
      if (const Row row = rank_row(g, home, token, owner); !row.empty()) add_row(sum, row);
    }
    return rounded(sum);
  }
  std::map<int, int> nodes;  // by the position of the last chosen expert
  for (const int node : g.node_of) {
    int last = -1;
    for (const int owner : ranks) {
      if (g.node_of[idx(owner)] == node) last = std::max(last, last_choice_of(g.c, home, token, owner));
    }
    if (last >= 0) nodes[last] = node;
  }
  for (const auto& [last, node] : nodes) {
    Row partial(sum.size(), 0.0F);
    bool is_there = false;
    for (const int owner : ranks) {
      if (g.node_of[idx(owner)] != node) continue;
      const Row row = rank_row(g, home, token, owner);
      if (!row.empty()) add_row(partial, row);
      is_there |= !row.empty();
    }
    if (is_there) add_row(sum, rounded(partial));
  }
  return rounded(sum);
}

inline Combined expect_combined(const Group& g, bool has_bias) {
  Combined expected;
  for (int home = 0; home < g.c.num_ranks; ++home) {
    expected.tokens.emplace_back();
    expected.lanes.emplace_back();
    expected.missing.emplace_back();
    for (int token = 0; token < g.c.choices[idx(home)].num_tokens; ++token) {
      for (const float value : combined_row(g, home, token, has_bias)) expected.tokens.back().push_back(narrow(value));
      std::uint64_t missing = 0;
      for (int k = 0; k < g.c.config.num_topk; ++k) {
        const int owner = owner_of(g.c, id_at(g.c, home, token, k));
        const std::int64_t at = owner < 0 ? -1 : g.place(owner, {home, token}, k);
        if (owner >= 0 && at < 0) missing |= std::uint64_t{1} << k;
        if (g.c.config.combine_lane) expected.lanes.back().push_back(at < 0 ? 0.0F : Group::lane_value(owner, at, k));
      }
      expected.missing.back().push_back(missing);
    }
  }
  return expected;
}

}  // namespace moebus::model::cases
