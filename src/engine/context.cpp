#include "engine/context.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/assert.hpp"

namespace moebus::engine {

using base::idx;
using sync::Field;
using sync::Line;
using sync::WordName;

namespace {

double micros(base::Clock::duration duration) noexcept {
  return std::chrono::duration<double, std::micro>(duration).count();
}

bool is_counted(Field field) noexcept { return field == Field::rounds || field == Field::taken; }

}  // namespace

void MemoryNeeds::cover(const MemoryNeeds& other) noexcept {
  window.cover(other.window);
  result_bytes = std::max(result_bytes, other.result_bytes);
  combine_bytes = std::max(combine_bytes, other.combine_bytes);
  outbox_piece_bytes = std::max(outbox_piece_bytes, other.outbox_piece_bytes);
}

Context::Context(GroupCore& group, int index) : group_(group), index_(index), outbox_(group) {
  block_ = group_.transport().register_memory(sizeof(sync::ContextBlock), base::Deadline(group_.options().join_limit));
}

void Context::close() noexcept {
  if (!windows_.peers.empty()) group_.transport().deregister(windows_);
  group_.transport().deregister(block_);
  windows_ = {};
  block_ = {};
  results_ = {};
  combine_results_ = {};
}

// --- Memory ---

Context::CoverTimes Context::cover(const MemoryNeeds& needs) {
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
    if (!windows_.peers.empty()) group_.transport().deregister(windows_);
    windows_ = {};
    windows_ = group_.transport().register_memory(wanted.window.total(), base::Deadline(group_.options().join_limit));
  }
  needs_ = wanted;
  outbox_.set_memory(
      windows_.id, windows_.local.data, windows_.local.data + needs_.window.outbox_offset(), needs_.outbox_piece_bytes);
  times.allocate_us = micros(allocated - start);
  times.map_us = micros(base::Clock::now() - allocated);
  return times;
}

void Context::write(int peer, std::byte* place, const std::byte* source, std::size_t size_bytes) {
  if (size_bytes == 0) return;
  if (is_mapped(peer)) {
    group_.backend().copy_bytes(place, source, size_bytes);
  } else {
    outbox_.write(peer, place, source, size_bytes);
  }
}

// --- Calls ---

Call Context::begin_call(sync::Operation operation, std::uint64_t digest) noexcept {
  ++epoch_;
  base::assert_context() = {group_.rank(), epoch_};
  if (Faults* faults = group_.faults()) faults->at(epoch_, {sync::StepKind::call_begins, group_.rank(), {}});
  return {epoch_, operation, digest};
}

void Context::signal_arrived(const Call& call, int peer, const Refusal* refusal) noexcept {
  const int rank = group_.rank();
  // A peer that is not mapped gets a copy of the own entry. It may be written again two calls later: by then the peer
  // has answered, so the copy is long there.
  sync::ContextBlock* mapped = block(peer);
  sync::CallHeader& header = (mapped != nullptr ? mapped : block(rank))->call[call.epoch % 2][idx(rank)];
  header.epoch = call.epoch;
  header.operation = static_cast<std::uint8_t>(call.operation);
  header.digest = call.digest;
  header.is_refused = refusal != nullptr ? 1 : 0;
  header.sends_ahead = call.sends_ahead ? 1 : 0;
  if (refusal != nullptr) {
    header.reason = static_cast<std::uint8_t>(refusal->code);
    header.refusal.set(refusal->text);
  }
  if (mapped == nullptr && !group_.is_cut_off(peer)) {
    const std::size_t size = refusal != nullptr ? sizeof(sync::CallHeader) : sync::kBareHeaderBytes;
    group_.transport().put(
        peer, {block_.id, sync::offset_of_header(call.epoch, rank)}, reinterpret_cast<const std::byte*>(&header), size);
  }
  signal(call, peer, own(Field::arrived));
}

void Context::signal(const Call& call, int peer, const WordName& word, std::uint32_t count) noexcept {
  const sync::Word value =
      is_counted(word.field)
          ? sync::encode_count(group_.generation(), call.epoch, count)
          : sync::encode(
                sync::Signal{group_.generation(), call.epoch, call.operation, static_cast<std::uint32_t>(call.digest)});
  sync::make_signal(group_.faults(), call.epoch, peer, word.field, [&] {
    const std::size_t offset = sync::offset_of(word);
    if (std::byte* mapped = block_.peers[idx(peer)]) {
      sync::store_release(*reinterpret_cast<sync::Word*>(mapped + offset), value);
      if (peer != group_.rank()) group_.wake(peer);
      return;
    }
    // The fence puts the word behind the rows, and behind the word's earlier value (tests/model/lanes.pml).
    group_.transport().fence(peer);
    group_.transport().put_signal(peer, {}, nullptr, 0, {block_.id, offset}, value);
  });
}

