#include "moebus/exchange.hpp"

#include <utility>

#include "engine/exchange_core.hpp"

namespace moebus {

Exchange::Exchange(const Group& group, const ExchangeConfig& config)
    : core_(std::make_shared<engine::ExchangeCore>(group.core_, config)) {}

Exchange::~Exchange() = default;
Exchange::Exchange(Exchange&&) noexcept = default;
Exchange& Exchange::operator=(Exchange&&) noexcept = default;

BytesNeeded Exchange::bytes_needed(const ExchangeConfig& config, int num_ranks) {
  return engine::ExchangeCore::bytes_needed(config, model::GroupFacts::one_node(num_ranks));
}

BytesNeeded Exchange::bytes_needed() const {
  return engine::ExchangeCore::bytes_needed(core_->shape().config, core_->group_facts());
}

PrepareReport Exchange::prepare() { return core_->prepare(); }

PrepareReport Exchange::warm_up() { return core_->warm_up(); }

DispatchResult Exchange::dispatch(const DispatchInput& input) { return core_->dispatch(input); }

CombineResult Exchange::combine(const CombineInput& input) { return core_->combine(input); }

PendingDispatch Exchange::post_dispatch(const DispatchInput& input) {
  core_->post_dispatch(input);
  return PendingDispatch(core_);
}

PendingCombine Exchange::post_combine(const CombineInput& input) {
  core_->post_combine(input);
  return PendingCombine(core_);
}

CombineGradients Exchange::combine_backward(const CombineGradInput& input) { return core_->combine_backward(input); }

DispatchGradients Exchange::dispatch_backward(const DispatchGradInput& input) {
  return core_->dispatch_backward(input);
}

void Exchange::set_placement(const Placement& placement, ReplicaRule rule) {
  core_->set_placement(placement, std::move(rule));
}

DispatchResult PendingDispatch::wait() {
  if (core_ == nullptr) throw Error(ErrorCode::invalid_argument, "wait: this dispatch was waited for already");
  return std::exchange(core_, nullptr)->wait_dispatch();
}

CombineResult PendingCombine::wait() {
  if (core_ == nullptr) throw Error(ErrorCode::invalid_argument, "wait: this combine was waited for already");
  return std::exchange(core_, nullptr)->wait_combine();
}

PendingDispatch& PendingDispatch::operator=(PendingDispatch&& other) noexcept {
  if (this != &other) {
    if (core_ != nullptr) core_->abandon_dispatch();
    core_ = std::move(other.core_);
  }
  return *this;
}

PendingCombine& PendingCombine::operator=(PendingCombine&& other) noexcept {
  if (this != &other) {
    if (core_ != nullptr) core_->abandon_combine();
    core_ = std::move(other.core_);
  }
  return *this;
}

PendingDispatch::~PendingDispatch() {
  if (core_ != nullptr) core_->abandon_dispatch();
}

PendingCombine::~PendingCombine() {
  if (core_ != nullptr) core_->abandon_combine();
}

const ExchangeConfig& Exchange::config() const noexcept { return core_->shape().config; }

int Exchange::num_local_experts() const noexcept { return core_->shape().placement.num_local(core_->rank()); }

int Exchange::first_local_expert() const noexcept { return core_->shape().placement.first_seat(core_->rank()); }

std::int64_t Exchange::capacity_rows() const noexcept { return core_->shape().capacity_rows; }

ExchangeStats Exchange::stats() const { return core_->stats(); }

void Exchange::reset_stats() noexcept { core_->reset_stats(); }

}  // namespace moebus
