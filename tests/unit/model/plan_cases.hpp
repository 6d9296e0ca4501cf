// Plan cases: random shapes, nodes, placements and routings with all ranks' plans made side by side, and an obvious
// quadratic reference of what they must say. Shares no arithmetic with src/model. Room: tests · host.

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
#include "model/relay_plan.hpp"
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
  std::vector<Choices> choices;         // [ranks]
  std::vector<int> node_of;             // [ranks] empty = one node and one level, else two levels
  std::vector<std::int32_t> placement;  // [seats] expert or -1; empty = none given

  [[nodiscard]] std::string text() const {
    std::ostringstream out;
    out << "seed " << seed << ": " << num_ranks << " ranks, " << config.num_experts << " experts, top-"
        << config.num_topk << ", " << config.max_tokens_per_rank << " tokens at most, " << to_string(config.layout)
        << ", alignment " << config.expert_alignment << ", capacity " << config.capacity_rows << ", "
        << to_string(config.combine_rows) << ", " << to_string(config.inter_node);
    out << ", nodes";
    for (const int node : node_of) out << ' ' << node;
    out << ", " << config.seats_per_rank << " seats:";
    for (const std::int32_t expert : placement) out << ' ' << expert;
    return out.str();
  }

  [[nodiscard]] Shape shape_at(int rank) const {
    GroupFacts group = GroupFacts::one_node(num_ranks);
    if (!node_of.empty()) group = {Topology::of_nodes(node_of), 2, 0};
    group.rank = rank;
    const Placement given{placement};
    return make_shape(config, group, placement.empty() ? nullptr : &given);
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

/// Draws seats and who sits in them: every expert somewhere, most of them more than once, some seats empty.
inline void add_placement(Case& c, std::mt19937& random) {
  const int experts = c.config.num_experts;
  c.config.seats_per_rank = (experts + c.num_ranks - 1) / c.num_ranks + pick(random, 0, 2);
  std::vector<std::vector<std::int32_t>> seats(idx(c.num_ranks));
  for (int expert = 0; expert < experts; ++expert) {
    // Ranks are filled evenly, so there is always one with a seat to spare.
    seats[idx((expert + c.num_ranks - 1) % c.num_ranks)].push_back(expert);
  }
  for (std::vector<std::int32_t>& at : seats) {
    while (at.size() < idx(c.config.seats_per_rank)) {
      const std::int32_t expert = pick(random, -1, experts - 1);
      at.push_back(std::find(at.begin(), at.end(), expert) == at.end() ? expert : -1);
    }
    std::shuffle(at.begin(), at.end(), random);
    c.placement.insert(c.placement.end(), at.begin(), at.end());
  }
}

/// The same over several nodes, most often with gateways; and now and then with a placement.
inline Case random_node_case(unsigned seed, Layout layout) {
  Case c = random_case(seed, layout);
  std::mt19937 random(seed + 90'000);
  static const std::vector<std::vector<int>> kNodes{{0, 0, 0, 1}, {5, 3, 4, 4}, {0, 1, 0, 1}, {1, 0}, {0, 1, 1, 1, 0}};
  const auto drawn = idx(pick(random, 0, static_cast<int>(kNodes.size())));
  if (drawn < kNodes.size()) {
    c.node_of = kNodes[drawn];
  } else {
    for (int rank = 0; rank < c.num_ranks; ++rank) c.node_of.push_back(pick(random, 0, 3));
  }
  c.num_ranks = static_cast<int>(c.node_of.size());
  c.config.inter_node = pick(random, 0, 5) == 0 ? InterNode::direct : InterNode::gateway;
  if (pick(random, 0, 1) == 0) add_placement(c, random);
  const bool has_weights = pick(random, 0, 3) != 0;
  c.choices.clear();
  for (int rank = 0; rank < c.num_ranks; ++rank) c.choices.push_back(random_choices(random, c.config, has_weights));
  return c;
}

/// Every rank's plans of a case, made by the functions under test, tables written as the engine does.
struct Plans {
  explicit Plans(const Case& c) : shape(c.shape_at(0)), format(table_row_format(c.config.num_topk)) {
    table_bytes = idx(c.config.max_tokens_per_rank) * format.stride_bytes;
    const std::size_t ranks = idx(c.num_ranks);
    tables.assign(ranks, std::vector<std::byte>(ranks * table_bytes, std::byte{0xEE}));
    for (int rank = 0; rank < c.num_ranks; ++rank) shapes.push_back(c.shape_at(rank));
    for (std::size_t src = 0; src < ranks; ++src) add_sender(c.choices[src], src);
    for (int dst = 0; dst < c.num_ranks; ++dst) add_receiver(dst);
  }

  Shape shape;                // of rank 0: on all ranks the same, but for rank and hops
  std::vector<Shape> shapes;  // [ranks]
  TableRowFormat format;
  std::size_t table_bytes = 0;
  std::vector<Carved<SendPlan>> send;             // [ranks]
  std::vector<std::vector<std::byte>> tables;     // [hop][source, max tokens]
  std::vector<std::vector<std::int32_t>> counts;  // [source][ranks + seats]
  std::vector<Carved<ReceivePlan>> receive;       // [ranks]
  std::vector<Carved<RelayPlan>> relay;           // [ranks]

 private:
  void add_sender(const Choices& choices, std::size_t src) {
    const Shape& here = shapes[src];
    send.emplace_back(here);
    std::fill_n(send.back().memory.data(), send.back().memory.size_bytes(), std::byte{0x5A});
    SendPlan& plan = send.back().plan;
    const ConstTensorView ids = tensor_2d(choices.ids.data(), DType::i32, choices.num_tokens, here.config.num_topk);
    ConstTensorView weights;
    const bool has_weights = !choices.weights.empty();
    if (has_weights) weights = tensor_2d(choices.weights.data(), DType::f32, choices.num_tokens, here.config.num_topk);
    if (take_routing(here, ids, weights, choices.num_tokens, plan)) throw std::logic_error("a case has a bad id");
    plan_send(here, plan);
    std::vector<std::byte*> places;
    for (auto& table : tables) places.push_back(table.data() + src * table_bytes);
    write_tables(here, format, plan, places);
    std::vector<std::int32_t> marks(idx(here.num_seats));
    counts.emplace_back(idx(here.num_ranks + here.num_seats), 0x5A5A);
    write_counts(here, plan, marks, counts.back());
  }

  /// Tables of relayed sources are read as the gateway got them.
  void add_receiver(int dst) {
    const Shape& here = shapes[idx(dst)];
    std::vector<TableView> views;
    for (int src = 0; src < here.num_ranks; ++src) {
      const SendPlan& plan = send[idx(src)].plan;
      const int node = here.topology.node_of(dst);
      const std::size_t hop = idx(here.is_relayed(src, dst) ? here.topology.gateway(src, node) : dst);
      views.push_back({tables[hop].data() + idx(src) * table_bytes, plan.num_rows_to[hop], plan.has_weights});
    }
    receive.emplace_back(here);
    relay.emplace_back(here);
    // Stale content of an earlier call must not shine through.
    std::fill_n(receive.back().memory.data(), receive.back().memory.size_bytes(), std::byte{0x5A});
    std::fill_n(relay.back().memory.data(), relay.back().memory.size_bytes(), std::byte{0x5A});
    plan_receive(here, format, dst, views, here.capacity_rows, receive.back().plan);
    plan_relay(here, format, views, relay.back().plan);
  }
};

// The reference
// -------------------------------------------------------------------------------------------------------------------

inline int num_seats(const Case& c) {
  return c.config.seats_per_rank > 0 ? c.config.seats_per_rank * c.num_ranks : c.config.num_experts;
}

/// Returns the rank that holds a seat by walking over the ranks; -1 for no seat.
inline int owner_of(const Case& c, int seat) {
  if (seat < 0) return -1;
  int first = 0;
  for (int rank = 0; rank < c.num_ranks; ++rank) {
    const int block = c.config.num_experts / c.num_ranks + (rank < c.config.num_experts % c.num_ranks ? 1 : 0);
    first += c.config.seats_per_rank > 0 ? c.config.seats_per_rank : block;
    if (seat < first) return rank;
  }
  return -1;
}

/// Returns the seat that an expert's row of a token takes.
inline int seat_for(const Case& c, int rank, int token, int expert) {
  if (expert < 0 || c.placement.empty()) return expert;
  std::vector<int> seats;
  for (int seat = 0; seat < num_seats(c); ++seat) {
    if (c.placement[idx(seat)] == expert) seats.push_back(seat);
  }
  for (const int seat : seats) {
    if (owner_of(c, seat) == rank) return seat;
  }
  return seats.at(idx(rank + token) % seats.size());
}

/// The seat of choice k of a token, -1 if it has none.
inline int id_at(const Case& c, int rank, int token, int k) {
  return seat_for(c, rank, token, c.choices[idx(rank)].ids[idx(token * c.config.num_topk + k)]);
}

/// The ranks of a rank's node, ascending.
inline std::vector<int> neighbours_of(const Case& c, int rank) {
  std::vector<int> ranks;
  for (int other = 0; other < c.num_ranks; ++other) {
    if (c.node_of.empty() || c.node_of[idx(other)] == c.node_of[idx(rank)]) ranks.push_back(other);
  }
  return ranks;
}

inline bool is_relayed(const Case& c, int src, int dst) {
  if (c.node_of.empty() || c.config.inter_node == InterNode::direct) return false;
  return c.node_of[idx(src)] != c.node_of[idx(dst)];
}

/// The rank that `src` sends rows for `owner` to.
inline int hop_of(const Case& c, int src, int owner) {
  if (!is_relayed(c, src, owner)) return owner;
  const std::vector<int> home = neighbours_of(c, src);
  const auto index = idx(std::find(home.begin(), home.end(), src) - home.begin());
  const std::vector<int> away = neighbours_of(c, owner);
  return away[index % away.size()];
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

/// A token's hops in that order: of those with the same hop the last counts.
inline std::vector<int> hops_of(const Case& c, int rank, int token) {
  std::vector<int> hops;
  for (const int owner : ranks_of(c, rank, token)) {
    const int hop = hop_of(c, rank, owner);
    hops.erase(std::remove(hops.begin(), hops.end(), hop), hops.end());
    hops.push_back(hop);
  }
  return hops;
}

/// Where `rank` puts its row of a token for combine: at home, or at the gateway that adds up.
inline int home_slot_of(const Case& c, int src, int token, int rank) {
  std::vector<int> order = hops_of(c, src, token);
  int at = hop_of(c, src, rank);
  if (is_relayed(c, src, rank) && c.config.combine_rows == CombineRows::per_rank) {
    const std::vector<int> node = neighbours_of(c, rank);
    order = ranks_of(c, src, token);
    std::erase_if(order, [&](int other) { return std::find(node.begin(), node.end(), other) == node.end(); });
    at = rank;
  }
  return static_cast<int>(std::find(order.begin(), order.end(), at) - order.begin());
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

inline bool has_chosen(const Case& c, const WireRow& row, int seat) {
  for (int k = 0; k < c.config.num_topk; ++k) {
    if (id_at(c, row.src, row.token, k) == seat) return true;
  }
  return false;
}

/// The rows of one seat, in order of (source rank, source token).
inline std::vector<WireRow> rows_of_seat(const Case& c, int seat) {
  std::vector<WireRow> rows;
  for (const WireRow& row : wire_rows(c, owner_of(c, seat))) {
    if (has_chosen(c, row, seat)) rows.push_back(row);
  }
  return rows;
}

inline std::vector<int> seats_of(const Case& c, int rank) {
  std::vector<int> seats;
  for (int seat = 0; seat < num_seats(c); ++seat) {
    if (owner_of(c, seat) == rank) seats.push_back(seat);
  }
  return seats;
}

/// What one destination's result must look like.
struct Expected {
  struct ResultRow {
    WireRow from{-1, -1};
    float weight = 0;
  };

  std::vector<std::int64_t> offsets;       // [local seats + 1], expert layouts
  std::vector<std::int32_t> wanted;        // [local seats]
  std::vector<std::int32_t> counts;        // [local seats]
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

inline float weight_sum(const Case& c, const WireRow& row, int seat) {
  const Choices& choices = c.choices[idx(row.src)];
  if (choices.weights.empty()) return 0.0F;
  float sum = 0;
  bool is_first = true;
  for (int k = 0; k < c.config.num_topk; ++k) {
    if (id_at(c, row.src, row.token, k) != seat) continue;
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
  for (const int seat : seats_of(c, rank)) {
    expected.wanted.push_back(static_cast<std::int32_t>(rows_of_seat(c, seat).size()));
    std::int32_t kept = 0;
    for (const auto& [at, row] : expected.rows) kept += has_chosen(c, row.from, seat) ? 1 : 0;
    expected.counts.push_back(kept);
  }
  return expected;
}

inline Expected expect_by_expert(const Case& c, int rank, std::int64_t capacity) {
  Expected expected;
  const bool is_padded = c.config.layout == Layout::expert_padded;
  std::int64_t offset = 0;
  std::int64_t group = 0;
  for (const int seat : seats_of(c, rank)) {
    const std::vector<WireRow> rows = rows_of_seat(c, seat);
    const std::int64_t first = is_padded ? group * capacity : offset;
    const std::int64_t limit = is_padded ? first + capacity : capacity;
    expected.offsets.push_back(first);
    expected.wanted.push_back(static_cast<std::int32_t>(rows.size()));
    std::int32_t kept = 0;
    std::int64_t at = first;
    for (const WireRow& row : rows) {
      if (at < limit) {
        expected.rows[at] = {row, weight_sum(c, row, seat)};
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
    ++group;
  }
  expected.offsets.push_back(is_padded ? group * capacity : offset);
  if (!is_padded) expected.num_rows = std::min(offset, capacity);
  return expected;
}

inline Expected expect(const Case& c, int rank, std::int64_t capacity) {
  return c.config.layout == Layout::rank_major ? expect_rank_major(c, rank, capacity)
                                               : expect_by_expert(c, rank, capacity);
}

/// The result row of choice k of a wire row at `rank`, -1 if it is dropped or elsewhere.
inline std::int64_t place_of(const Case& c, const Expected& expected, int rank, const WireRow& row, int k) {
  const int seat = id_at(c, row.src, row.token, k);
  if (owner_of(c, seat) != rank) return -1;
  if (c.config.layout == Layout::rank_major) return expected.find(row, 0, expected.num_rows);
  const std::size_t group = idx(seat - seats_of(c, rank).front());
  return expected.find(row, expected.offsets[group], expected.offsets[group + 1]);
}

}  // namespace moebus::model::cases
