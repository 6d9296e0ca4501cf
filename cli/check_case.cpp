#include "cli/check_case.hpp"

#include "cli/launch.hpp"
#include "moebus/moebus.hpp"
#include "workload/random.hpp"

namespace moebus::cli {

namespace {

constexpr unsigned kPercentAsProcesses = 12;  // starting processes takes longer than the case

// A check waits for nobody long: all ranks are here and have little to do.
GroupOptions check_group_options() {
  GroupOptions options;
  options.join_limit = std::chrono::seconds(30);
  options.arrival_limit = std::chrono::seconds(15);
  options.progress_limit = std::chrono::seconds(10);
  options.show_progress = false;
  return options;
}

cases::GroupChoice choice_of(const TopologyOptions& options, int num_ranks) {
  cases::GroupChoice choice;
  choice.nodes = Nodes::parse(options.nodes).of_ranks(num_ranks);
  choice.levels = options.levels;
  if (!options.map.empty()) choice.map_peers = map_peers_of(options.map);
  if (!options.inter_node.empty()) choice.inter_node = inter_node_of(options.inter_node);
  return choice;
}

}  // namespace

cases::ExchangeCase make_case(const CheckOptions& options, int index) {
  const std::uint64_t seed = workload::seed_from(options.seed, static_cast<std::uint64_t>(index));
  workload::Random random(workload::seed_from(seed, 53));
  const int num_ranks = options.ranks[random.below(options.ranks.size())];
  const cases::Route route = cases::kRoutes[random.below(std::size(cases::kRoutes))];
  cases::ExchangeCase one = random_group_case(seed, num_ranks, route, choice_of(options.topology, num_ranks));
  one.as_processes = random.below(100) < kPercentAsProcesses;
  return one;
}

std::optional<std::string> run_case(const cases::ExchangeCase& given, cases::Mutant mutant) {
  cases::ExchangeCase one = given;
  if (mutant == cases::Mutant::order) {
    // What else the order of choices shows in (lane, missing) would give the fault away too cheaply.
    one.config.combine_lane = false;
    one.config.capacity_rows = 0;
  }
  const cases::CaseTruth truth = make_truth(one);
  const RankBody body = [&](const Seat& seat) {
    const GroupOptions options = group_options(one, seat.rank, check_group_options());
    const Group group = Group::join(seat.uri, seat.rank, seat.num_ranks, options);
    return run_calls(group, one, truth, mutant).value_or("");
  };
  const std::vector<std::string> texts =
      one.as_processes ? run_as_processes(one.num_ranks, body) : run_as_threads(one.num_ranks, body);
  for (const std::string& text : texts) {
    if (!text.empty()) return text;
  }
  return std::nullopt;
}

}  // namespace moebus::cli
