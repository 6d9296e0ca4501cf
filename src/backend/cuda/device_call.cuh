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

/// What the slow side of a wait needs; in shared memory, made once a block. Code that waits is one comparison and one
/// call wherever it stands: a kernel's time at few tokens is the time to fetch its instructions.
struct Alarm {
  std::byte* windows;
  std::uint64_t window_stride_bytes;
  sync::DeviceState* state;
  sync::DeviceReport* report;
  std::uint64_t epoch;
  int rank;
  int num_ranks;

  [[nodiscard]] __device__ sync::DeviceControl* control(int of_rank) const {
    return reinterpret_cast<sync::DeviceControl*>(windows + std::uint64_t(of_rank) * window_stride_bytes);
  }
};

/// Ends the group: remembers the first cause, tells every peer. Later waits end at once.
static __device__ __noinline__ void sound(const Alarm& alarm,
                                          ErrorCode code,
                                          Awaited awaited,
                                          std::uint32_t expected,
                                          WideWord seen,
                                          std::uint64_t waited_ns) {
  if (atomicExch(&alarm.state->is_ended, 1U) != 0) return;
  sync::DeviceReport& report = *alarm.report;
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
  store_release_system(&report.failure_epoch, alarm.epoch);
  const sync::Abort abort{1,
                          static_cast<std::uint32_t>(alarm.epoch),
                          static_cast<std::uint8_t>(awaited.peer),
                          static_cast<std::uint8_t>(code)};
#pragma unroll 1
  for (int peer = 0; peer < alarm.num_ranks; ++peer) {
    if (peer != alarm.rank) store_release_system(&alarm.control(peer)->aborted[alarm.rank], encode(abort));
  }
}

/// The slow side of a wait that began at `start` (0: now). Returns when it began, or 0 if it must end without what it
/// waits for.
static __device__ std::uint64_t look_around(
    const Alarm& alarm, std::uint64_t start, Awaited awaited, std::uint32_t expected, WideWord seen) {
  const std::uint64_t now = nanoseconds();
  if (start == 0) return now;
  constexpr std::uint64_t kOwnLookNs = 2'000;
  constexpr std::uint64_t kPeerLookNs = 50'000;
  if (now - start < kOwnLookNs) return start;
  if (load_relaxed(&alarm.state->is_ended) != 0) return 0;
  if (now - start < kPeerLookNs) return start;
#pragma unroll 1
  for (int peer = 0; peer < alarm.num_ranks; ++peer) {
    const std::uint64_t word = load_relaxed_system(&alarm.control(alarm.rank)->aborted[peer]);
    if (word == 0) continue;
    // The first cause counts, whoever tells of it.
    const sync::Abort abort = sync::decode_abort(word);
    sound(alarm,
          static_cast<ErrorCode>(abort.code),
          {awaited.what, abort.culprit, awaited.token},
          expected,
          seen,
          now - start);
    return 0;
  }
  const sync::DeviceReport& report = *alarm.report;
  const std::uint64_t limit =
      load_relaxed_system(awaited.what == DeviceWait::header ? &report.arrival_limit_ns : &report.progress_limit_ns);
  if (now - start < limit) {
    __nanosleep(200);
    return start;
  }
  sound(alarm, ErrorCode::timeout, awaited, expected, seen, now - start);
  return 0;
}

/// Looks at a word before the clock is read for the first time, and between two looks at it: reading the clock takes
/// longer than a word that is on its way.
constexpr int kSpins = 32;

/// Waits until the last word is `tag` (kTagged), or is no longer kArmed. Returns what is there, or was when the call
/// failed.
template <bool kTagged>
static __device__ __noinline__ WideWord
wait_for(const Alarm& alarm, const WideWord* word, std::uint32_t tag, Awaited awaited) {
  const auto is_there = [&](const WideWord& value) { return kTagged ? value.w == tag : value.w != sync::kArmed; };
  WideWord value = load_wide_relaxed(word);
  for (std::uint64_t start = 0;;) {
#pragma unroll 1
    for (int spin = 0; spin < kSpins && !is_there(value); ++spin) value = load_wide_relaxed(word);
    if (is_there(value)) return value;
    start = look_around(alarm, start, awaited, tag, value);
    if (start == 0) return value;
  }
}

