// Latency combine: owners push rows, summed over their experts, into the homes' slots [place among the token's
// ranks][token]; homes add them up in that order as they come.
// Room: backend/cuda · device.
// Source: [ours] design 4.6 (order and rounding of sums), 4.5 (self-validating rows); measured sketches,
// docs/performance.md.

#include "backend/cuda/cuda_check.hpp"
#include "backend/cuda/device_call.cuh"
#include "backend/cuda/kernels.hpp"
#include "backend/cuda/launch.hpp"
#include "backend/cuda/rows.cuh"

namespace moebus::backend::cuda {

namespace {

constexpr int kTogether = 4;  // rows whose words are asked for before the first is used

/// Rows are worked on in pieces, one a warp at a time.
constexpr int kPerLane = 2;
constexpr std::uint32_t kPieceWords = 32 * kPerLane;

/// What this rank adds to a token, as a warp sees it: lane = choice.
struct Owned {
  std::int32_t row = -1;
  float weight = 0;
  std::uint32_t kept = 0;  ///< lanes with a row
};

/// Waits for a word of a slot of an own token. Slots stand in order of the ranks' last chosen experts: who is waited
/// for is found only here.
template <bool kTagged>
static __device__ __noinline__ WideWord
wait_for_slot(const DeviceCombine& combine, const DeviceCall& call, const WideWord* word, int token, int slot) {
  const DeviceShape& shape = combine.shape;
  int left = combine.handle.home[2 * token] - 1 - slot;
  int owner = shape.rank;
  std::uint64_t seen = 0;
#pragma unroll 1
  for (int k = shape.num_topk - 1; k >= 0 && left >= 0; --k) {
    const int expert = combine.handle.ids[std::int64_t{token} * shape.num_topk + k];
    if (expert < 0) continue;
    owner = owner_of(shape, expert);
    if ((seen >> owner & 1) == 0) --left;
    seen |= std::uint64_t{1} << owner;
  }
  return wait_for<kTagged>(
      call.alarm(), word, call.tag(), {kTagged ? DeviceWait::tail : DeviceWait::row, owner, token});
}

/// A warp's.
template <DType kType>
class Combiner {
 public:
  __device__ Combiner(const DeviceCombine& combine, const DeviceCall& call)
      : combine_(combine), shape_(combine.shape), call_(call), lane_(threadIdx.x % 32) {
    row_bytes_ =
        static_cast<std::uint32_t>(shape_.combine_hidden) * static_cast<std::uint32_t>(size_of(shape_.combine_dtype));
    are_rows_aligned_ = is_aligned(combine.rows.data, combine.rows.row_stride_bytes);
    is_output_aligned_ = is_aligned(combine.output.data, combine.output.row_stride_bytes);
  }

  [[nodiscard]] __device__ int num_pieces() const {
    return static_cast<int>(base::ceil_div(shape_.combine_words, kPieceWords));
  }

  /// Pushes a piece of what this rank adds to a peer's token.
  __device__ void push(int home, int token, int piece) const {
    const int slot = combine_.handle.slots[at(home, token)];
    const Owned owned = owned_of(home, token);
    if (slot < 0) return;
    if (shape_.can_overflow && piece == 0 && lane_ == 0) {
      store_wide_relaxed(call_.tail(home, slot, token), {owned.kept, 0, 0, call_.tag()});
    }
    if (owned.kept == 0) return;
    WideWord* const row = call_.combined_row(home, slot, token);
    WideWord value[kPerLane];
    add_owned(owned, piece, value);
#pragma unroll
    for (std::uint32_t i = 0; i < kPerLane; ++i) {
      const std::uint32_t word = word_of(piece, i);
      // All ones are NaN, and sums do not tell one NaN from another.
      if (value[i].w == sync::kArmed) value[i].w = Elements<kType>::kNotArmed;
      if (word < shape_.combine_words) store_wide_relaxed(row + word, value[i]);
    }
  }

