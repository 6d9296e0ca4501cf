// Whatever other ranks write into this rank's window (tables, counts, grants, masks of combined rows): every index that
// plans make of it stays inside what the shape allows. Numbers of rows and grants come as the engine reads them.

#include <array>
#include <memory>
#include <vector>

#include "model/combine_plan.hpp"
#include "model/layout.hpp"
#include "model/receive_plan.hpp"
#include "model/relay_plan.hpp"
#include "model/send_plan.hpp"
#include "tests/fuzz/fuzz_input.hpp"

namespace moebus::model {
namespace {

using base::idx;
using fuzz::FuzzInput;

constexpr std::int32_t kBlock = 16;  // wire rows, or home tokens, looked at together
constexpr std::int64_t kRound = 7;   // rows, or home tokens, of a round

#define MOEBUS_EXPECT_BELOW(value, limit) MOEBUS_ASSERT((value) >= 0 && (value) < (limit))

/// Memory whose every byte belongs to it, so that a sanitizer sees what goes beyond.
class Bytes {
 public:
  explicit Bytes(std::size_t size) : bytes_(std::make_unique<std::byte[]>(size)), size_(size) {}

  [[nodiscard]] std::byte* data() const noexcept { return bytes_.get(); }

  [[nodiscard]] std::span<std::byte> all() const noexcept { return {bytes_.get(), size_}; }

  [[nodiscard]] bool holds(const std::byte* row, std::size_t row_bytes) const noexcept {
    return row >= data() && row + row_bytes <= data() + size_;
  }

 private:
  std::unique_ptr<std::byte[]> bytes_;
  std::size_t size_;
};

template <class Plan>
struct Carved {
  explicit Carved(const Shape& shape) : memory(bytes_of(shape)) {
    base::Carver carver(memory.data());
    plan.carve(carver, shape);
  }

  static std::size_t bytes_of(const Shape& shape) {
    base::Carver counter;
    Plan counted;
    counted.carve(counter, shape);
    return counter.used_bytes();
  }

  Bytes memory;
  Plan plan;
};

ExchangeConfig take_config(FuzzInput& input) {
  ExchangeConfig config;
  config.num_experts = input.pick(1, 12);
  config.num_topk = input.flip() ? 8 : input.pick(1, 6);
  config.hidden = 4;
  config.max_tokens_per_rank = input.pick(1, 80);
  config.layout = std::array{Layout::rank_major, Layout::expert_major, Layout::expert_padded}[idx(input.pick(0, 2))];
  config.path = input.flip() ? Path::throughput : Path::latency;
  config.delivery = input.flip() ? Delivery::direct : Delivery::staged;
  if (config.layout == Layout::expert_major) config.expert_alignment = input.pick(1, 4);
  if (input.flip()) config.capacity_rows = input.pick(1, 90);
  if (config.layout != Layout::rank_major && input.flip()) config.combine_rows = CombineRows::per_expert;
  config.combine_lane = input.flip();
  config.inter_node = input.flip() ? InterNode::gateway : InterNode::direct;
  return config;
}

GroupFacts take_group(FuzzInput& input) {
  static const std::vector<std::vector<int>> kNodes{{0}, {0, 0, 0}, {0, 1}, {0, 0, 1}, {0, 1, 1, 1}, {0, 1, 0, 1, 2}};
  const std::vector<int>& node_of = kNodes[idx(input.pick(0, 5))];
  return {Topology::of_nodes(node_of), input.pick(1, 2), input.pick(0, static_cast<int>(node_of.size()) - 1)};
}

/// What lies in one rank's window, and its own routing.
class Window {
 public:
  Window(const Shape& shape, FuzzInput& input)
      : shape_(shape), format_(table_row_format(shape.config.num_topk)), send_(shape), receive_(shape), relay_(shape) {
    take_own_routing(input);
    const bool is_valid_at_first = input.flip();
    const std::size_t table_bytes = idx(shape.config.max_tokens_per_rank) * format_.stride_bytes;
    for (int src = 0; src < shape.num_ranks; ++src) {
      tables_.emplace_back(table_bytes);
      views_.push_back({tables_.back().data(), input.take<std::int32_t>(), input.flip()});
      const auto num_tokens = input.take<std::int32_t>();
      receive_.plan.num_tokens_of[idx(src)] = std::clamp(num_tokens, 0, shape.config.max_tokens_per_rank);
      if (is_valid_at_first) views_.back().num_rows = write_valid_table(src);
      if (is_valid_at_first && src == shape.rank) write_own_table();
    }
    if (!is_valid_at_first) {
      for (const Bytes& table : tables_) input.fill(table.all());
      return;
    }
    for (int edits = input.pick(0, 8); edits > 0; --edits) {
      const auto table = tables_[idx(input.pick(0, shape.num_ranks - 1))].all();
      const std::size_t at = input.take<std::uint16_t>() % (table.size() / sizeof(std::int32_t));
      const auto value = input.take<std::int32_t>();
      std::memcpy(table.data() + at * sizeof(value), &value, sizeof(value));
    }
  }

