#include "moebus/group.hpp"

#include "api/composition.hpp"
#include "engine/group_core.hpp"

namespace moebus {

Group::Group(std::shared_ptr<engine::GroupCore> core) noexcept : core_(std::move(core)) {}

Group Group::join(std::string_view uri, int rank, int num_ranks, const GroupOptions& options) {
  return Group(api::join_group(uri, rank, num_ranks, options));
}

int Group::rank() const noexcept { return core_->rank(); }

int Group::num_ranks() const noexcept { return core_->num_ranks(); }

std::string_view Group::transport() const noexcept { return core_->transport_name(); }

int Group::num_nodes() const noexcept { return core_->facts().topology.num_nodes(); }

int Group::node_of(int rank) const noexcept {
  return rank >= 0 && rank < num_ranks() ? core_->facts().topology.node_of(rank) : -1;
}

int Group::levels() const noexcept { return core_->facts().levels; }

bool Group::is_mapped(int peer) const noexcept {
  return peer >= 0 && peer < num_ranks() && core_->facts().topology.is_mapped(rank(), peer);
}

void Group::set_arrival_limit(std::chrono::milliseconds limit) { core_->set_arrival_limit(limit); }

void Group::set_progress_limit(std::chrono::milliseconds limit) { core_->set_progress_limit(limit); }

void Group::barrier() { core_->all_gather("barrier", ""); }

void Group::close() { core_->close(); }

}  // namespace moebus