WordName Context::own(Field field) const noexcept {
  const auto rank = static_cast<std::uint8_t>(group_.rank());
  return {Line::direct, field, rank, rank};
}

WordName Context::on_behalf_of(int far, Field field) const noexcept {
  return {Line::relayed, field, static_cast<std::uint8_t>(far), static_cast<std::uint8_t>(group_.rank())};
}

WordName Context::at_gateway(int far, Field field) const noexcept {
  return {Line::relay, field, static_cast<std::uint8_t>(far), static_cast<std::uint8_t>(group_.rank())};
}

WordName Context::of(int peer, Field field) noexcept {
  return {Line::direct, field, static_cast<std::uint8_t>(peer), static_cast<std::uint8_t>(peer)};
}

WordName Context::relayed(int far, Field field) const noexcept {
  const model::Topology& topology = group_.facts().topology;
  const int gateway = topology.gateway(far, topology.node_of(group_.rank()));
  return {Line::relayed, field, static_cast<std::uint8_t>(far), static_cast<std::uint8_t>(gateway)};
}

WordName Context::of_neighbour(int far, int neighbour, Field field) noexcept {
  return {Line::relay, field, static_cast<std::uint8_t>(far), static_cast<std::uint8_t>(neighbour)};
}

const sync::Word& Context::word_in(const std::byte* block, const WordName& word) noexcept {
  return *reinterpret_cast<const sync::Word*>(block + sync::offset_of(word));
}

sync::Word Context::load(const WordName& word) const noexcept {
  return sync::load_acquire(word_in(block_.local.data, word));
}

bool Context::is_reached(sync::Word word, const Call& call, Field field, std::uint32_t count) const noexcept {
  if (is_counted(field)) return sync::has_counted(word, group_.generation(), call.epoch, count);
  // Greater or equal: a peer may be one call ahead already; waiting for equality would deadlock.
  const bool is_stale = group_.faults() != nullptr && group_.faults()->is_epoch_stale() && field == Field::finished;
  const std::uint32_t epoch = is_stale ? call.epoch - 1 : call.epoch;
  return sync::has_reached(word, group_.generation(), epoch) || (epoch == 0 && word == 0);
}

bool Context::is_there(const Call& call, const WordName& word, std::uint32_t count) const noexcept {
  return is_reached(load(word), call, word.field, count) && !group_.is_cut_off(word.writer);
}

bool Context::is_there_at(int owner, const Call& call, const WordName& word, std::uint32_t count) const {
  return is_reached(sync::load_acquire(word_in(block_.peers[idx(owner)], word)), call, word.field, count);
}

std::uint64_t Context::wait(const Call& call, const WordName& word, std::uint32_t count) {
  return wait_until(call, word, count, [&] { return is_there(call, word, count); });
}

std::optional<Refusal> Context::read_header(const Call& call, int peer) {
  const sync::CallHeader& header = block(group_.rank())->call[call.epoch % 2][idx(peer)];
  // Whoever refuses may lack what the digest is made of, e.g. a handle.
  const bool has_digests = !call.is_refused && header.is_refused == 0;
  if (header.epoch != call.epoch || header.operation != static_cast<std::uint8_t>(call.operation) ||
      (has_digests && header.digest != call.digest)) {
    const auto seen = static_cast<sync::Operation>(header.operation);
    group_.poison(
        ErrorCode::invalid_argument,
        peer,
        fmt::format(
            "ranks are at different calls of context {}: rank {} is at call {} ({}) of the exchange with digest "
            "{:016x}, rank {} is at call {} ({}) of {:016x}. All ranks must make the same calls in the same order "
            "(different digests of "
            "the same call: exchanges, placements, or handles of different dispatches)",
            index_,
            group_.rank(),
            call.epoch,
            to_string(call.operation),
            call.digest,
            peer,
            header.epoch,
            to_string(seen),
            header.digest));
  }
  if (header.is_refused == 0) return std::nullopt;
  return Refusal{error_code_of(header.reason), std::string(header.refusal.view())};
}

bool Context::does_peer_send_ahead(const Call& call, int peer) const noexcept {
  return block(group_.rank())->call[call.epoch % 2][idx(peer)].sends_ahead != 0;
}

}  // namespace moebus::engine
