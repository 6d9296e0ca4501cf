// DeviceCall: one call as its blocks see it: where its words lie, how they wait, how the call ends.
// Room: backend/cuda · device.
// Source: [ours] design 4.5 (epoch on the device, signals in every call), 4.8 (one free block slot is enough), 7.

#pragma once

#include "backend/cuda/ptx.cuh"
#include "backend/device.hpp"
#include "moebus/error.hpp"
#include "sync/control_block.hpp"
#include "sync/signal_word.hpp"

namespace moebus::backend::cuda {

using model::DeviceShape;
using sync::DeviceWait;

/// What a failing wait tells.
struct Awaited {
  DeviceWait what;
  int peer;
  int token;
};

/// Threads keep their own copy; everything in it is the same for all of a block.
class DeviceCall {
 public:
  __device__ DeviceCall(const DeviceShape& shape, const DeviceContext& context)
      : shape_(shape), context_(context), epoch_(load_relaxed(&context.state->epoch)) {
    parity_ = sizeof(sync::DeviceControl) + (epoch_ % 2) * context.parity_stride_bytes;
  }

  __device__ std::uint32_t tag() const { return sync::tag_of(epoch_); }

  __device__ std::uint64_t epoch() const { return epoch_; }

  /// A group that is poisoned makes no more calls.
  __device__ bool is_ended() const { return load_relaxed(&context_.state->is_ended) != 0; }

  // --- Places in a rank's window ---

  __device__ WideWord* at(int rank, std::uint64_t offset, std::uint64_t wide_word) const {
    return reinterpret_cast<WideWord*>(context_.windows + std::uint64_t(rank) * context_.window_stride_bytes + parity_ +
                                       offset) +
           wide_word;
  }

  __device__ WideWord* header(int at_rank, int of_rank) const {
    return at(at_rank, shape_.headers_offset, std::uint64_t(of_rank));
  }

  __device__ WideWord* table(int at_rank, int of_rank, int token) const {
    return at(at_rank, shape_.tables_offset, slot_index(of_rank, token) * shape_.table.num_wide);
  }

  __device__ WideWord* weights(int at_rank, int of_rank, int token) const {
    return at(at_rank, shape_.weights_offset, slot_index(of_rank, token) * shape_.weight_words);
  }

  __device__ WideWord* escapes(int at_rank, int of_rank, int token) const {
    return at(at_rank, shape_.escapes_offset, slot_index(of_rank, token) * shape_.escape_words);
  }

  __device__ WideWord* row(int at_rank, int of_rank, int token) const {
    return at(at_rank, shape_.rows_offset, slot_index(of_rank, token) * shape_.row_words);
  }

  __device__ WideWord* combined_row(int at_rank, int slot, int token) const {
    return at(at_rank, shape_.rows_offset, slot_index(slot, token) * shape_.combine_words);
  }

  __device__ WideWord* tail(int at_rank, int slot, int token) const {
    return at(at_rank, shape_.tails_offset, slot_index(slot, token));
  }

  // --- Waiting ---

  /// Returns the word once its tag is there, or anything once the call has failed.
  __device__ WideWord wait_tagged(const WideWord* word, const Awaited& awaited) const {
    return wait_tagged(word, load_wide_relaxed(word), awaited);
  }

  /// The same, if `value` was read before.
  __device__ WideWord wait_tagged(const WideWord* word, WideWord value, const Awaited& awaited) const {
    if (value.w == tag()) return value;
    for (std::uint64_t start = 0; value.w != tag();) {
      if (is_over(start, awaited, tag(), value)) break;
      value = load_wide_relaxed(word);
    }
    return value;
  }

  /// Returns a word of a row once it is there.
  __device__ WideWord wait_row(const WideWord* word, WideWord value, const Awaited& awaited) const {
    for (std::uint64_t start = 0; value.w == sync::kArmed;) {
      if (is_over(start, awaited, 0, value)) break;
      value = load_wide_relaxed(word);
    }
    return value;
  }

  /// Makes a place of a row ready for the call after next.
  __device__ static void arm(WideWord* word) { *word = {sync::kArmed, sync::kArmed, sync::kArmed, sync::kArmed}; }

  /// Ends the group: remembers the first cause, tells every peer. Later waits end at once.
  __device__ __noinline__ void fail(ErrorCode code,
                                    const Awaited& awaited,
                                    std::uint32_t expected,
                                    const WideWord& seen,
                                    std::uint64_t waited_ns) const {
    if (atomicExch(&context_.state->is_ended, 1U) != 0) return;
    sync::DeviceReport& report = *context_.report;
    report.failure_code = static_cast<std::uint32_t>(code);
    report.culprit = static_cast<std::uint32_t>(awaited.peer);
    report.waited_for = static_cast<std::uint32_t>(awaited.what);
    report.token = static_cast<std::uint32_t>(awaited.token);
    report.expected[0] = expected;
    report.seen[0] = seen.x;
    report.seen[1] = seen.y;
    report.seen[2] = seen.z;
    report.seen[3] = seen.w;
    report.waited_ns = waited_ns;
    store_release_system(&report.failure_epoch, epoch_);
    const sync::Abort abort{1,
                            static_cast<std::uint32_t>(epoch_),
                            static_cast<std::uint8_t>(awaited.peer),
                            static_cast<std::uint8_t>(code)};
    for (int peer = 0; peer < shape_.num_ranks; ++peer) {
      if (peer != shape_.rank) store_release_system(&control(peer)->aborted[shape_.rank], encode(abort));
    }
  }

