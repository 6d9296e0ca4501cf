#include "api/composition.hpp"

#include <fmt/format.h>

#include "backend/cpu/backend_cpu.hpp"
#include "engine/agreement.hpp"
#include "transport/loopback/connect.hpp"
#include "transport/rendezvous.hpp"
#include "transport/shm/connect.hpp"

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

std::string choose_transport(const std::string& wanted, transport::RendezvousKind kind) {
  if (wanted == "loopback" || wanted == "shm") return wanted;
  if (wanted == "auto") return kind == transport::RendezvousKind::inproc ? "loopback" : "shm";
  throw Error(ErrorCode::invalid_argument,
              fmt::format("options.transport is '{}'; allowed are auto, loopback and shm", wanted));
}

/// All ranks must have chosen the same, or they would wait for each other in different places.
void agree_on_transport(transport::Store& store, const std::string& name, const base::Deadline& deadline) {
  const std::vector<std::string> all =
      store.all_gather("agree on the transport", engine::agreement_header() + "transport=" + name + "\n", deadline);
  if (const auto differences = engine::find_differences(all)) {
    throw Error(ErrorCode::invalid_argument, "ranks disagree: " + *differences);
  }
}

}  // namespace

std::shared_ptr<engine::GroupCore> join_group(std::string_view uri,
                                              int rank,
                                              int num_ranks,
                                              const GroupOptions& options) {
  check_size(rank, num_ranks);
  engine::check_limits(options);
  const transport::RendezvousAddress address = transport::parse_rendezvous(uri);
  const std::string name = choose_transport(options.transport, address.kind);
  auto backend = backend::make_cpu_backend();
  const base::Deadline deadline{options.join_limit};
  const transport::JoinOptions join_options{options.token, options.show_progress};
  auto store = transport::join_rendezvous(uri, rank, num_ranks, join_options, deadline);
  agree_on_transport(*store, name, deadline);
  auto transport =
      name == "loopback" ? transport::connect_loopback(*store, deadline) : transport::connect_shm(*store, deadline);
  // Transports reach one machine for now, so every rank of the group shares this machine's cores.
  return std::make_shared<engine::GroupCore>(
      std::move(store), std::move(transport), std::move(backend), options, num_ranks);
}

}  // namespace moebus::api
