// Plan cases: random shapes and routings with all ranks' plans made side by side, and an obvious quadratic reference of
// what they must say. Shares no arithmetic with src/model. Room: tests · host.

#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "base/local_memory.hpp"
#include "model/receive_plan.hpp"
#include "model/send_plan.hpp"

namespace moebus::model::cases {

using base::idx;

/// A plan (or anything that is carved) with memory of its own.
template <class Plan>
struct Carved {
  explicit Carved(const Shape& shape) {
    base::Carver counter;
    plan.carve(counter, shape);
    memory = base::LocalMemory(counter.used_bytes());
    base::Carver carver(memory.data());
    plan.carve(carver, shape);
  }

  base::LocalMemory memory;
  Plan plan;
};

/// What one rank chose.
struct Choices {
  std::int32_t num_tokens = 0;
  std::vector<std::int32_t> ids;  // [tokens, K]
  std::vector<float> weights;     // [tokens, K], empty = not given
};

struct Case {
  unsigned seed = 0;
  ExchangeConfig config;
  int num_ranks = 1;
  std::vector<Choices> choices;  // [ranks]

  [[nodiscard]] std::string text() const {
    std::ostringstream out;
    out << "seed " << seed << ": " << num_ranks << " ranks, " << config.num_experts << " experts, top-"
        << config.num_topk << ", " << config.max_tokens_per_rank << " tokens at most, " << to_string(config.layout)
        << ", alignment " << config.expert_alignment << ", capacity " << config.capacity_rows << ", "
        << to_string(config.combine_rows);
    return out.str();
  }
};

inline int pick(std::mt19937& random, int low, int high) {
  return std::uniform_int_distribution<int>(low, high)(random);
}

inline Choices random_choices(std::mt19937& random, const ExchangeConfig& config, bool has_weights) {
  Choices choices;
  choices.num_tokens = pick(random, 0, 4) == 0 ? 0 : pick(random, 0, config.max_tokens_per_rank);
  // Few favourites: repeated experts and full lists are then common.
  const int favourites = pick(random, 0, 2) == 0 ? std::min(2, config.num_experts) : config.num_experts;
  const int masked_in_ten = pick(random, 0, 3) * 2;
  for (int i = 0; i < choices.num_tokens * config.num_topk; ++i) {
    const bool is_masked = pick(random, 0, 9) < masked_in_ten;
    choices.ids.push_back(is_masked ? -1 : config.num_experts - 1 - pick(random, 0, favourites - 1));
    if (has_weights) choices.weights.push_back(std::uniform_real_distribution<float>(-1.0F, 2.0F)(random));
  }
  return choices;
}

/// Draws everything from the seed; experts may be fewer than ranks, any rank may be without tokens.
inline Case random_case(unsigned seed, Layout layout) {
  std::mt19937 random(seed);
  Case c;
  c.seed = seed;
  // Now and then more tokens than the blocks that plans are made in, on few ranks: the reference is quadratic.
  const bool is_long = seed % 25 == 0;
  c.num_ranks = pick(random, 1, is_long ? 3 : 9);
  c.config.num_experts = pick(random, 1, 24);
  c.config.num_topk = pick(random, 0, 3) == 0 ? pick(random, 9, 17) : pick(random, 1, 8);
  c.config.hidden = 8;
  c.config.max_tokens_per_rank = is_long ? pick(random, 65, 150) : pick(random, 1, 14);
  c.config.layout = layout;
  c.config.path = Path::throughput;
  if (layout == Layout::expert_major) c.config.expert_alignment = pick(random, 0, 1) == 0 ? 1 : pick(random, 2, 8);
  if (layout != Layout::rank_major && pick(random, 0, 1) == 0) c.config.combine_rows = CombineRows::per_expert;
  if (pick(random, 0, 1) == 0) c.config.capacity_rows = pick(random, 1, c.num_ranks * c.config.max_tokens_per_rank);
  const bool has_weights = pick(random, 0, 3) != 0;
  for (int rank = 0; rank < c.num_ranks; ++rank) c.choices.push_back(random_choices(random, c.config, has_weights));
  return c;
}

/// Every rank's plans of a case, made by the functions under test, tables written as the engine does.
struct Plans {
  explicit Plans(const Case& c)
      : shape(make_shape(c.config, c.num_ranks)), format(table_row_format(c.config.num_topk)) {
    const std::size_t ranks = idx(c.num_ranks);
    const std::size_t table_bytes = idx(c.config.max_tokens_per_rank) * format.stride_bytes;
    tables.assign(ranks, std::vector<std::byte>(ranks * table_bytes, std::byte{0xEE}));
    for (std::size_t src = 0; src < ranks; ++src) add_sender(c.choices[src], src, table_bytes);
    for (std::size_t dst = 0; dst < ranks; ++dst) {
      std::vector<TableView> views;
      for (std::size_t src = 0; src < ranks; ++src) {
        const SendPlan& plan = send[src].plan;
        views.push_back({tables[dst].data() + src * table_bytes, plan.num_rows_to[dst], plan.has_weights});
      }
      receive.emplace_back(shape);
      // Stale content of an earlier call must not shine through.
      std::fill_n(receive.back().memory.data(), receive.back().memory.size_bytes(), std::byte{0x5A});
      plan_receive(shape, format, static_cast<int>(dst), views, shape.capacity_rows, receive.back().plan);
    }
  }