  void check(FuzzInput& input) {
    plan_receive(shape_, format_, shape_.rank, views_, shape_.capacity_rows, receive_.plan);
    plan_relay(shape_, format_, views_, relay_.plan);
    check_receive_plan();
    for (int src = 0; src < shape_.num_ranks; ++src) check_moves(src);
    check_owner(input);
    check_home(input);
    check_relay(input);
    check_region(input);
  }

 private:
  [[nodiscard]] std::int64_t max_tokens() const noexcept { return shape_.config.max_tokens_per_rank; }

  [[nodiscard]] std::size_t topk() const noexcept { return idx(shape_.config.num_topk); }

  void take_own_routing(FuzzInput& input) {
    std::vector<std::int32_t> ids(idx(input.pick(0, shape_.config.max_tokens_per_rank)) * topk());
    for (std::int32_t& id : ids) id = input.pick(-1, shape_.config.num_experts - 1);
    const auto num_tokens = static_cast<std::int32_t>(ids.size() / topk());
    const auto bad = take_routing(
        shape_, tensor_2d(ids.data(), DType::i32, num_tokens, shape_.config.num_topk), {}, num_tokens, send_.plan);
    MOEBUS_ASSERT(!bad);
    plan_send(shape_, send_.plan);
  }

  std::int32_t write_valid_table(int src) {
    const auto num_rows = shape_.config.max_tokens_per_rank - src % 2 * shape_.config.max_tokens_per_rank / 2;
    for (std::int32_t row = 0; row < num_rows; ++row) {
      std::byte* at = tables_.back().data() + idx(row) * format_.stride_bytes;
      std::memcpy(at, &row, sizeof(row));
      for (std::size_t k = 0; k < topk(); ++k) {
        const std::int32_t seat = (row * 5 + static_cast<std::int32_t>(k) * 3 + src) % shape_.num_seats;
        std::memcpy(at + format_.ids_offset_bytes + k * sizeof(seat), &seat, sizeof(seat));
      }
    }
    return num_rows;
  }

  void write_own_table() {
    std::vector<Bytes> elsewhere;
    std::vector<std::byte*> places;
    for (int dst = 0; dst < shape_.num_ranks; ++dst) {
      elsewhere.emplace_back(tables_.back().all().size());
      places.push_back(dst == shape_.rank ? tables_.back().data() : elsewhere.back().data());
    }
    write_tables(shape_, format_, send_.plan, places);
    views_.back().num_rows = send_.plan.num_rows_to[idx(shape_.rank)];
  }

  void check_receive_plan() const {
    const ReceivePlan& plan = receive_.plan;
    const bool has_experts = shape_.config.layout != Layout::rank_major;
    const int num_local = shape_.placement.num_local(shape_.rank);
    MOEBUS_ASSERT(plan.num_wire_rows(shape_) <= shape_.max_recv_rows);
    MOEBUS_ASSERT(plan.num_rows >= 0 && plan.num_rows <= shape_.result_rows);
    for (int src = 0; src < shape_.num_ranks; ++src) {
      const bool is_summed_on_its_way = shape_.has_partial_sums && shape_.is_relayed(src, shape_.rank);
      const int num_slots = is_summed_on_its_way ? shape_.relay_slots_per_token : shape_.combine_slots_per_token;
      std::int32_t before = -1;
      for (std::int32_t row = plan.first_row[idx(src)]; row < plan.first_row[idx(src) + 1]; ++row) {
        MOEBUS_ASSERT(plan.token[idx(row)] > before && plan.token[idx(row)] < max_tokens());
        MOEBUS_EXPECT_BELOW(plan.home_slot[idx(row)], num_slots);
        before = plan.token[idx(row)];
        for (std::size_t k = idx(row) * topk(); k < idx(row + 1) * topk(); ++k) {
          MOEBUS_ASSERT(plan.choice[k] >= -1 && plan.choice[k] < num_local);
          if (has_experts) MOEBUS_ASSERT(plan.position[k] >= -1 && plan.position[k] < shape_.result_rows);
        }
      }
    }
    for (int seat = 0; seat < num_local; ++seat) {
      MOEBUS_ASSERT(plan.counts[idx(seat)] >= 0 && plan.counts[idx(seat)] <= plan.wanted[idx(seat)]);
    }
  }

