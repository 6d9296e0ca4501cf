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

constexpr int kMaxThreads = 512;
constexpr int kTogether = 4;  // rows whose words are asked for before the first is used

/// What an owner needs of one token of one source: same for all threads, in shared memory.
struct OwnedRow {
  std::int32_t positions[model::kMaxDeviceTopk];
  float weights[model::kMaxDeviceTopk];
};

template <DType kType>
class Combiner {
 public:
  __device__ Combiner(const DeviceCombine& combine, const DeviceCall& call, OwnedRow* owned)
      : combine_(combine), shape_(combine.shape), call_(call), owned_(owned) {
    row_bytes_ =
        static_cast<std::uint32_t>(shape_.combine_hidden) * static_cast<std::uint32_t>(size_of(shape_.combine_dtype));
    are_rows_aligned_ = is_aligned(combine.rows.data, combine.rows.row_stride_bytes);
    is_output_aligned_ = is_aligned(combine.output.data, combine.output.row_stride_bytes);
  }

  /// All threads: pushes rows of a share of all peers' tokens.
  __device__ void send_share(int share, int num_shares) {
    for (int token = share; token < shape_.max_tokens; token += num_shares) {
      for (int step = 1; step < shape_.num_ranks; ++step) {
        const int home = (shape_.rank + step) % shape_.num_ranks;
        const int slot = combine_.handle.slots[at(home, token)];
        if (slot >= 0) push(home, token, slot);
      }
    }
  }

  /// All threads: adds up own tokens of a share.
  __device__ void take_share(int share, int num_shares) {
    for (int token = share; token < combine_.num_tokens; token += num_shares) add_up(token);
  }

 private:
  [[nodiscard]] __device__ std::int64_t at(int src, int token) const {
    return std::int64_t{src} * shape_.max_tokens + token;
  }

  /// All threads: the choices of a token that sit here; returns those with a row, as bits.
  __device__ std::uint32_t load_owned(int src, int token) {
    half_ ^= 1;
    const int lane = static_cast<int>(threadIdx.x % 32);
    const std::int64_t first = at(src, token) * shape_.num_topk;
    const std::int32_t position = lane < shape_.num_topk ? combine_.handle.positions[first + lane] : -1;
    if (threadIdx.x < 32) {
      owned_[half_].positions[lane] = position;
      owned_[half_].weights[lane] =
          combine_.is_weighted && position >= 0 ? combine_.handle.recv_weights[first + lane] : 0;
    }
    const std::uint32_t kept = __ballot_sync(kAllLanes, position >= 0);
    // The half that is written here was last read a row ago: that row's barrier is behind everybody.
    __syncthreads();
    return kept;
  }

  [[nodiscard]] __device__ WideWord load_row_word(std::int32_t row, std::uint32_t word) const {
    return load_word(combine_.rows.data + row * combine_.rows.row_stride_bytes, row_bytes_, word, are_rows_aligned_);
  }

