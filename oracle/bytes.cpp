#include "oracle/bytes.hpp"

#include <map>
#include <set>

#include "oracle/numbers.hpp"

namespace moebus::oracle {

namespace {

std::size_t idx(std::int64_t i) noexcept { return static_cast<std::size_t>(i); }

// Calls visit(rank, seats) for every token, with the distinct seats that it takes.
template <class Visit>
void for_each_token(const DispatchExpectation& any, Visit visit) {
  const std::size_t topk = idx(any.config.num_topk);
  for (int rank = 0; rank < any.num_ranks; ++rank) {
    const std::vector<int>& seat = any.choices->seat[idx(rank)];
    for (std::size_t first = 0; first < seat.size(); first += topk) {
      std::set<int> seats(seat.data() + first, seat.data() + first + topk);
      seats.erase(-1);
      visit(rank, seats);
    }
  }
}

class Counter {
 public:
  Counter(const DispatchExpectation& any, std::uint64_t row_bytes) : any_(any) {
    traffic_.num_ranks = any.num_ranks;
    traffic_.rows.assign(idx(any.num_ranks) * idx(any.num_ranks), 0);
    traffic_.row_bytes = row_bytes;
  }

  // The way out: each rank that a token needs, by the node.
  void add_dispatched(int home, const std::set<int>& seats) {
    std::map<int, std::set<int>> ranks_by_node;
    for (const int seat : seats) {
      const int rank = any_.choices->seats.rank_of[idx(seat)];
      ranks_by_node[any_.group.node_of(rank)].insert(rank);
    }
    for (const auto& [node, ranks] : ranks_by_node) add_node(home, node, ranks);
  }

  void add(int src, int dst) { ++traffic_.rows[idx(src) * idx(traffic_.num_ranks) + idx(dst)]; }

  // Turns ways out into ways home.
  void reverse() {
    Traffic back = traffic_;
    for (int src = 0; src < back.num_ranks; ++src) {
      for (int dst = 0; dst < back.num_ranks; ++dst) {
        back.rows[idx(dst) * idx(back.num_ranks) + idx(src)] = traffic_.rows_of(src, dst);
      }
    }
    traffic_ = back;
  }

  [[nodiscard]] const Traffic& traffic() const { return traffic_; }

 private:
  void add_node(int home, int node, const std::set<int>& ranks) {
    if (!has_gateways(any_) || node == any_.group.node_of(home)) {
      for (const int rank : ranks) add(home, rank);
      return;
    }
    const int gateway = any_.group.gateway(home, node);
    add(home, gateway);
    for (const int rank : ranks) {
      if (rank != gateway) add(gateway, rank);
    }
  }

  const DispatchExpectation& any_;
  Traffic traffic_;
};

std::uint64_t dispatched_row_bytes(const ExchangeConfig& config) {
  std::uint64_t bytes = received_row_bytes(config) + scale_row_bytes(config.hidden, config.scale_format);
  for (const int side : config.side_bytes) bytes += idx(side);
  return bytes;
}

std::uint64_t combined_row_bytes(const ExchangeConfig& config, bool has_lane) {
  const std::uint64_t lane = has_lane ? idx(config.num_topk) * sizeof(float) : 0;
  return idx(combine_columns(config)) * size_of(config.combine_dtype) + lane;
}

}  // namespace

std::uint64_t Traffic::rows_of(int src, int dst) const { return rows[idx(src) * idx(num_ranks) + idx(dst)]; }

std::uint64_t Traffic::bytes_of(int src, int dst) const { return src == dst ? 0 : rows_of(src, dst) * row_bytes; }

Traffic& Traffic::operator+=(const Traffic& other) {
  if (num_ranks == 0) return *this = other;
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] += other.rows[i];
  return *this;
}

bool has_gateways(const DispatchExpectation& dispatched) {
  return dispatched.group.levels == 2 && dispatched.group.has_several_nodes() &&
         dispatched.config.inter_node == InterNode::gateway;
}

Traffic least_dispatch_traffic(const std::vector<DispatchExpectation>& dispatched) {
  const DispatchExpectation& any = dispatched.front();
  Counter counter(any, dispatched_row_bytes(any.config));
  for_each_token(any, [&](int home, const std::set<int>& seats) { counter.add_dispatched(home, seats); });
  return counter.traffic();
}

Traffic least_combine_traffic(const std::vector<DispatchExpectation>& dispatched, bool has_lane) {
  const DispatchExpectation& any = dispatched.front();
  const bool is_per_expert =
      any.config.layout != Layout::rank_major && any.config.combine_rows == CombineRows::per_expert;
  Counter counter(any, combined_row_bytes(any.config, has_lane));
  for_each_token(any, [&](int home, const std::set<int>& seats) {
    if (!is_per_expert) return counter.add_dispatched(home, seats);
    for (const int seat : seats) counter.add(home, any.choices->seats.rank_of[idx(seat)]);
  });
  counter.reverse();
  return counter.traffic();
}

}  // namespace moebus::oracle