  Shape shape;
  TableRowFormat format;
  std::vector<Carved<SendPlan>> send;             // [ranks]
  std::vector<std::vector<std::byte>> tables;     // [destination][source, max tokens]
  std::vector<std::vector<std::int32_t>> counts;  // [source][ranks + experts]
  std::vector<Carved<ReceivePlan>> receive;       // [ranks]

 private:
  void add_sender(const Choices& choices, std::size_t src, std::size_t table_bytes) {
    send.emplace_back(shape);
    std::fill_n(send.back().memory.data(), send.back().memory.size_bytes(), std::byte{0x5A});
    SendPlan& plan = send.back().plan;
    const ConstTensorView ids = tensor_2d(choices.ids.data(), DType::i32, choices.num_tokens, shape.config.num_topk);
    ConstTensorView weights;
    const bool has_weights = !choices.weights.empty();
    if (has_weights) weights = tensor_2d(choices.weights.data(), DType::f32, choices.num_tokens, shape.config.num_topk);
    if (take_routing(shape, ids, weights, choices.num_tokens, plan)) throw std::logic_error("a case has a bad id");
    plan_send(shape, plan);
    std::vector<std::byte*> places;
    for (auto& table : tables) places.push_back(table.data() + src * table_bytes);
    write_tables(shape, format, plan, places);
    std::vector<std::int32_t> marks(idx(shape.config.num_experts));
    counts.emplace_back(idx(shape.num_ranks + shape.config.num_experts), 0x5A5A);
    write_counts(shape, plan, marks, counts.back());
  }
};

// The reference
// -------------------------------------------------------------------------------------------------------------------

/// Returns the rank that owns an expert by walking over the blocks; -1 for no expert.
inline int owner_of(const Case& c, int expert) {
  if (expert < 0) return -1;
  int first = 0;
  for (int rank = 0; rank < c.num_ranks; ++rank) {
    first += c.config.num_experts / c.num_ranks + (rank < c.config.num_experts % c.num_ranks ? 1 : 0);
    if (expert < first) return rank;
  }
  return -1;
}

inline int id_at(const Case& c, int rank, int token, int k) {
  return c.choices[idx(rank)].ids[idx(token * c.config.num_topk + k)];
}

/// The position of a rank's last chosen expert in a token's top-k, -1 if it owns none.
inline int last_choice_of(const Case& c, int rank, int token, int owner) {
  int last = -1;
  for (int k = 0; k < c.config.num_topk; ++k) last = owner_of(c, id_at(c, rank, token, k)) == owner ? k : last;
  return last;
}

/// A token's ranks in the order in which home adds them.
inline std::vector<int> ranks_of(const Case& c, int rank, int token) {
  std::map<int, int> by_last;
  for (int owner = 0; owner < c.num_ranks; ++owner) {
    const int last = last_choice_of(c, rank, token, owner);
    if (last >= 0) by_last[last] = owner;
  }
  std::vector<int> ranks;
  for (const auto& [last, owner] : by_last) ranks.push_back(owner);
  return ranks;
}

struct WireRow {
  int src;
  int token;

  bool operator==(const WireRow&) const = default;
};

/// The (source, token) pairs that have an expert on `rank`, in order.
inline std::vector<WireRow> wire_rows(const Case& c, int rank) {
  std::vector<WireRow> rows;
  for (int src = 0; src < c.num_ranks; ++src) {
    for (int token = 0; token < c.choices[idx(src)].num_tokens; ++token) {
      if (last_choice_of(c, src, token, rank) >= 0) rows.push_back({src, token});
    }
  }
  return rows;
}

inline bool has_chosen(const Case& c, const WireRow& row, int expert) {
  for (int k = 0; k < c.config.num_topk; ++k) {
    if (id_at(c, row.src, row.token, k) == expert) return true;
  }
  return false;
}

/// The rows of one expert, in order of (source rank, source token).
inline std::vector<WireRow> rows_of_expert(const Case& c, int expert) {
  std::vector<WireRow> rows;
  for (const WireRow& row : wire_rows(c, owner_of(c, expert))) {
    if (has_chosen(c, row, expert)) rows.push_back(row);
  }
  return rows;
}

inline std::vector<int> experts_of(const Case& c, int rank) {
  std::vector<int> experts;
  for (int expert = 0; expert < c.config.num_experts; ++expert) {
    if (owner_of(c, expert) == rank) experts.push_back(expert);
  }
  return experts;
}

/// What one destination's result must look like.
struct Expected {
  struct ResultRow {
    WireRow from{-1, -1};
    float weight = 0;
  };