  void check_all(const std::vector<RowMove>& moves,
                 std::size_t num,
                 std::int64_t src_rows,
                 std::int64_t dst_rows) const {
    MOEBUS_ASSERT(num <= moves.size());
    for (std::size_t i = 0; i < num; ++i) {
      MOEBUS_EXPECT_BELOW(moves[i].src, src_rows);
      MOEBUS_EXPECT_BELOW(moves[i].dst, dst_rows);
    }
  }

  void check_moves(int src) const {
    const ReceivePlan& plan = receive_.plan;
    const std::int32_t first = plan.first_row[idx(src)];
    const std::int32_t last = plan.first_row[idx(src) + 1];
    std::vector<RowMove> moves(idx(max_tokens()) * idx(max_copies(shape_)));
    check_all(moves, list_moves(shape_, plan, first, last, MoveSource::token, moves), max_tokens(), shape_.result_rows);
    check_all(moves, list_fan_out(shape_, plan, first, last, moves), shape_.result_rows, shape_.result_rows);
    for (std::int64_t begin = 0; begin < plan.num_table_rows[idx(src)]; begin += kRound) {
      const RowRange rows = rows_of_round(plan, src, begin, begin + kRound);
      std::vector<RowMove> some(idx(kRound) * idx(max_copies(shape_)));
      check_all(some,
                list_moves(shape_, plan, rows.first, rows.last, MoveSource::round, some, begin),
                kRound,
                shape_.result_rows);
    }
  }

  [[nodiscard]] std::size_t rows_sent_each() const noexcept {
    return shape_.config.combine_rows == CombineRows::per_expert ? topk() : 1;
  }

  /// Combined rows for tokens of every home, in rounds, into slots there or at its gateway here.
  void check_owner(FuzzInput& input) const {
    const bool has_lane = input.flip();
    for (int home = 0; home < shape_.num_ranks; ++home) {
      const bool is_summed_on_its_way = shape_.has_partial_sums && shape_.is_relayed(home, shape_.rank);
      const int num_slots = is_summed_on_its_way ? shape_.relay_slots_per_token : shape_.combine_slots_per_token;
      const Bytes slots(idx(num_slots) * idx(kRound) * shape_.combine_row.stride_bytes);
      for (std::int64_t first = 0; first < max_tokens(); first += kRound) {
        const RowRange rows = rows_of_tokens(receive_.plan, home, first, first + kRound);
        MOEBUS_ASSERT(rows.first <= rows.last && rows.last - rows.first <= kRound);
        check_owner_block(rows, {slots.data(), kRound, first}, slots, num_slots, has_lane);
      }
    }
  }

  void check_owner_block(
      RowRange rows, const HomeSlots& place, const Bytes& slots, int num_slots, bool has_lane) const {
    const CombineRowFormat& format = shape_.combine_row;
    const std::size_t most = idx(rows.last - rows.first) * rows_sent_each();
    std::vector<std::int32_t> slot(most);
    std::vector<std::uint8_t> has_payload(most);
    const std::size_t num = list_owner_slots(shape_, receive_.plan, rows, place, slot, has_payload);
    MOEBUS_ASSERT(num <= most);
    slot.resize(num);
    for (const std::int32_t index : slot) MOEBUS_EXPECT_BELOW(index, num_slots * kRound);
    std::vector<RowMove> moves(most);
    const bool moves_rows = rows_sent_each() > 1 || shape_.config.layout == Layout::rank_major;
    if (moves_rows) {
      check_all(
          moves, list_owner_moves(shape_, receive_.plan, rows, slot, moves), shape_.result_rows, num_slots * kRound);
    } else if (shape_.config.combine_rows == CombineRows::per_rank) {
      check_owner_sums(rows, slot, slots);
    }
    const Bytes lane(idx(shape_.result_rows) * topk() * sizeof(float));
    const auto lane_stride = static_cast<std::int64_t>(topk() * sizeof(float));
    const bool gives_lane = has_lane && format.lane_bytes > 0;
    write_tails(
        shape_, receive_.plan, rows, gives_lane ? LaneView{lane.data(), lane_stride} : LaneView{}, slots.data(), slot);
  }

