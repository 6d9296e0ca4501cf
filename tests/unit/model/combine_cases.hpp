// Combine cases: all ranks of a pretended group (one or several nodes) with their plans, rows and lanes side by side.
// Room: tests · host.

#pragma once

#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "model/combine_plan.hpp"
#include "model/relay_plan.hpp"
#include "plan_cases.hpp"

namespace moebus::model::cases {

using Bf16 = std::uint16_t;

inline float widen(Bf16 value) { return std::bit_cast<float>(static_cast<std::uint32_t>(value) << 16); }

/// Rounds to nearest even; no case has a NaN.
inline Bf16 narrow(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<Bf16>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

/// A layout of results, and what combine sends of it.
struct Layouts {
  const char* name;
  Layout layout;
  CombineRows rows;
};

inline void PrintTo(const Layouts& layouts, std::ostream* out) { *out << layouts.name; }

inline constexpr Layouts kRankMajor{"RankMajor", Layout::rank_major, CombineRows::per_rank};
inline constexpr Layouts kExpertMajor{"ExpertMajor", Layout::expert_major, CombineRows::per_rank};
inline constexpr Layouts kExpertPadded{"ExpertPadded", Layout::expert_padded, CombineRows::per_rank};
inline constexpr Layouts kMajorPerExpert{"ExpertMajorPerExpert", Layout::expert_major, CombineRows::per_expert};
inline constexpr Layouts kPaddedPerExpert{"ExpertPaddedPerExpert", Layout::expert_padded, CombineRows::per_expert};

/// A case of these layouts; every second one has a lane.
inline Case combine_case(unsigned seed, const Layouts& layouts) {
  Case c = random_case(seed, layouts.layout);
  c.config.combine_rows = layouts.rows;
  c.config.combine_lane = seed % 2 == 0;
  return c;
}

/// The same for a given number of ranks.
inline Case combine_case(unsigned seed, const Layouts& layouts, int num_ranks) {
  Case c = combine_case(seed, layouts);
  std::mt19937 random(seed + 7000);
  c.num_ranks = num_ranks;
  c.config.max_tokens_per_rank = std::min(c.config.max_tokens_per_rank, 14);
  c.config.capacity_rows = pick(random, 0, 1) == 0 ? 0 : pick(random, 1, num_ranks * c.config.max_tokens_per_rank);
  const bool has_weights = pick(random, 0, 3) != 0;
  c.choices.clear();
  for (int rank = 0; rank < num_ranks; ++rank) c.choices.push_back(random_choices(random, c.config, has_weights));
  return c;
}

/// A value by which a sum shows its order: half of them are of a few sizes far apart, so that large ones cancel and
/// small ones get lost. Signs of zero tell a sum that began with +0 from a copy.
inline Bf16 random_value(std::mt19937& random) {
  if (pick(random, 0, 9) == 0) return narrow(-0.0F);
  if (pick(random, 0, 1) == 0)
    return narrow(std::ldexp(static_cast<float>(pick(random, -100, 100)), pick(random, -9, 0)));
  return narrow(std::ldexp(pick(random, 0, 1) == 0 ? 1.0F : -1.0F, 13 * pick(random, 0, 2)));
}

/// Every rank's plans of a case, its result rows (bf16, of any sign and size) and its lane.
class Group {
 public:
  Group(const Case& c_in, const std::vector<int>& node_of_in, int levels) : c(c_in), node_of(node_of_in) {
    for (int rank = 0; rank < c.num_ranks; ++rank) {
      shapes_.push_back(make_shape(c.config, GroupFacts{Topology::of_nodes(node_of), levels, rank}));
      expected_.push_back(expect(c, rank, shapes_.back().capacity_rows));
      add_rows(rank);
    }
    send_all();
    receive_all();
  }

  /// One node, one level.
  explicit Group(const Case& c_in) : Group(c_in, std::vector<int>(idx(c_in.num_ranks), 0), 1) {}

  [[nodiscard]] const Shape& shape(int rank = 0) const { return shapes_[idx(rank)]; }

  [[nodiscard]] const SendPlan& send(int rank) const { return send_[idx(rank)].plan; }

  [[nodiscard]] const ReceivePlan& receive(int rank) const { return receive_[idx(rank)].plan; }

  [[nodiscard]] const RelayPlan& relay(int rank) const { return relay_[idx(rank)].plan; }

  [[nodiscard]] RowRange rows_from(int owner, int home) const {
    return {receive(owner).first_row[idx(home)], receive(owner).first_row[idx(home) + 1]};
  }

  /// The result row of choice k of a token, -1 if it is dropped or elsewhere.
  [[nodiscard]] std::int64_t place(int owner, const WireRow& row, int k) const {
    return place_of(c, expected_[idx(owner)], owner, row, k);
  }

  [[nodiscard]] RowsView results(int rank) const {
    return {std::as_bytes(std::span(rows_[idx(rank)])).data(), std::int64_t{c.config.hidden} * 2};
  }

  [[nodiscard]] const Bf16* result_row(int rank, std::int64_t row) const {
    return rows_[idx(rank)].data() + row * c.config.hidden;
  }

  /// The value that an owner's lane has for (result row, choice).
  static float lane_value(int rank, std::int64_t row, int k) {
    return static_cast<float>(rank * 100'000 + row * 32 + k + 1);
  }

  [[nodiscard]] LaneView lane(int rank) const {
    if (!c.config.combine_lane) return {};
    return {std::as_bytes(std::span(lanes_[idx(rank)])).data(),
            static_cast<std::int64_t>(sizeof(float)) * c.config.num_topk};
  }

  [[nodiscard]] bool has_weights() const {
    return std::any_of(c.choices.begin(), c.choices.end(), [](const Choices& ch) { return !ch.weights.empty(); });
  }

  Case c;
  std::vector<int> node_of;  // [ranks]

 private:
  void add_rows(int rank) {
    std::mt19937 random(c.seed * 64 + static_cast<unsigned>(rank));
    rows_.emplace_back();
    lanes_.emplace_back();
    for (std::int64_t row = 0; row < shape(rank).result_rows; ++row) {
      for (int column = 0; column < c.config.hidden; ++column) {
        rows_.back().push_back(random_value(random));
      }
      for (int k = 0; k < c.config.num_topk; ++k) lanes_.back().push_back(lane_value(rank, row, k));
    }
  }

  void send_all() {
    const TableRowFormat format = table_row_format(c.config.num_topk);
    const std::size_t table_bytes = idx(c.config.max_tokens_per_rank) * format.stride_bytes;
    tables_.assign(idx(c.num_ranks), std::vector<std::byte>(idx(c.num_ranks) * table_bytes, std::byte{0xEE}));
    for (int src = 0; src < c.num_ranks; ++src) {
      const Choices& chosen = c.choices[idx(src)];
      send_.emplace_back(shape(src));
      SendPlan& plan = send_.back().plan;
      const auto ids = tensor_2d(chosen.ids.data(), DType::i32, chosen.num_tokens, c.config.num_topk);
      ConstTensorView weights;
      if (!chosen.weights.empty()) {
        weights = tensor_2d(chosen.weights.data(), DType::f32, chosen.num_tokens, c.config.num_topk);
      }
      if (take_routing(shape(src), ids, weights, chosen.num_tokens, plan))
        throw std::logic_error("a case has a bad id");
      plan_send(shape(src), plan);
      std::vector<std::byte*> places;
      for (auto& table : tables_) places.push_back(table.data() + idx(src) * table_bytes);
      write_tables(shape(src), format, plan, places);
    }
  }

  /// The table of `src` that concerns `dst`: its own, or the one that lies at the gateway.
  [[nodiscard]] TableView table(int src, int dst) const {
    const TableRowFormat format = table_row_format(c.config.num_topk);
    const Shape& s = shape(dst);
    const int hop = s.is_relayed(src, dst) ? s.topology.gateway(src, s.topology.node_of(dst)) : dst;
    const std::size_t table_bytes = idx(c.config.max_tokens_per_rank) * format.stride_bytes;
    return {tables_[idx(hop)].data() + idx(src) * table_bytes, send(src).num_rows_to[idx(hop)], send(src).has_weights};
  }

  void receive_all() {
    const TableRowFormat format = table_row_format(c.config.num_topk);
    for (int dst = 0; dst < c.num_ranks; ++dst) {
      std::vector<TableView> views;
      for (int src = 0; src < c.num_ranks; ++src) views.push_back(table(src, dst));
      receive_.emplace_back(shape(dst));
      plan_receive(shape(dst), format, dst, views, shape(dst).capacity_rows, receive_.back().plan);
      relay_.emplace_back(shape(dst));
      if (shape(dst).has_gateways) plan_relay(shape(dst), format, views, relay_.back().plan);
    }
  }

  std::vector<Shape> shapes_;                   // [ranks]
  std::vector<Expected> expected_;              // [ranks]
  std::vector<std::vector<Bf16>> rows_;         // [ranks][result rows, hidden]
  std::vector<std::vector<float>> lanes_;       // [ranks][result rows, K]
  std::vector<std::vector<std::byte>> tables_;  // [hop][source, max tokens]
  std::vector<Carved<SendPlan>> send_;          // [ranks]
  std::vector<Carved<ReceivePlan>> receive_;    // [ranks]
  std::vector<Carved<RelayPlan>> relay_;        // [ranks]
};

/// Sum terms with room for everything.
struct Terms {
  Terms(std::size_t outputs, std::size_t topk)
      : first(outputs + 1), term(outputs * topk), weight(outputs * topk), output_row(outputs) {}

  SumTerms view() { return {first, term, weight, output_row}; }

  std::vector<std::int32_t> first;
  std::vector<const std::byte*> term;
  std::vector<float> weight;
  std::vector<std::byte*> output_row;
};

/// What combine gives to all ranks.
struct Combined {
  std::vector<std::vector<Bf16>> tokens;            // [ranks][tokens, hidden]
  std::vector<std::vector<float>> lanes;            // [ranks][tokens, K], empty = no lane
  std::vector<std::vector<std::uint64_t>> missing;  // [ranks][tokens]
};

}  // namespace moebus::model::cases
