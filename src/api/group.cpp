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

void Group::set_arrival_limit(std::chrono::milliseconds limit) { core_->set_arrival_limit(limit); }

void Group::set_progress_limit(std::chrono::milliseconds limit) { core_->set_progress_limit(limit); }

void Group::barrier() { core_->all_gather("barrier", ""); }

void Group::close() { core_->close(); }

}  // namespace moebus