/// Threads keep their own copy; everything in it is the same for all of a block.
class DeviceCall {
 public:
  /// `alarm` is the block's; a barrier must come before the first wait.
  __device__ DeviceCall(const DeviceShape& shape, const DeviceContext& context, Alarm& alarm)
      : shape_(shape), context_(context), alarm_(alarm), epoch_(load_relaxed(&context.state->epoch)) {
    parity_ = sizeof(sync::DeviceControl) + (epoch_ % 2) * context.parity_stride_bytes;
    if (threadIdx.x == 0) {
      alarm = {context.windows,
               context.window_stride_bytes,
               context.state,
               context.report,
               epoch_,
               shape.rank,
               shape.num_ranks};
    }
  }

  __device__ std::uint32_t tag() const { return sync::tag_of(epoch_); }

  __device__ std::uint64_t epoch() const { return epoch_; }

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
  __device__ WideWord wait_tagged(const WideWord* word, const WideWord& value, const Awaited& awaited) const {
    return value.w == tag() ? value : wait_for<true>(alarm_, word, tag(), awaited);
  }

  /// Returns a word of a row once it is there.
  __device__ WideWord wait_row(const WideWord* word, const WideWord& value, const Awaited& awaited) const {
    return value.w != sync::kArmed ? value : wait_for<false>(alarm_, word, 0, awaited);
  }

  [[nodiscard]] const __device__ Alarm& alarm() const { return alarm_; }

  /// Makes a place of a row ready for the call after next.
  __device__ static void arm(WideWord* word) { *word = {sync::kArmed, sync::kArmed, sync::kArmed, sync::kArmed}; }

  // --- Shares: what one block sends. A block whose peers' blocks did not find a slot sends theirs too ---

  /// One thread: true if the share is this block's now.
  __device__ bool take_share(int share) const {
    if (atomicExch(&context_.state->taken[share], tag()) == tag()) return false;
    atomicAdd(&context_.state->num_taken, 1U);
    return true;
  }

  /// One thread: true once all shares are taken; false if some are not after a while that blocks need to start.
  __device__ bool are_all_taken(int num_shares) const {
    constexpr long long kPatienceCycles = 40'000;
    const long long start = clock64();
    while (load_relaxed(&context_.state->num_taken) < static_cast<std::uint32_t>(num_shares)) {
      if (clock64() - start > kPatienceCycles) return false;
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
      sound(alarm_, ErrorCode::invalid_argument, awaited, own.digest, value, 0);
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

  const DeviceShape& shape_;
  const DeviceContext& context_;
  const Alarm& alarm_;
  std::uint64_t epoch_;
  std::uint64_t parity_;
};

/// Returns the rank that owns an expert.
__device__ __forceinline__ int owner_of(const DeviceShape& shape, int expert) {
  if (shape.even_local_experts == 1) return expert;
  if (shape.even_local_experts > 1) {
    return static_cast<int>(__umulhi(static_cast<std::uint32_t>(expert), shape.even_multiplier));
  }
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

/// Calls `work(token, unit)` for `num_units` units of each token of a share below `num_tokens`; warps take turns.
template <class Work>
__device__ __forceinline__ void for_each_unit(
    int share, int num_shares, int num_tokens, int num_units, const Work& work) {
  const int num_warps = static_cast<int>(blockDim.x / 32);
  const int num_own = share < num_tokens ? (num_tokens - share - 1) / num_shares + 1 : 0;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x / 32); i < num_own * num_units; i += num_warps) {
    work(share + i / num_units * num_shares, i % num_units);
  }
}

/// All threads: sends the block's own share (-1: it has none), then whatever nobody took: blocks whose slots are not
/// free yet. Nobody waits for peers before everything has left, so a rank makes progress in a single block slot. `send`
/// is called in one place: its instructions are most of a kernel.
template <class Send>
__device__ __forceinline__ void send_shares(
    const DeviceCall& call, int own_share, int num_shares, int& shared_flag, const Send& send) {
  // Own share, then a look whether all are taken, then each of them in turn.
  int share = own_share;
#pragma unroll 1
  for (int step = own_share < 0 ? 1 : 0;; ++step) {
    if (step == 1) {
      if (threadIdx.x == 0) shared_flag = call.are_all_taken(num_shares) ? 1 : 0;
      __syncthreads();
      const bool is_done = shared_flag != 0;
      __syncthreads();
      if (is_done) return;
    }
    if (step > 0) share = step - 1;
    if (share >= num_shares) return;
    if (threadIdx.x == 0) shared_flag = call.take_share(share) ? 1 : 0;
    __syncthreads();
    const bool is_mine = shared_flag != 0;
    __syncthreads();
    if (is_mine) send(share);
  }
}

}  // namespace moebus::backend::cuda
