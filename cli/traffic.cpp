#include "cli/traffic.hpp"

#include <memory>
#include <utility>

#include "oracle/bytes.hpp"

namespace moebus::cli {

namespace {

// Routing decides alone which rows cross; so rows of one byte stand for the real ones.
ExchangeConfig one_byte_rows(const ExchangeConfig& config) {
  ExchangeConfig thin = config;
  thin.hidden = 1;
  thin.dtype = DType::u8;
  thin.cast = Cast::none;
  thin.scale_format = ScaleFormat::none;
  thin.side_bytes = {};
  return thin;
}

oracle::SharedInputs inputs_of_set(const BenchSetup& setup, const workload::RoutingGenerator& routing, int set) {
  auto inputs = std::make_shared<std::vector<oracle::RankInput>>();
  for (int rank = 0; rank < setup.num_ranks; ++rank) {
    workload::RoutingTable table = make_table(setup, routing, rank, set);
    oracle::RankInput input;
    input.num_tokens = table.num_tokens;
    input.tokens.resize(static_cast<std::size_t>(table.num_tokens));
    input.topk_idx = std::move(table.topk_idx);
    inputs->push_back(std::move(input));
  }
  return inputs;
}

// A bench of dispatch makes no combine.
void leave_combine_out(oracle::Traffic& traffic) { traffic.rows.assign(traffic.rows.size(), 0); }

}  // namespace

std::vector<cases::LeastTraffic> least_traffic(const BenchSetup& setup,
                                               const std::vector<oracle::DispatchExpectation>& first) {
  const workload::RoutingGenerator routing = routing_of(setup);
  const ExchangeConfig thin = one_byte_rows(setup.config);
  std::vector<cases::LeastTraffic> sets;
  sets.push_back({oracle::least_dispatch_traffic(first), oracle::least_combine_traffic(first, false)});
  for (int set = 1; set < setup.num_sets; ++set) {
    const auto dispatched = oracle::dispatch(thin, inputs_of_set(setup, routing, set), setup.group);
    sets.push_back({oracle::least_dispatch_traffic(dispatched), oracle::least_combine_traffic(dispatched, false)});
    sets.back().dispatch.row_bytes = sets.front().dispatch.row_bytes;
    sets.back().combine.row_bytes = sets.front().combine.row_bytes;
  }
  if (setup.options.kind != BenchKind::dispatch) return sets;
  for (cases::LeastTraffic& set : sets) leave_combine_out(set.combine);
  return sets;
}

cases::LeastTraffic traffic_of_calls(const std::vector<cases::LeastTraffic>& sets, int calls) {
  cases::LeastTraffic sum = sets.front();
  for (oracle::Traffic* traffic : {&sum.dispatch, &sum.combine}) traffic->rows.assign(traffic->rows.size(), 0);
  const auto num_sets = static_cast<int>(sets.size());
  for (int set = 0; set < num_sets; ++set) {
    const auto times = static_cast<std::uint64_t>(calls / num_sets) + (set < calls % num_sets ? 1U : 0U);
    const cases::LeastTraffic& one = sets[static_cast<std::size_t>(set)];
    for (std::size_t i = 0; i < sum.dispatch.rows.size(); ++i) {
      sum.dispatch.rows[i] += times * one.dispatch.rows[i];
      sum.combine.rows[i] += times * one.combine.rows[i];
    }
  }
  return sum;
}

PhaseLinks operator+(const PhaseLinks& a, const PhaseLinks& b) noexcept {
  const auto add = [](const LinkBytes& x, const LinkBytes& y) { return LinkBytes{x.sent + y.sent, x.least + y.least}; };
  return {add(a.all, b.all), add(a.between_nodes, b.between_nodes), add(a.inside_nodes, b.inside_nodes)};
}

PhaseLinks links_of(const BenchSetup& setup,
                    int rank,
                    const std::array<PeerStats, kMaxRanks>& peers,
                    const oracle::Traffic& least) {
  PhaseLinks links;
  for (int peer = 0; peer < setup.num_ranks; ++peer) {
    if (peer == rank) continue;
    const LinkBytes bytes{static_cast<double>(peers[static_cast<std::size_t>(peer)].bytes_sent),
                          static_cast<double>(least.bytes_of(rank, peer))};
    const bool is_inside = setup.group.node_of(rank) == setup.group.node_of(peer);
    for (LinkBytes* const sum : {&links.all, is_inside ? &links.inside_nodes : &links.between_nodes}) {
      sum->sent += bytes.sent;
      sum->least += bytes.least;
    }
  }
  return links;
}

}  // namespace moebus::cli