  void check_owner_sums(RowRange rows, const std::vector<std::int32_t>& slot, const Bytes& slots) const {
    const CombineRowFormat& format = shape_.combine_row;
    const Bytes results(idx(shape_.result_rows) * format.payload_bytes);
    const RowsView view{results.data(), static_cast<std::int64_t>(format.payload_bytes)};
    const std::vector<float> weights(idx(max_tokens()) * topk());
    Terms terms(idx(rows.last - rows.first), topk());
    list_owner_sums(shape_, receive_.plan, rows, view, weights.data(), slots.data(), slot, terms.lists);
    check_terms(terms, slot.size(), results, nullptr, &slots);
  }

  struct Terms {
    Terms(std::size_t num_outputs, std::size_t most_terms)
        : first(num_outputs + 1), term(num_outputs * most_terms), weight(term.size()), output(num_outputs) {
      lists = {first, term, weight, output};
    }

    std::vector<std::int32_t> first;
    std::vector<const std::byte*> term;
    std::vector<float> weight;
    std::vector<std::byte*> output;
    SumTerms lists;
  };

  /// Every term lies in `one` or in `other`, every output (unless null) in `outputs`.
  void check_terms(
      const Terms& terms, std::size_t num_outputs, const Bytes& one, const Bytes* other, const Bytes* outputs) const {
    const std::size_t payload = shape_.combine_row.payload_bytes;
    MOEBUS_ASSERT(idx(terms.first[num_outputs]) <= terms.term.size());
    for (std::size_t i = 0; i < idx(terms.first[num_outputs]); ++i) {
      MOEBUS_ASSERT(one.holds(terms.term[i], payload) || (other != nullptr && other->holds(terms.term[i], payload)));
    }
    for (std::size_t i = 0; outputs != nullptr && i < num_outputs; ++i) {
      MOEBUS_ASSERT(outputs->holds(terms.output[i], payload));
    }
  }

  /// Sums of this rank's own tokens, whose slots hold anything.
  void check_home(FuzzInput& input) const {
    const CombineRowFormat& format = shape_.combine_row;
    const Bytes slots(idx(shape_.combine_slots_per_token) * idx(max_tokens()) * format.stride_bytes);
    input.fill(slots.all());
    const Bytes results(idx(shape_.result_rows) * format.payload_bytes);
    const RowsView view{results.data(), static_cast<std::int64_t>(format.payload_bytes)};
    const HomeSlots place{slots.data(), max_tokens(), 0};
    const auto num_partials = idx(partial_rows_per_token(shape_));
    const Bytes partials(idx(kBlock) * num_partials * format.payload_bytes);
    const PartialSums partial{partials.data(), static_cast<std::int64_t>(format.payload_bytes)};
    const std::vector<float> weights(idx(max_tokens()) * topk());
    for (std::int64_t first = 0; first < send_.plan.num_tokens; first += kBlock) {
      const std::int64_t last = std::min<std::int64_t>(first + kBlock, send_.plan.num_tokens);
      Terms inner(idx(kBlock) * std::max<std::size_t>(num_partials, 1), topk());
      const std::int64_t num_inner =
          list_partial_sums(shape_, send_.plan, receive_.plan, first, last, view, place, partial, inner.lists);
      if (num_inner > 0) check_terms(inner, idx(num_inner), slots, &results, &partials);
      Terms terms(idx(kBlock), std::max(topk(), num_partials));
      list_home_sums(shape_, send_.plan, receive_.plan, first, last, view, weights.data(), place, partial, terms.lists);
      if (num_partials > 0) {
        check_terms(terms, idx(last - first), slots, &partials, nullptr);
      } else {
        check_terms(terms, idx(last - first), slots, &results, nullptr);
      }
    }
    check_home_tails(input, place);
  }

  void check_home_tails(FuzzInput& input, const HomeSlots& place) const {
    const Bytes lane(idx(shape_.result_rows) * topk() * sizeof(float));
    std::vector<float> lane_out(idx(max_tokens()) * topk());
    std::vector<std::uint64_t> missing(idx(max_tokens()));
    const bool has_lane = shape_.combine_row.lane_bytes > 0 && input.flip();
    const std::int64_t num =
        read_tails(shape_,
                   send_.plan,
                   receive_.plan,
                   0,
                   send_.plan.num_tokens,
                   has_lane ? LaneView{lane.data(), static_cast<std::int64_t>(topk() * sizeof(float))} : LaneView{},
                   place,
                   has_lane ? lane_out.data() : nullptr,
                   missing.data());
    MOEBUS_ASSERT(num >= 0 && num <= send_.plan.num_tokens);
  }