  /// One word of what this rank adds to a token: its experts' rows in order of the choices, rounded once; a rank_major
  /// row is that sum already.
  [[nodiscard]] __device__ WideWord owned_word(std::uint32_t kept, std::uint32_t word) const {
    const OwnedRow& owned = owned_[half_];
    if (shape_.layout == Layout::rank_major) {
      return load_row_word(owned.positions[__ffs(static_cast<int>(kept)) - 1], word);
    }
    WordSum<kType> sum;
    for (std::uint32_t rest = kept; rest != 0;) {
      WideWord value[kTogether];
      int choice[kTogether];
      int num = 0;
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        if (rest == 0) continue;
        choice[i] = __ffs(static_cast<int>(rest)) - 1;
        rest &= rest - 1;
        value[i] = load_row_word(owned.positions[choice[i]], word);
        num = i + 1;
      }
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        if (i >= num) continue;
        if (combine_.is_weighted) {
          sum.add(value[i], owned.weights[choice[i]]);
        } else {
          sum.add(value[i]);
        }
      }
    }
    return sum.rounded();
  }

  __device__ void push(int home, int token, int slot) {
    const std::uint32_t kept = load_owned(home, token);
    if (shape_.can_overflow && threadIdx.x == 0) {
      store_wide_relaxed(call_.tail(home, slot, token), {kept, 0, 0, call_.tag()});
    }
    if (kept == 0) return;
    WideWord* const row = call_.combined_row(home, slot, token);
    for (std::uint32_t word = threadIdx.x; word < shape_.combine_words; word += blockDim.x) {
      WideWord value = owned_word(kept, word);
      // All ones are NaN, and sums do not tell one NaN from another.
      if (value.w == sync::kArmed) value.w = Elements<kType>::kNotArmed;
      store_wide_relaxed(row + word, value);
    }
  }

  /// Slots of a token that bring something; the own rank's is not among them. Notes what is missing.
  __device__ std::uint64_t slots_of(int token, int num_slots, int own_slot, std::uint32_t own_kept) {
    std::uint64_t slots = num_slots >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << num_slots) - 1;
    if (own_slot >= 0) slots &= ~(std::uint64_t{1} << own_slot);
    if (!shape_.can_overflow) return slots;
    std::uint32_t there = own_kept;
    for (int slot = 0; slot < num_slots; ++slot) {
      if (slot == own_slot) continue;
      const WideWord tail =
          call_.wait_tagged(call_.tail(shape_.rank, slot, token), {DeviceWait::tail, shape_.rank, token});
      if (tail.x == 0) slots &= ~(std::uint64_t{1} << slot);
      there |= tail.x;
    }
    if (threadIdx.x < 32) note_missing(token, there);
    return slots;
  }

  /// A warp.
  __device__ void note_missing(int token, std::uint32_t there) {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const bool is_chosen =
        lane < shape_.num_topk && combine_.handle.ids[std::int64_t{token} * shape_.num_topk + lane] >= 0;
    const std::uint32_t missing = __ballot_sync(kAllLanes, is_chosen && (there >> lane & 1) == 0);
    if (lane == 0 && combine_.out_missing != nullptr) combine_.out_missing[token] = missing;
  }

  __device__ void add_up(int token) {
    const int num_slots = combine_.handle.home[2 * token];
    const int own_slot = static_cast<int>(combine_.handle.home[2 * token + 1]) - 1;
    const std::uint32_t own_kept = own_slot >= 0 ? load_owned(shape_.rank, token) : 0;
    const std::uint64_t slots = slots_of(token, num_slots, own_slot, own_kept);
    for (std::uint32_t word = threadIdx.x; word < shape_.combine_words; word += blockDim.x) {
      WordSum<kType> sum;
      add_bias(token, word, sum);
      WideWord own{};
      if (own_kept != 0) own = owned_word(own_kept, word);
      for (int first = 0; first < num_slots; first += kTogether) {
        WideWord value[kTogether];
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
          if ((slots >> (first + i) & 1) != 0) {
            value[i] = load_wide_relaxed(call_.combined_row(shape_.rank, first + i, token) + word);
          }
        }
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
          if (first + i == own_slot && own_kept != 0) sum.add(own);
          if ((slots >> (first + i) & 1) == 0) continue;
          WideWord* const slot = call_.combined_row(shape_.rank, first + i, token) + word;
          value[i] = call_.wait_row(slot, value[i], {DeviceWait::row, shape_.rank, token});
          DeviceCall::arm(slot);
          sum.add(value[i]);
        }
      }
      if (combine_.output.data != nullptr) {
        store_word(combine_.output.data + token * combine_.output.row_stride_bytes,
                   row_bytes_,
                   word,
                   is_output_aligned_,
                   sum.rounded());
      }
    }
  }

  __device__ void add_bias(int token, std::uint32_t word, WordSum<kType>& sum) const {
    for (int i = 0; i < 2; ++i) {
      if (combine_.bias[i] == nullptr) continue;
      const std::int64_t stride = combine_.bias_stride_bytes[i];
      const std::byte* const row = combine_.bias[i] + token * stride;
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
  OwnedRow* owned_;
  int half_ = 0;
  std::uint32_t row_bytes_ = 0;
  bool are_rows_aligned_ = false;
  bool is_output_aligned_ = false;
};

template <DType kType>
__global__ void __launch_bounds__(kMaxThreads, 1) combine(const __grid_constant__ DeviceCombine args) {
  __shared__ OwnedRow owned[2];
  __shared__ int is_mine;
  const DeviceShape& shape = args.shape;
  const DeviceCall call(shape, args.context);
  const int num_shares = static_cast<int>(gridDim.x);
  const int own_share = static_cast<int>(blockIdx.x);
  const sync::DeviceHeader header{static_cast<std::uint32_t>(args.num_tokens),
                                  static_cast<std::uint8_t>(sync::Operation::combine_latency),
                                  false,
                                  shape.digest,
                                  args.refusal};
  if (own_share == 0) {
    for (int peer = static_cast<int>(threadIdx.x); peer < shape.num_ranks; peer += static_cast<int>(blockDim.x)) {
      if (peer != shape.rank) call.say_header(header, peer);
    }
  }
  Combiner<kType> combiner(args, call, owned);
  const auto send_if_mine = [&](int share) {
    if (threadIdx.x == 0) is_mine = call.take_share(share) ? 1 : 0;
    __syncthreads();
    const bool is_taken = is_mine != 0;
    __syncthreads();
    if (is_taken) combiner.send_share(share, num_shares);
  };
  send_if_mine(own_share);
  __syncthreads();
  // Nobody waits for peers before everything has left: a rank makes progress in a single block slot.
  if (threadIdx.x == 0) is_mine = call.are_all_taken(num_shares) ? 1 : 0;
  __syncthreads();
  if (is_mine == 0) {
    for (int share = 0; share < num_shares; ++share) {
      __syncthreads();
      send_if_mine(share);
    }
  }
  combiner.take_share(own_share, num_shares);
  if (own_share == 0) {
    // Every rank has signalled, rows or not: only then may a parity be used again.
    for (int peer = static_cast<int>(threadIdx.x); peer < shape.num_ranks; peer += static_cast<int>(blockDim.x)) {
      if (peer == shape.rank) continue;
      const sync::DeviceHeader seen = call.wait_header(peer, header);
      if (seen.refusal != 0) call.report_refusal(peer, seen.refusal);
    }
  }
  call.leave();
}

using Kernel = void (*)(DeviceCombine);

Kernel kernel_for(const DeviceShape& shape) {
  if (shape.combine_dtype == DType::f16) return combine<DType::f16>;
  return shape.combine_dtype == DType::f32 ? combine<DType::f32> : combine<DType::bf16>;
}

}  // namespace

void launch_combine(const DeviceCombine& combine, const DeviceLaunch& launch, const DeviceFacts& facts) {
  launch_kernel(kernel_for(combine.shape),
                combine,
                {shares_for(combine.shape, launch, facts), threads_for(combine.shape.combine_words, kMaxThreads), 0},
                launch.stream);
}

void load_combine(const DeviceShape& shape) { load_kernel(kernel_for(shape), 0); }

void load_kernels(const DeviceShape& shape, const DeviceFacts& /*facts*/) {
  load_dispatch(shape);
  load_combine(shape);
}

}  // namespace moebus::backend::cuda
