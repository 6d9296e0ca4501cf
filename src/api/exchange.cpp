#include "moebus/exchange.hpp"

#include "engine/exchange_core.hpp"

namespace moebus {

Exchange::Exchange(const Group& group, const ExchangeConfig& config)
    : core_(std::make_unique<engine::ExchangeCore>(group.core_, config)) {}

Exchange::~Exchange() = default;
Exchange::Exchange(Exchange&&) noexcept = default;
Exchange& Exchange::operator=(Exchange&&) noexcept = default;

BytesNeeded Exchange::bytes_needed(const ExchangeConfig& config, int num_ranks) {
  return engine::ExchangeCore::bytes_needed(config, num_ranks);
}

PrepareReport Exchange::prepare() { return core_->prepare(); }

PrepareReport Exchange::warm_up() { return core_->warm_up(); }

DispatchResult Exchange::dispatch(const DispatchInput& input) { return core_->dispatch(input); }

CombineResult Exchange::combine(const CombineInput& input) { return core_->combine(input); }

const ExchangeConfig& Exchange::config() const noexcept { return core_->shape().config; }

int Exchange::num_local_experts() const noexcept { return core_->shape().placement.num_local(core_->rank()); }

int Exchange::first_local_expert() const noexcept { return core_->shape().placement.first_expert(core_->rank()); }

std::int64_t Exchange::capacity_rows() const noexcept { return core_->shape().capacity_rows; }

ExchangeStats Exchange::stats() const { return core_->stats(); }

void Exchange::reset_stats() noexcept { core_->reset_stats(); }

}  // namespace moebus