  void check_relay(FuzzInput& input) const {
    const CombineRowFormat& format = shape_.combine_row;
    const RelayPlan& plan = relay_.plan;
    const Bytes slots(idx(shape_.relay_slots_per_token) * idx(kRound) * format.stride_bytes);
    input.fill(slots.all());
    for (int index = 0; index < plan.num_served(); ++index) {
      const std::int32_t begin = plan.first_row[idx(index)];
      const std::int32_t end = plan.first_row[idx(index) + 1];
      MOEBUS_ASSERT(begin <= end && end - begin <= max_tokens());
      for (int dst = 0; dst < shape_.num_ranks; ++dst) {
        std::vector<RowMove> moves(idx(max_tokens()));
        const auto list = [&](MoveSource source) {
          return list_forwards(plan, index, begin, end, dst, source, 0, moves);
        };
        check_all(moves, list(MoveSource::token), max_tokens(), max_tokens());
        check_all(moves, list(MoveSource::round), end - begin, end - begin);
      }
      for (std::int64_t first = 0; shape_.has_partial_sums && first < max_tokens(); first += kRound) {
        check_relay_sums(relay_rows_of_tokens(plan, index, first, first + kRound), first, slots);
      }
    }
  }

  void check_relay_sums(RowRange rows, std::int64_t first_token, const Bytes& slots) const {
    const CombineRowFormat& format = shape_.combine_row;
    MOEBUS_ASSERT(rows.first <= rows.last && rows.last - rows.first <= kRound);
    const std::size_t num = idx(rows.last - rows.first);
    std::vector<std::int32_t> slot(num);
    list_relay_slots(relay_.plan, rows, {nullptr, kRound, first_token}, slot);
    for (const std::int32_t index : slot) MOEBUS_EXPECT_BELOW(index, shape_.combine_slots_per_token * kRound);
    const HomeSlots place{slots.data(), kRound, first_token};
    const Bytes out(num * format.stride_bytes);
    Terms terms(num, idx(shape_.relay_slots_per_token));
    list_relay_sums(shape_, relay_.plan, rows, place, out.data(), {}, terms.lists);
    check_terms(terms, num, slots, nullptr, &out);
    write_relay_tails(shape_, relay_.plan, rows, format.lane_bytes > 0, place, out.data(), {});
  }

  void check_region(FuzzInput& input) const {
    if (shape_.config.path != Path::throughput || shape_.config.delivery != Delivery::direct) return;
    std::vector<Bytes> counts;
    std::vector<const std::int32_t*> counts_of;
    std::vector<std::int64_t> granted;
    for (int src = 0; src < shape_.num_ranks; ++src) {
      granted.push_back(std::min(input.take<std::int64_t>(), shape_.capacity_rows));
      counts.emplace_back(idx(shape_.num_ranks + shape_.num_seats) * sizeof(std::int32_t));
      input.fill(counts.back().all());
      // Laid out like a window: an array of i32, aligned for any type.
      counts_of.push_back(reinterpret_cast<const std::int32_t*>(counts.back().data()));
    }
    Carved<RegionPlan> region(shape_);
    plan_region(shape_, send_.plan, shape_.rank, counts_of, granted, region.plan);
    for (int dst = 0; dst < shape_.num_ranks; ++dst) {
      if (shape_.is_relayed(shape_.rank, dst)) continue;
      const std::int32_t* positions = region.plan.positions.data() + idx(dst) * idx(max_tokens());
      for (std::int32_t i = 0; i < send_.plan.num_rows_to[idx(dst)]; ++i) {
        // What is below 0 is not sent.
        MOEBUS_ASSERT(positions[i] < shape_.result_rows);
      }
    }
  }

  const Shape& shape_;
  TableRowFormat format_;
  Carved<SendPlan> send_;
  Carved<ReceivePlan> receive_;
  Carved<RelayPlan> relay_;
  std::vector<Bytes> tables_;
  std::vector<TableView> views_;
};

}  // namespace
}  // namespace moebus::model

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t num_bytes) {
  using namespace moebus::model;
  moebus::fuzz::FuzzInput input(bytes, num_bytes);
  const moebus::ExchangeConfig config = take_config(input);
  const GroupFacts group = take_group(input);
  if (find_config_error(config, group)) return 0;
  const Shape shape = make_shape(config, group);
  Window(shape, input).check(input);
  return 0;
}