  /// Adds up a piece of an own token.
  __device__ void add_up(int token, int piece) const {
    const int num_slots = combine_.handle.home[2 * token];
    const int own_slot = static_cast<int>(combine_.handle.home[2 * token + 1]) - 1;
    Owned owned;
    if (own_slot >= 0) owned = owned_of(shape_.rank, token);
    const std::uint64_t slots = slots_of(token, piece, num_slots, own_slot, owned.kept);
    WordSum<kType> sum[kPerLane];
    WideWord own[kPerLane];
    if (owned.kept != 0) add_owned(owned, piece, own);
#pragma unroll
    for (std::uint32_t i = 0; i < kPerLane; ++i) add_bias(token, word_of(piece, i), sum[i]);
#pragma unroll 1
    for (int first = 0; first < num_slots; first += kTogether) {
      WideWord value[kTogether][kPerLane];
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        if ((slots >> (first + j) & 1) == 0) continue;
        const WideWord* const slot = call_.combined_row(shape_.rank, first + j, token);
#pragma unroll
        for (std::uint32_t i = 0; i < kPerLane; ++i) {
          if (word_of(piece, i) < shape_.combine_words) value[j][i] = load_wide_relaxed(slot + word_of(piece, i));
        }
      }
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        if (first + j == own_slot && owned.kept != 0) {
#pragma unroll
          for (std::uint32_t i = 0; i < kPerLane; ++i) sum[i].add(own[i]);
        }
        if ((slots >> (first + j) & 1) == 0) continue;
        WideWord* const slot = call_.combined_row(shape_.rank, first + j, token);
#pragma unroll
        for (std::uint32_t i = 0; i < kPerLane; ++i) {
          const std::uint32_t word = word_of(piece, i);
          if (word >= shape_.combine_words) continue;
          WideWord there = value[j][i];
          if (there.w == sync::kArmed) there = wait_for_slot<false>(combine_, call_, slot + word, token, first + j);
          DeviceCall::arm(slot + word);
          sum[i].add(there);
        }
      }
    }
    if (combine_.output.data == nullptr) return;
    std::byte* const output = combine_.output.data + token * combine_.output.row_stride_bytes;
#pragma unroll
    for (std::uint32_t i = 0; i < kPerLane; ++i) {
      const std::uint32_t word = word_of(piece, i);
      if (word < shape_.combine_words) store_word(output, row_bytes_, word, is_output_aligned_, sum[i].rounded());
    }
  }

 private:
  [[nodiscard]] __device__ std::int64_t at(int src, int token) const {
    return std::int64_t{src} * shape_.max_tokens + token;
  }

  [[nodiscard]] __device__ std::uint32_t word_of(int piece, std::uint32_t i) const {
    return static_cast<std::uint32_t>(piece) * kPieceWords + 32 * i + lane_;
  }

  [[nodiscard]] __device__ Owned owned_of(int src, int token) const {
    const std::int64_t item = at(src, token) * shape_.num_topk + lane_;
    Owned owned;
    if (static_cast<int>(lane_) < shape_.num_topk) {
      owned.row = combine_.handle.positions[item];
      if (combine_.is_weighted) owned.weight = combine_.handle.recv_weights[item];
    }
    owned.kept = __ballot_sync(kAllLanes, owned.row >= 0);
    return owned;
  }

  /// Experts' rows in order of the choices, rounded once; a rank_major row is that sum already. All lanes.
  __device__ void add_owned(const Owned& owned, int piece, WideWord (&result)[kPerLane]) const {
    if (shape_.layout == Layout::rank_major) {
      load_piece(__shfl_sync(kAllLanes, owned.row, __ffs(static_cast<int>(owned.kept)) - 1), piece, result);
      return;
    }
    WordSum<kType> sum[kPerLane];
#pragma unroll 1
    for (std::uint32_t rest = owned.kept; rest != 0;) {
      WideWord value[kTogether][kPerLane];
      float weight[kTogether];
      const int num = __popc(rest);  // those that are left
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        weight[j] = 0;
        if (j >= num) continue;
        const int choice = __ffs(static_cast<int>(rest)) - 1;
        load_piece(__shfl_sync(kAllLanes, owned.row, choice), piece, value[j]);
        weight[j] = __shfl_sync(kAllLanes, owned.weight, choice);
        rest &= rest - 1;
      }
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        if (j >= num) continue;
#pragma unroll
        for (std::uint32_t i = 0; i < kPerLane; ++i) {
          if (combine_.is_weighted) {
            sum[i].add(value[j][i], weight[j]);
          } else {
            sum[i].add(value[j][i]);
          }
        }
      }
    }
