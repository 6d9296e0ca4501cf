#include "engine/group_core.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/assert.hpp"
#include "base/env.hpp"
#include "base/log.hpp"

namespace moebus::engine {

using base::idx;

namespace {

double micros(base::Clock::duration duration) noexcept {
  return std::chrono::duration<double, std::micro>(duration).count();
}

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

void GroupCore::MemoryNeeds::cover(const MemoryNeeds& other) noexcept {
  window.cover(other.window);
  result_bytes = std::max(result_bytes, other.result_bytes);
  combine_bytes = std::max(combine_bytes, other.combine_bytes);
}

GroupCore::GroupCore(std::unique_ptr<transport::Store> store,
                     std::unique_ptr<transport::Transport> transport,
                     std::unique_ptr<backend::Backend> backend,
                     const GroupOptions& options,
                     int num_local_ranks)
    : rank_(store->rank()),
      num_ranks_(store->num_ranks()),
      options_(options),
      arrival_limit_ms_(options.arrival_limit.count()),
      progress_limit_ms_(options.progress_limit.count()),
      store_(std::move(store)),
      transport_(std::move(transport)),
      backend_(std::move(backend)),
      transport_name_(transport_->name()),
      policy_(sync::wait_policy(num_local_ranks)) {
  if (const auto spec = base::env("MOEBUS_FAULT")) faults_ = Faults(*spec, rank_);
  control_ = transport_->register_memory(sizeof(sync::ControlBlock), base::Deadline(options_.join_limit));
  MOEBUS_ASSERT(std::none_of(control_.peers.begin(), control_.peers.end(), [](auto* peer) { return peer == nullptr; }));
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
  transport_->close();
  if (!windows_.peers.empty()) transport_->deregister(windows_);
  transport_->deregister(control_);
  windows_ = {};
  control_ = {};
  results_ = {};
  combine_results_ = {};
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
    throw Error(ErrorCode::group_poisoned, fmt::format("rank {} has closed its group; join a new one", rank_), rank_);
  }
}

GroupCore::CoverTimes GroupCore::cover(const MemoryNeeds& needs) {
  MemoryNeeds wanted = needs_;
  wanted.cover(needs);
  CoverTimes times;
  const auto start = base::Clock::now();
  // Every rank is between calls here: whoever finished a call has seen every peer's last signal, so nobody writes old
  // windows.
  if (wanted.result_bytes > needs_.result_bytes) {
    results_ = {};
    results_ = base::LocalMemory(wanted.result_bytes);
  }
  if (wanted.combine_bytes > needs_.combine_bytes) {
    combine_results_ = {};
    combine_results_ = base::LocalMemory(wanted.combine_bytes);
  }
  const auto allocated = base::Clock::now();
  if (windows_.peers.empty() || wanted.window.total() > windows_.local.size_bytes) {
    if (!windows_.peers.empty()) transport_->deregister(windows_);
    windows_ = {};
    windows_ = transport_->register_memory(wanted.window.total(), base::Deadline(options_.join_limit));
    MOEBUS_ASSERT(
        std::none_of(windows_.peers.begin(), windows_.peers.end(), [](auto* peer) { return peer == nullptr; }));
  }
  needs_ = wanted;
  times.allocate_us = micros(allocated - start);
  times.map_us = micros(base::Clock::now() - allocated);
  return times;
}

Call GroupCore::begin_call(sync::Operation operation, std::uint64_t digest) noexcept {
  ++epoch_;
  base::assert_context() = {rank_, epoch_};
  at(Step::begin);
  return {epoch_, operation, digest};
}

void GroupCore::signal_arrived(const Call& call, int peer, const Refusal* refusal) noexcept {
  sync::ControlBlock& block = control(peer);
  sync::CallHeader& header = block.call[call.epoch % 2][idx(rank_)];
  header.epoch = call.epoch;
  header.operation = static_cast<std::uint8_t>(call.operation);
  header.digest = call.digest;
  header.is_refused = refusal != nullptr ? 1 : 0;
  if (refusal != nullptr) {
    header.reason = static_cast<std::uint8_t>(refusal->code);
    header.refusal.set(refusal->text);
  }
  const sync::Signal signal{generation_, call.epoch, call.operation, static_cast<std::uint32_t>(call.digest)};
  sync::store_release(block.from[idx(rank_)].arrived, sync::encode(signal));
  if (peer != rank_) sync::ring(block.doorbell);
}

void GroupCore::signal_finished(const Call& call, int peer) noexcept {
  sync::ControlBlock& block = control(peer);
  const sync::Signal signal{generation_, call.epoch, call.operation, static_cast<std::uint32_t>(call.digest)};
  sync::store_release(block.from[idx(rank_)].finished, sync::encode(signal));
  if (peer != rank_) sync::ring(block.doorbell);
}

void GroupCore::signal_rounds(const Call& call, int peer, std::uint32_t count) noexcept {
  sync::ControlBlock& block = control(peer);
  sync::store_release(block.from[idx(rank_)].rounds, sync::encode_count(generation_, call.epoch, count));
  if (peer != rank_) sync::ring(block.doorbell);
}

void GroupCore::signal_taken(const Call& call, int peer, std::uint32_t count) noexcept {
  sync::ControlBlock& block = control(peer);
  sync::store_release(block.from[idx(rank_)].taken, sync::encode_count(generation_, call.epoch, count));
  if (peer != rank_) sync::ring(block.doorbell);
}

std::optional<Refusal> GroupCore::read_header(const Call& call, int peer) {
  const sync::CallHeader& header = control(rank_).call[call.epoch % 2][idx(peer)];
  if (header.epoch != call.epoch || header.operation != static_cast<std::uint8_t>(call.operation) ||
      header.digest != call.digest) {
    const auto seen = static_cast<sync::Operation>(header.operation);
    poison(ErrorCode::invalid_argument,
           peer,
           fmt::format(
               "ranks are at different calls: rank {} makes call {} ({}) of the exchange with digest {:016x}, rank {} "
               "makes call {} ({}) of {:016x}. All ranks must make the same calls in the same order",
               rank_,
               call.epoch,
               to_string(call.operation),
               call.digest,
               peer,
               header.epoch,
               to_string(seen),
               header.digest));
  }
  if (header.is_refused == 0) return std::nullopt;
  return Refusal{static_cast<ErrorCode>(header.reason), std::string(header.refusal.view())};
}

}  // namespace moebus::engine
