#include "engine/group_core.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/assert.hpp"
#include "engine/context.hpp"

namespace moebus::engine {

using base::idx;

namespace {

// Peers that are not mapped cannot ring: a sleeper looks for their words by itself.
constexpr std::chrono::microseconds kSleepWithoutBell{50};

constexpr std::chrono::milliseconds kPartingLimit{200};

void check_limit(std::string_view name, std::chrono::milliseconds limit) {
  if (limit.count() > 0) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{} is {} ms; a limit must be positive (there is no endless wait)", name, limit.count()));
}

}  // namespace

std::string_view to_string(sync::Operation operation) noexcept {
  switch (operation) {
    case sync::Operation::none:
      return "no call";
    case sync::Operation::dispatch_latency:
      return "dispatch, latency path";
    case sync::Operation::dispatch_throughput:
      return "dispatch, throughput path";
    case sync::Operation::combine_latency:
      return "combine, latency path";
    case sync::Operation::combine_throughput:
      return "combine, throughput path";
  }
  return "unknown call";
}

void check_limits(const GroupOptions& options) {
  check_limit("options.join_limit", options.join_limit);
  check_limit("options.arrival_limit", options.arrival_limit);
  check_limit("options.progress_limit", options.progress_limit);
}

GroupCore::GroupCore(std::unique_ptr<transport::Store> store,
                     std::unique_ptr<transport::Transport> transport,
                     std::unique_ptr<backend::Backend> backend,
                     model::GroupFacts facts,
                     const GroupOptions& options,
                     int num_local_ranks)
    : facts_(std::move(facts)),
      options_(options),
      arrival_limit_ms_(options.arrival_limit.count()),
      progress_limit_ms_(options.progress_limit.count()),
      store_(std::move(store)),
      transport_(std::move(transport)),
      backend_(std::move(backend)),
      transport_name_(transport_->name()),
      policy_(sync::wait_policy(num_local_ranks)),
      needs_progress_(facts_.topology.has_unmapped()),
      faults_(Faults::from_environment(facts_.rank)) {
  if (needs_progress_) policy_.max_sleep = kSleepWithoutBell;
  block_ = transport_->register_memory(sizeof(sync::GroupBlock), base::Deadline(options_.join_limit));
  for (int peer = 0; peer < num_ranks(); ++peer) {
    MOEBUS_ASSERT(is_mapped(peer) == (peer == rank() || facts_.topology.is_mapped(rank(), peer)));
  }
}

GroupCore::~GroupCore() { close(); }

void GroupCore::set_arrival_limit(std::chrono::milliseconds limit) {
  check_limit("arrival limit", limit);
  arrival_limit_ms_ = limit.count();
}

void GroupCore::set_progress_limit(std::chrono::milliseconds limit) {
  check_limit("progress limit", limit);
  progress_limit_ms_ = limit.count();
}

std::vector<std::string> GroupCore::all_gather(std::string_view what, std::string_view value) {
  check_usable();
  return store_->all_gather(what, value, base::Deadline(options_.join_limit));
}

void GroupCore::close() noexcept {
  if (is_closed_) return;
  is_closed_ = true;
  if (needs_progress_) {
    // What peers still wait for is on its way; a peer that is gone does not hold this rank up for long.
    static_cast<void>(transport_->flush(transport_->num_started(), base::Deadline(kPartingLimit)));
  }
  transport_->close();
  for (auto& context : contexts_) {
    if (context != nullptr) context->close();
  }
  transport_->deregister(block_);
  block_ = {};
  transport_.reset();
  store_.reset();
}

void GroupCore::check_usable() const {
  if (cause_) {
    throw Error(ErrorCode::group_poisoned,
                fmt::format("the group was given up after an earlier failure: {}", cause_->what()),
                cause_->origin_rank());
  }
  if (is_closed_) {
    throw Error(ErrorCode::group_poisoned, fmt::format("rank {} has closed its group; join a new one", rank()), rank());
  }
}

Context& GroupCore::context(int index) {
  auto& context = contexts_[idx(index)];
  if (context == nullptr) context = std::make_unique<Context>(*this, index);
  return *context;
}

bool GroupCore::is_any_result_held() const noexcept {
  return std::any_of(contexts_.begin(), contexts_.end(), [](const auto& context) {
    return context != nullptr && context->is_any_result_held();
  });
}

void GroupCore::add_open_call(OpenCall* call) noexcept {
  MOEBUS_ASSERT(num_open_ < open_calls_.size());
  open_calls_[num_open_++] = call;
}

void GroupCore::complete_up_to(OpenCall* call) noexcept {
  // Relies on tests/model/contexts.pml: with a rule that waits in the order asked for, two ranks block each other.
  OpenCall** const end = open_calls_.data() + num_open_;
  OpenCall** const found = std::find(open_calls_.data(), end, call);
  if (found == end) return;  // completed already, with a later one
  for (OpenCall** open = open_calls_.data(); open <= found; ++open) (*open)->complete();
  num_open_ = static_cast<std::size_t>(std::move(found + 1, end, open_calls_.data()) - open_calls_.data());
}

}  // namespace moebus::engine
