#include "api/composition.hpp"

#include <fmt/format.h>

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "backend/cpu/backend_cpu.hpp"
#include "base/env.hpp"
#include "engine/agreement.hpp"
#include "transport/loopback/connect.hpp"
#include "transport/rendezvous.hpp"
#include "transport/shm/connect.hpp"
#include "transport/shm/host.hpp"
#include "transport/unruly/connect.hpp"

namespace moebus::api {

namespace {

void check_size(int rank, int num_ranks) {
  if (num_ranks < 1) {
    throw Error(
        ErrorCode::invalid_argument, fmt::format("num_ranks is {}; a group has at least 1 rank", num_ranks), rank);
  }
  if (num_ranks > kMaxRanks) {
    throw Error(ErrorCode::unsupported,
                fmt::format("num_ranks is {}; this version supports up to {}", num_ranks, kMaxRanks),
                rank);
  }
  if (rank < 0 || rank >= num_ranks) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("rank is {}; ranks of this group are 0 to {}", rank, num_ranks - 1),
                rank);
  }
}

/// What the ranks must agree on before they connect.
struct Choice {
  std::string transport;
  std::optional<transport::UnrulyChoice> unruly;  ///< for tests: the transport is wrapped
};

Choice choose_transport(const std::string& wanted, transport::RendezvousKind kind) {
  Choice choice;
  if (const auto name = base::env("MOEBUS_TEST_TRANSPORT")) {
    choice.unruly = transport::parse_unruly(*name);
    if (!choice.unruly) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("MOEBUS_TEST_TRANSPORT is '{}'; allowed are unruly:SEED and unruly-nofence:SEED", *name));
    }
  }
  if (wanted == "loopback" || wanted == "shm") {
    choice.transport = wanted;
  } else if (wanted == "auto") {
    choice.transport = kind == transport::RendezvousKind::inproc ? "loopback" : "shm";
  } else {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("options.transport is '{}'; allowed are auto, loopback and shm", wanted));
  }
  return choice;
}

/// The node that a rank says it is on: one name per machine, unless it is told another.
std::string node_name(const GroupOptions& options) {
  std::string name = options.host_id;
  if (name.empty()) name = base::env("MOEBUS_HOST_ID").value_or("");
  if (name.empty()) name = transport::this_host().boot_id;
  constexpr std::size_t kMaxNameBytes = 256;
  if (name.size() > kMaxNameBytes) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format(
            "options.host_id (or MOEBUS_HOST_ID) has {} bytes; at most {} are allowed", name.size(), kMaxNameBytes));
  }
  return name;
}

/// All ranks must have chosen the same, or they would wait for each other in different places. Returns each rank's node
/// name.
std::vector<std::string> agree_on_group(transport::Store& store,
                                        const Choice& choice,
                                        const GroupOptions& options,
                                        const std::string& node,
                                        const base::Deadline& deadline) {
  std::string text = engine::agreement_header();
  text += fmt::format("transport={}\noptions.levels={}\noptions.map_peers={}\n",
                      choice.transport,
                      options.levels,
                      to_string(options.map_peers));
  const std::vector<std::string> all = store.all_gather("agree on the transport", text, deadline);
  if (const auto differences = engine::find_differences(all)) {
    throw Error(ErrorCode::invalid_argument, "ranks disagree: " + *differences);
  }
  return store.all_gather("tell nodes", node, deadline);
}

model::GroupFacts make_facts(const std::vector<std::string>& node_names, const GroupOptions& options, int rank) {
  std::map<std::string_view, int> labels;
  std::vector<int> node_of;
  for (const std::string& name : node_names) {
    node_of.push_back(labels.emplace(name, static_cast<int>(labels.size())).first->second);
  }
  model::GroupFacts facts;
  facts.topology = model::Topology::of_nodes(node_of);
  facts.rank = rank;
  facts.levels = options.levels != 0 ? options.levels : facts.topology.num_nodes() > 1 ? 2 : 1;
  const int num_ranks = facts.topology.num_ranks();
  for (int a = 0; a < num_ranks; ++a) {
    for (int b = 0; b < a; ++b) {
      const bool is_refused = options.map_peers == MapPeers::none ||
                              (options.map_peers == MapPeers::node && !facts.topology.are_neighbours(a, b));
      if (is_refused) facts.topology.set_unmapped(a, b);
    }
  }
  return facts;
}

std::unique_ptr<transport::Transport> connect(transport::Store& store,
                                              const Choice& choice,
                                              const model::Topology& topology,
                                              const base::Deadline& deadline) {
  transport::ConnectOptions options;
  for (int peer = 0; peer < topology.num_ranks(); ++peer) {
    options.may_map.push_back(topology.is_mapped(store.rank(), peer));
  }
  auto transport = choice.transport == "loopback" ? transport::connect_loopback(store, deadline, options)
                                                  : transport::connect_shm(store, deadline, options);
  if (!choice.unruly) return transport;
  return transport::make_unruly(std::move(transport), store.rank(), choice.unruly->seed, choice.unruly->fences);
}

void check_options(const GroupOptions& options) {
  engine::check_limits(options);
  if (options.levels < 0 || options.levels > 2) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("options.levels is {}; allowed are 1, 2, and 0 for 2 with several nodes, else 1", options.levels));
  }
}

}  // namespace

std::shared_ptr<engine::GroupCore> join_group(std::string_view uri,
                                              int rank,
                                              int num_ranks,
                                              const GroupOptions& options) {
  check_size(rank, num_ranks);
  check_options(options);
  const transport::RendezvousAddress address = transport::parse_rendezvous(uri);
  const Choice choice = choose_transport(options.transport, address.kind);
  const std::string node = node_name(options);
  auto backend = backend::make_cpu_backend();
  const base::Deadline deadline{options.join_limit};
  const transport::JoinOptions join_options{options.token, options.show_progress};
  auto store = transport::join_rendezvous(uri, rank, num_ranks, join_options, deadline);
  const std::vector<std::string> node_names = agree_on_group(*store, choice, options, node, deadline);
  model::GroupFacts facts = make_facts(node_names, options, rank);
  auto transport = connect(*store, choice, facts.topology, deadline);
  // Transports reach one machine for now, so every rank of the group shares this machine's cores.
  return std::make_shared<engine::GroupCore>(
      std::move(store), std::move(transport), std::move(backend), std::move(facts), options, num_ranks);
}

}  // namespace moebus::api