#pragma unroll
    for (std::uint32_t i = 0; i < kPerLane; ++i) result[i] = sum[i].rounded();
  }

  __device__ void load_piece(std::int32_t row, int piece, WideWord (&value)[kPerLane]) const {
    const std::byte* const data = combine_.rows.data + row * combine_.rows.row_stride_bytes;
#pragma unroll
    for (std::uint32_t i = 0; i < kPerLane; ++i) {
      value[i] = WideWord{};
      if (word_of(piece, i) < shape_.combine_words) {
        value[i] = load_word(data, row_bytes_, word_of(piece, i), are_rows_aligned_);
      }
    }
  }

  /// Slots of a token that bring something; the own rank's is not among them. Notes what is missing.
  [[nodiscard]] __device__ std::uint64_t slots_of(
      int token, int piece, int num_slots, int own_slot, std::uint32_t own_kept) const {
    std::uint64_t slots = (std::uint64_t{1} << num_slots) - 1;
    if (own_slot >= 0) slots &= ~(std::uint64_t{1} << own_slot);
    if (!shape_.can_overflow) return slots;
    std::uint32_t there = own_kept;
#pragma unroll 1
    for (int slot = 0; slot < num_slots; ++slot) {
      if (slot == own_slot) continue;
      const WideWord tail = wait_for_slot<true>(combine_, call_, call_.tail(shape_.rank, slot, token), token, slot);
      if (tail.x == 0) slots &= ~(std::uint64_t{1} << slot);
      there |= tail.x;
    }
    if (piece == 0) note_missing(token, there);
    return slots;
  }

  __device__ void note_missing(int token, std::uint32_t there) const {
    const bool is_chosen = static_cast<int>(lane_) < shape_.num_topk &&
                           combine_.handle.ids[std::int64_t{token} * shape_.num_topk + lane_] >= 0;
    const std::uint32_t missing = __ballot_sync(kAllLanes, is_chosen && (there >> lane_ & 1) == 0);
    if (lane_ == 0 && combine_.out_missing != nullptr) combine_.out_missing[token] = missing;
  }

  __device__ void add_bias(int token, std::uint32_t word, WordSum<kType>& sum) const {
#pragma unroll 1
    for (int i = 0; i < 2; ++i) {
      if (combine_.bias[i] == nullptr) continue;
      const std::int64_t stride = combine_.bias_stride_bytes[i];
      const std::byte* const row = combine_.bias[i] + token * stride;
      if (word >= shape_.combine_words) continue;
      const WideWord value = load_word(row, row_bytes_, word, is_aligned(combine_.bias[i], stride));
      if (i == 0) {
        sum.start(value);
      } else {
        sum.add(value);
      }
    }
  }

  const DeviceCombine& combine_;
  const DeviceShape& shape_;
  const DeviceCall& call_;
  std::uint32_t lane_;
  std::uint32_t row_bytes_ = 0;
  bool are_rows_aligned_ = false;
  bool is_output_aligned_ = false;
};

template <DType kType>
__global__ void __launch_bounds__(kThreads, 1) combine(const __grid_constant__ DeviceCombine args) {
  __shared__ Alarm alarm;
  __shared__ int is_mine;
  const DeviceShape& shape = args.shape;
  const DeviceCall call(shape, args.context, alarm);
  const int num_shares = static_cast<int>(gridDim.x);
  const int own_share = static_cast<int>(blockIdx.x);
  const sync::DeviceHeader header{static_cast<std::uint32_t>(args.num_tokens),
                                  static_cast<std::uint8_t>(sync::Operation::combine_latency),
                                  false,
                                  shape.digest,
                                  args.refusal};
  if (own_share == 0) {
#pragma unroll 1
    for (int peer = static_cast<int>(threadIdx.x); peer < shape.num_ranks; peer += static_cast<int>(blockDim.x)) {
      if (peer != shape.rank) call.say_header(header, peer);
    }
  }
  const Combiner<kType> combiner(args, call);
  const int num_pieces = combiner.num_pieces();
  send_shares(call, own_share, num_shares, is_mine, [&](int share) {
    for_each_unit(share, num_shares, shape.max_tokens, num_pieces * (shape.num_ranks - 1), [&](int token, int unit) {
      combiner.push((shape.rank + 1 + unit / num_pieces) % shape.num_ranks, token, unit % num_pieces);
    });
  });
  // Whether a peer has come at all is asked first: that wait has a limit of its own. Every rank signals in every call,
  // rows or not: only then may a parity be used again.
#pragma unroll 1
  for (int peer = static_cast<int>(threadIdx.x); peer < shape.num_ranks; peer += static_cast<int>(blockDim.x)) {
    if (peer == shape.rank) continue;
    const sync::DeviceHeader seen = call.wait_header(peer, header);
    if (own_share == 0 && seen.refusal != 0) call.report_refusal(peer, seen.refusal);
  }
  __syncthreads();
  for_each_unit(own_share, num_shares, args.num_tokens, combiner.num_pieces(), [&](int token, int piece) {
    combiner.add_up(token, piece);
  });
  call.leave();
}

using Kernel = void (*)(DeviceCombine);

Kernel kernel_for(const DeviceShape& shape) {
  if (shape.combine_dtype == DType::f16) return combine<DType::f16>;
  return shape.combine_dtype == DType::f32 ? combine<DType::f32> : combine<DType::bf16>;
}

}  // namespace

void launch_combine(const DeviceCombine& combine, const DeviceLaunch& launch, const DeviceFacts& facts) {
  launch_kernel(kernel_for(combine.shape), combine, {shares_for(combine.shape, launch, facts), 0}, launch.stream);
}

void load_combine(const DeviceShape& shape) { load_kernel(kernel_for(shape), 0); }

void load_kernels(const DeviceShape& shape, const DeviceFacts& /*facts*/) {
  load_dispatch(shape);
  load_combine(shape);
}

}  // namespace moebus::backend::cuda