  std::vector<std::int64_t> offsets;       // [local experts + 1], expert layouts
  std::vector<std::int32_t> wanted;        // [local experts]
  std::vector<std::int32_t> counts;        // [local experts]
  std::map<std::int64_t, ResultRow> rows;  // result row -> where it comes from; padding between groups included
  std::int64_t num_rows = 0;
  std::int64_t num_overflowed = 0;

  /// The result row of (row, expert), or -1. rank_major: expert = -1.
  [[nodiscard]] std::int64_t find(const WireRow& row, std::int64_t first, std::int64_t last) const {
    for (auto at = rows.lower_bound(first); at != rows.end() && at->first < last; ++at) {
      if (at->second.from == row) return at->first;
    }
    return -1;
  }
};

inline float weight_sum(const Case& c, const WireRow& row, int expert) {
  const Choices& choices = c.choices[idx(row.src)];
  if (choices.weights.empty()) return 0.0F;
  float sum = 0;
  bool is_first = true;
  for (int k = 0; k < c.config.num_topk; ++k) {
    if (id_at(c, row.src, row.token, k) != expert) continue;
    const float weight = choices.weights[idx(row.token * c.config.num_topk + k)];
    sum = is_first ? weight : sum + weight;
    is_first = false;
  }
  return sum;
}

inline Expected expect_rank_major(const Case& c, int rank, std::int64_t capacity) {
  Expected expected;
  const std::vector<WireRow> wire = wire_rows(c, rank);
  expected.num_rows = std::min<std::int64_t>(static_cast<std::int64_t>(wire.size()), capacity);
  expected.num_overflowed = static_cast<std::int64_t>(wire.size()) - expected.num_rows;
  for (std::int64_t row = 0; row < expected.num_rows; ++row) expected.rows[row] = {wire[idx(row)], 0.0F};
  for (const int expert : experts_of(c, rank)) {
    expected.wanted.push_back(static_cast<std::int32_t>(rows_of_expert(c, expert).size()));
    std::int32_t kept = 0;
    for (const auto& [at, row] : expected.rows) kept += has_chosen(c, row.from, expert) ? 1 : 0;
    expected.counts.push_back(kept);
  }
  return expected;
}

inline Expected expect_by_expert(const Case& c, int rank, std::int64_t capacity) {
  Expected expected;
  const bool is_padded = c.config.layout == Layout::expert_padded;
  std::int64_t offset = 0;
  std::int64_t seat = 0;
  for (const int expert : experts_of(c, rank)) {
    const std::vector<WireRow> rows = rows_of_expert(c, expert);
    const std::int64_t first = is_padded ? seat * capacity : offset;
    const std::int64_t limit = is_padded ? first + capacity : capacity;
    expected.offsets.push_back(first);
    expected.wanted.push_back(static_cast<std::int32_t>(rows.size()));
    std::int32_t kept = 0;
    std::int64_t at = first;
    for (const WireRow& row : rows) {
      if (at < limit) {
        expected.rows[at] = {row, weight_sum(c, row, expert)};
        ++kept;
      } else {
        ++expected.num_overflowed;
      }
      ++at;
    }
    expected.counts.push_back(kept);
    for (; !is_padded && at % c.config.expert_alignment != 0; ++at) {
      if (at < capacity) expected.rows[at] = {};
    }
    offset = at;
    if (is_padded) expected.num_rows += kept;
    ++seat;
  }
  expected.offsets.push_back(is_padded ? seat * capacity : offset);
  if (!is_padded) expected.num_rows = std::min(offset, capacity);
  return expected;
}

inline Expected expect(const Case& c, int rank, std::int64_t capacity) {
  return c.config.layout == Layout::rank_major ? expect_rank_major(c, rank, capacity)
                                               : expect_by_expert(c, rank, capacity);
}

/// The result row of choice k of a wire row at `rank`, -1 if it is dropped or elsewhere.
inline std::int64_t place_of(const Case& c, const Expected& expected, int rank, const WireRow& row, int k) {
  const int expert = id_at(c, row.src, row.token, k);
  if (owner_of(c, expert) != rank) return -1;
  if (c.config.layout == Layout::rank_major) return expected.find(row, 0, expected.num_rows);
  const std::size_t seat = idx(expert - experts_of(c, rank).front());
  return expected.find(row, expected.offsets[seat], expected.offsets[seat + 1]);
}

}  // namespace moebus::model::cases