  // --- Shares: what one block sends. A block whose peers' blocks did not find a slot sends theirs too ---

  /// One thread: true if the share is this block's now.
  __device__ bool take_share(int share) const {
    if (atomicExch(&context_.state->taken[share], tag()) == tag()) return false;
    atomicAdd(&context_.state->num_taken, 1U);
    return true;
  }

  /// One thread: true once all shares are taken; false if some are not after a while that blocks need to start.
  __device__ bool are_all_taken(int num_shares) const {
    constexpr std::uint64_t kPatienceNs = 20'000;
    std::uint64_t start = 0;
    while (load_relaxed(&context_.state->num_taken) < static_cast<std::uint32_t>(num_shares)) {
      const std::uint64_t now = nanoseconds();
      if (start == 0) start = now;
      if (now - start > kPatienceNs) return false;
    }
    return true;
  }

  /// All threads, at the end: the last block makes the state ready for the next call.
  __device__ void leave() const {
    __syncthreads();
    if (threadIdx.x != 0) return;
    sync::DeviceState& state = *context_.state;
    if (count_acquire_release(&state.num_left) != gridDim.x - 1) return;
    state.num_left = 0;
    state.num_taken = 0;
    state.epoch = epoch_ + 1;
  }

  /// One thread of the grid, at the start: tells every peer that this rank has made the call.
  __device__ void say_header(const sync::DeviceHeader& header, int peer) const {
    // What this rank has read and armed in the calls before comes first: who sees this may write there again.
    fence_system();
    store_wide_relaxed(this->header(peer, shape_.rank), encode(header, tag()));
  }

  /// Returns what the peer says of the call; another call than this one ends the group.
  __device__ sync::DeviceHeader wait_header(int peer, const sync::DeviceHeader& own) const {
    const WideWord* const word = header(shape_.rank, peer);
    const Awaited awaited{DeviceWait::header, peer, 0};
    const WideWord value = wait_tagged(word, awaited);
    const sync::DeviceHeader seen = sync::decode_header(value);
    if (value.w != tag()) return {};
    if (seen.operation != own.operation || seen.digest != own.digest) {
      fail(ErrorCode::invalid_argument, awaited, own.digest, value, 0);
    }
    return seen;
  }

  __device__ void report_refusal(int peer, std::uint32_t code) const {
    sync::DeviceReport& report = *context_.report;
    report.refused_by = static_cast<std::uint32_t>(peer);
    report.refused_code = code;
    store_release_system(&report.refused_epoch, epoch_);
  }

 private:
  __device__ std::uint64_t slot_index(int of, int token) const {
    return std::uint64_t(of) * std::uint64_t(shape_.max_tokens) + std::uint64_t(token);
  }

  __device__ sync::DeviceControl* control(int rank) const {
    return reinterpret_cast<sync::DeviceControl*>(context_.windows +
                                                  std::uint64_t(rank) * context_.window_stride_bytes);
  }

  /// The slow side of a wait; `start` is 0 at its begin. True if it must end without what it waits for.
  __device__ __noinline__ bool is_over(std::uint64_t& start,
                                       const Awaited& awaited,
                                       std::uint32_t expected,
                                       const WideWord& seen) const {
    const std::uint64_t now = nanoseconds();
    if (start == 0) start = now;
    constexpr std::uint64_t kOwnLookNs = 2'000;
    constexpr std::uint64_t kPeerLookNs = 50'000;
    if (now - start < kOwnLookNs) return false;
    if (is_ended()) return true;
    if (now - start < kPeerLookNs) return false;
    if (const int peer = find_abort(); peer >= 0) {
      const sync::Abort abort = sync::decode_abort(load_relaxed_system(&control(shape_.rank)->aborted[peer]));
      // The first cause counts, whoever tells of it.
      fail(static_cast<ErrorCode>(abort.code),
           {awaited.what, abort.culprit, awaited.token},
           expected,
           seen,
           now - start);
      return true;
    }
    const sync::DeviceReport& report = *context_.report;
    const std::uint64_t limit =
        load_relaxed_system(awaited.what == DeviceWait::header ? &report.arrival_limit_ns : &report.progress_limit_ns);
    if (now - start < limit) {
      __nanosleep(200);
      return false;
    }
    fail(ErrorCode::timeout, awaited, expected, seen, now - start);
    return true;
  }

  __device__ int find_abort() const {
    for (int peer = 0; peer < shape_.num_ranks; ++peer) {
      if (load_relaxed_system(&control(shape_.rank)->aborted[peer]) != 0) return peer;
    }
    return -1;
  }

  const DeviceShape& shape_;
  const DeviceContext& context_;
  std::uint64_t epoch_;
  std::uint64_t parity_;
};

/// Returns the rank that owns an expert.
__device__ __forceinline__ int owner_of(const DeviceShape& shape, int expert) {
  if (shape.even_local_experts > 0) return expert / shape.even_local_experts;
  int low = 0;
  int high = shape.num_ranks - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (shape.first_expert[middle] <= expert) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

constexpr unsigned kAllLanes = 0xFFFFFFFFU;

}  // namespace moebus::backend::cuda
