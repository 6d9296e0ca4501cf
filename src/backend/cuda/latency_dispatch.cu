// Latency dispatch: rows leave before anyone's routing is known, for slots [source][token] at their destinations, and
// are placed as they come. Block 0 keeps the books, the others carry rows.
// Room: backend/cuda · device.
// Source: [ours] design 4.2, 4.5 (self-validating rows), 4.8 (shares); measured sketches, docs/performance.md.

#include "backend/cuda/cuda_check.hpp"
#include "backend/cuda/kernels.hpp"
#include "backend/cuda/launch.hpp"
#include "backend/cuda/routing.cuh"
#include "backend/cuda/rows.cuh"

namespace moebus::backend::cuda {

namespace {

constexpr int kMaxThreads = 512;

/// Result rows that one received row goes to: rows[i] for each bit i of `lanes`.
struct Copies {
  std::uint32_t lanes;
  const std::int32_t* rows;
};

/// Carries rows of one rank's tokens out, and those of all ranks in. A block's; threads keep their own copy.
template <Cast kCast, ScaleFormat kFormat>
class RowCarrier {
 public:
  __device__ RowCarrier(const DeviceDispatch& dispatch, const DeviceCall& call, const PlanMaps& maps)
      : dispatch_(dispatch), shape_(dispatch.shape), call_(call), maps_(maps) {
    is_input_aligned_ = is_aligned(dispatch.tokens.data, dispatch.tokens.row_stride_bytes);
    is_output_aligned_ = is_aligned(dispatch.out_tokens.data, dispatch.out_tokens.row_stride_bytes);
  }

  /// All threads: sends the tokens of a share, one of `num_shares`.
  __device__ void send_share(int share, int num_shares) {
    for (int token = share; token < dispatch_.num_tokens; token += num_shares) send_token(token);
  }

  /// All threads: places this rank's own row of a token.
  __device__ void take_own(int token, const Copies& copies) {
    begin_row();
    for_each_payload_word(token, [&](std::uint32_t word, const WideWord& value) {
      for_each_copy(copies, [&](std::int64_t row) { place(row, word, value); });
    });
    __syncthreads();
    for (std::uint32_t word = shape_.part[0].num_words + threadIdx.x; word < shape_.row_words; word += blockDim.x) {
      const WideWord value = side_word(token, word);
      for_each_copy(copies, [&](std::int64_t row) { place(row, word, value); });
    }
  }

  /// All threads: places a row that comes from a peer, and makes its place ready again.
  __device__ void take_peer(int src, int token, const Copies& copies) {
    WideWord* const slot = call_.row(shape_.rank, src, token);
    const Awaited awaited{DeviceWait::row, src, token};
    constexpr std::uint32_t kTogether = kCast == Cast::none ? 2 : 1;
    for (std::uint32_t first = 0; first < shape_.row_words; first += kTogether * blockDim.x) {
      WideWord value[kTogether];
#pragma unroll
      for (std::uint32_t i = 0; i < kTogether; ++i) {
        const std::uint32_t word = first + i * blockDim.x + threadIdx.x;
        if (word < shape_.row_words) value[i] = load_wide_relaxed(slot + word);
      }
#pragma unroll
      for (std::uint32_t i = 0; i < kTogether; ++i) {
        const std::uint32_t word = first + i * blockDim.x + threadIdx.x;
        if (word >= shape_.row_words) continue;
        value[i] = call_.wait_row(slot + word, value[i], awaited);
        DeviceCall::arm(slot + word);
        if (shape_.escape_words > 0) {
          const std::uint32_t mask = word / 32;
          const WideWord* const at = call_.escapes(shape_.rank, src, token) + mask / 3;
          const WideWord escape = call_.wait_tagged(at, awaited);
          const std::uint32_t bits = mask % 3 == 0 ? escape.x : mask % 3 == 1 ? escape.y : escape.z;
          if ((bits >> (word % 32) & 1) != 0) value[i].w = sync::kArmed;
        }
        for_each_copy(copies, [&](std::int64_t row) { place(row, word, value[i]); });
      }
    }
  }

  /// All threads: writes zeros into rows [first, last) that are this block's among `num_shares`.
  __device__ void zero_rows(std::int64_t first, std::int64_t last, int share, int num_shares) {
    for (std::int64_t row = first + share; row < last; row += num_shares) {
      for (std::uint32_t word = threadIdx.x; word < shape_.row_words; word += blockDim.x) place(row, word, {});
    }
  }

 private:
  /// Rows use two halves of shared memory in turn: one barrier a row is enough.
  __device__ void begin_row() { half_ ^= 1; }

  [[nodiscard]] __device__ std::uint32_t* scales() const {
    return maps_.scales + half_ * PlanMaps::num_scale_words(shape_);
  }

  [[nodiscard]] __device__ std::uint32_t* masks() const { return maps_.masks + half_ * shape_.escape_words * 3; }

  __device__ void send_token(int token) {
    const std::uint64_t peers = destinations(token);
    begin_row();
    if (shape_.escape_words > 0) {
      // Nobody reads these before the barrier below, and everybody has left the row that used them last.
      for (std::uint32_t i = threadIdx.x; i < shape_.escape_words * 3; i += blockDim.x) masks()[i] = 0;
      __syncthreads();
    }
    for_each_payload_word(token, [&](std::uint32_t word, const WideWord& value) { send(peers, token, word, value); });
    if (kCast != Cast::none || shape_.escape_words > 0) __syncthreads();
    for (std::uint32_t word = shape_.part[0].num_words + threadIdx.x; word < shape_.row_words; word += blockDim.x) {
      send(peers, token, word, side_word(token, word));
    }
    send_weights(peers, token);
    if (shape_.escape_words > 0) {
      __syncthreads();
      for (std::uint32_t i = threadIdx.x; i < shape_.escape_words; i += blockDim.x) {
        const WideWord value{masks()[3 * i], masks()[3 * i + 1], masks()[3 * i + 2], call_.tag()};
        for_each_peer(peers, [&](int peer) { store_wide_relaxed(call_.escapes(peer, shape_.rank, token) + i, value); });
      }
    }
  }

  /// A warp: bits of the peers that own an expert of the token.
  [[nodiscard]] __device__ std::uint64_t destinations(int token) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
    std::uint64_t bit = 0;
    if (lane < shape_.num_topk) {
      const int expert = choice_of(dispatch_, token, lane);
      if (expert >= 0) bit = std::uint64_t{1} << owner_of(shape_, expert);
    }
    const std::uint32_t low = __reduce_or_sync(kAllLanes, static_cast<std::uint32_t>(bit));
    const std::uint32_t high =
        shape_.num_ranks > 32 ? __reduce_or_sync(kAllLanes, static_cast<std::uint32_t>(bit >> 32)) : 0;
    return (std::uint64_t{high} << 32 | low) & ~(std::uint64_t{1} << shape_.rank);
  }

  /// From the rank after this one on, so that not all ranks write to the same peer first.
  template <class Function>
  __device__ __forceinline__ void for_each_peer(std::uint64_t peers, const Function& function) const {
    const std::uint64_t after = peers >> shape_.rank << shape_.rank;
    for (std::uint64_t rest = after; rest != 0; rest &= rest - 1) function(__ffsll(static_cast<long long>(rest)) - 1);
    for (std::uint64_t rest = peers ^ after; rest != 0; rest &= rest - 1) {
      function(__ffsll(static_cast<long long>(rest)) - 1);
    }
  }

  /// Calls `use(word, value)` for each wide word of the payload as it travels; the cast leaves scales in shared memory.
  template <class Use>
  __device__ __forceinline__ void for_each_payload_word(int token, const Use& use) const {
    const std::byte* const row = dispatch_.tokens.data + token * dispatch_.tokens.row_stride_bytes;
    const model::RowPart& part = shape_.part[0];
    if constexpr (kCast == Cast::none) {
      for (std::uint32_t word = threadIdx.x; word < part.num_words; word += blockDim.x) {
        use(word, load_word(row, part.bytes, word, is_input_aligned_));
      }
    } else {
      const auto row_bytes = static_cast<std::uint32_t>(shape_.hidden) * 2;
      for (std::uint32_t first = 0; first < part.num_words; first += blockDim.x) {
        // Whole warps stay together: eight threads share a block's amax.
        const std::uint32_t word = first + threadIdx.x;
        WideWord low{};
        WideWord high{};
        if (word < part.num_words) {
          low = load_word(row, row_bytes, 2 * word, is_input_aligned_);
          if (2 * word * kWide + kWide < row_bytes) high = load_word(row, row_bytes, 2 * word + 1, is_input_aligned_);
        }
        const CastWord cast = cast_word<kFormat>(low, high);
        if (word < part.num_words) use(word, cut(cast.codes, word));
        if (threadIdx.x % 8 == 0 && word < part.num_words) keep_scale(word / 8, cast.block);
      }
    }
  }

  /// Bytes past the row's end are 0 (the cast of 0 is 0, but for a block with an inf).
  [[nodiscard]] __device__ WideWord cut(const WideWord& codes, std::uint32_t word) const {
    const std::uint32_t left = static_cast<std::uint32_t>(shape_.hidden) - word * kCastElements;
    if (left >= kCastElements) return codes;
    WideWord value = codes;
    auto* const bytes = reinterpret_cast<std::byte*>(&value);
    for (std::uint32_t i = left; i < kCastElements; ++i) bytes[i] = std::byte{0};
    return value;
  }

  __device__ __forceinline__ void keep_scale(std::uint32_t block, const model::Fp8Block& cast) const {
    if constexpr (kFormat == ScaleFormat::f32) {
      scales()[block] = __float_as_uint(cast.scale);
    } else {
      reinterpret_cast<std::uint8_t*>(scales())[block] = cast.exponent;
    }
  }

  /// A word of the scales or of a side tensor.
  [[nodiscard]] __device__ WideWord side_word(int token, std::uint32_t word) const {
    const model::RowPart& part = shape_.part[1];
    const auto num_items = static_cast<std::uint32_t>(shape_.scale_items);
    if (word < part.first_word + part.num_words) {
      const std::uint32_t index = word - part.first_word;
      if constexpr (kCast == Cast::none) return load_scales(dispatch_.scales, token, num_items, index);
      return cast_scales(index);
    }
    for (int side = 0; side < kMaxSideTensors; ++side) {
      const model::RowPart& bytes = shape_.part[2 + side];
      if (word < bytes.first_word + bytes.num_words) {
        const DeviceRows& rows = dispatch_.side[side];
        return load_word(rows.data + token * rows.row_stride_bytes, bytes.bytes, word - bytes.first_word, false);
      }
    }
    return {};
  }

  [[nodiscard]] __device__ WideWord cast_scales(std::uint32_t word) const {
    std::uint32_t items[4];
    for (std::uint32_t i = 0; i < 4; ++i) items[i] = scale_item(4 * word + i);
    return {items[0], items[1], items[2], items[3]};
  }

  /// Bytes of a packed item past the last block are 0.
  [[nodiscard]] __device__ std::uint32_t scale_item(std::uint32_t item) const {
    const auto num_blocks = static_cast<std::uint32_t>(model::num_scale_blocks(shape_.hidden));
    if constexpr (kFormat == ScaleFormat::f32) return item < num_blocks ? scales()[item] : 0;
    if (4 * item >= num_blocks) return 0;
    const std::uint32_t left = num_blocks - 4 * item;
    return left >= 4 ? scales()[item] : scales()[item] & ((1U << (8 * left)) - 1U);
  }

  /// Writes a word to every peer; one that looks armed travels changed, and is named in the row's escape masks.
  __device__ __forceinline__ void send(std::uint64_t peers, int token, std::uint32_t word, WideWord value) const {
    if (shape_.escape_words > 0 && value.w == sync::kArmed) {
      atomicOr(&masks()[word / 32], 1U << (word % 32));
      value.w = 0;
    }
    for_each_peer(peers, [&](int peer) { store_wide_relaxed(call_.row(peer, shape_.rank, token) + word, value); });
  }

  __device__ void send_weights(std::uint64_t peers, int token) const {
    if (!dispatch_.has_weights) return;
    const float* const weights =
        (dispatch_.topk_weights != nullptr ? dispatch_.topk_weights : dispatch_.handle.weights) +
        std::int64_t{token} * shape_.num_topk;
    const auto num_topk = static_cast<std::uint32_t>(shape_.num_topk);
    // The last threads: the first ones are busy with scales.
    const std::uint32_t i = blockDim.x - 1 - threadIdx.x;
    if (i >= shape_.weight_words) return;
    std::uint32_t bits[3] = {0, 0, 0};
    for (std::uint32_t j = 0; j < 3; ++j) {
      if (3 * i + j < num_topk) bits[j] = __float_as_uint(weights[3 * i + j]);
    }
    const WideWord value{bits[0], bits[1], bits[2], call_.tag()};
    for_each_peer(peers, [&](int peer) { store_wide_relaxed(call_.weights(peer, shape_.rank, token) + i, value); });
  }

  template <class Function>
  __device__ __forceinline__ void for_each_copy(const Copies& copies, const Function& function) const {
    for (std::uint32_t rest = copies.lanes; rest != 0; rest &= rest - 1) {
      function(std::int64_t{copies.rows[__ffs(static_cast<int>(rest)) - 1]});
    }
  }

  __device__ __forceinline__ void place(std::int64_t row, std::uint32_t word, const WideWord& value) const {
    const model::RowPart& payload = shape_.part[0];
    const model::RowPart& scale = shape_.part[1];
    if (word < payload.num_words) {
      const DeviceRows& out = dispatch_.out_tokens;
      if (out.data != nullptr) {
        store_word(out.data + row * out.row_stride_bytes, payload.bytes, word, is_output_aligned_, value);
      }
    } else if (word < scale.first_word + scale.num_words) {
      if (dispatch_.out_scales.data != nullptr) {
        store_scales(
            dispatch_.out_scales, row, static_cast<std::uint32_t>(shape_.scale_items), word - scale.first_word, value);
      }
    } else {
      for (int side = 0; side < kMaxSideTensors; ++side) {
        const model::RowPart& bytes = shape_.part[2 + side];
        if (word < bytes.first_word || word >= bytes.first_word + bytes.num_words) continue;
        const DeviceRows& out = dispatch_.out_side[side];
        if (out.data != nullptr) {
          store_word(out.data + row * out.row_stride_bytes, bytes.bytes, word - bytes.first_word, false, value);
        }
      }
    }
  }

  const DeviceDispatch& dispatch_;
  const DeviceShape& shape_;
  const DeviceCall& call_;
  PlanMaps maps_;
  std::uint32_t half_ = 0;
  bool is_input_aligned_ = false;
  bool is_output_aligned_ = false;
};

/// What is written beside the rows: where each of them is from, and what combine must know. One warp; lane = choice.
class RowNotes {
 public:
  __device__ RowNotes(const DeviceDispatch& dispatch, const DeviceCall& call, const Plan& plan)
      : dispatch_(dispatch),
        shape_(dispatch.shape),
        call_(call),
        plan_(plan),
        lane_(static_cast<int>(threadIdx.x % 32)) {}

  __device__ void write_absent(int src, int token) const {
    if (lane_ == 0 && dispatch_.handle.slots != nullptr) dispatch_.handle.slots[at(src, token)] = -1;
  }

  /// `local`, `row`: this lane's choice and its result row, -1 = none. `same`: lanes whose choice is the same.
  __device__ void write(int src, int token, int local, std::int32_t row, std::uint32_t same) const {
    const float weight = weight_of(src, token, local);
    if (lane_ < shape_.num_topk) keep(src, token, row, weight);
    if (plan_.is_rank_major()) {
      write_rank_major(src, token, local, row, weight);
    } else {
      write_expert_rows(src, token, local, row, weight, same);
    }
  }

 private:
  [[nodiscard]] __device__ std::int64_t at(int src, int token) const {
    return std::int64_t{src} * shape_.max_tokens + token;
  }

  [[nodiscard]] __device__ float weight_of(int src, int token, int local) const {
    if (local < 0 || !plan_.has_weights_of(src)) return 0;
    if (src == shape_.rank) {
      const float* const own = dispatch_.topk_weights != nullptr ? dispatch_.topk_weights : dispatch_.handle.weights;
      return own[std::int64_t{token} * shape_.num_topk + lane_];
    }
    const WideWord* const word = call_.weights(shape_.rank, src, token) + lane_ / 3;
    const WideWord value = call_.wait_tagged(word, {DeviceWait::weights, src, token});
    return __uint_as_float(lane_ % 3 == 0 ? value.x : lane_ % 3 == 1 ? value.y : value.z);
  }

  __device__ void keep(int src, int token, std::int32_t row, float weight) const {
    const DeviceHandle& handle = dispatch_.handle;
    if (handle.slots == nullptr) return;
    handle.positions[at(src, token) * shape_.num_topk + lane_] = row;
    handle.recv_weights[at(src, token) * shape_.num_topk + lane_] = weight;
    if (lane_ > 0) return;
    const int slot =
        src == shape_.rank ? 0 : static_cast<int>(read_field(shape_, call_.table(shape_.rank, src, token), 0));
    handle.slots[at(src, token)] = static_cast<std::int8_t>(slot < shape_.slots_per_token ? slot : 0);
  }

  __device__ void write_rank_major(int src, int token, int local, std::int32_t row, float weight) const {
    const std::int32_t kept = __reduce_max_sync(kAllLanes, row);
    if (kept < 0) return;
    if (lane_ < shape_.num_topk) {
      const std::int64_t item = std::int64_t{kept} * shape_.num_topk + lane_;
      if (dispatch_.out_idx != nullptr) dispatch_.out_idx[item] = local;
      if (dispatch_.out_weights != nullptr) dispatch_.out_weights[item] = weight;
    }
    if (lane_ == 0) write_source(kept, src, token);
  }

  __device__ void write_expert_rows(
      int src, int token, int local, std::int32_t row, float weight, std::uint32_t same) const {
    float sum = 0;
    bool is_first = true;
    for (int k = 0; k < shape_.num_topk; ++k) {
      const float term = __shfl_sync(kAllLanes, weight, k);
      if (local < 0 || (same >> k & 1) == 0) continue;
      sum = is_first ? term : sum + term;
      is_first = false;
    }
    const bool is_leader = local >= 0 && __ffs(static_cast<int>(same)) - 1 == lane_;
    if (!is_leader || row < 0) return;
    if (dispatch_.out_weights != nullptr) dispatch_.out_weights[row] = sum;
    write_source(row, src, token);
  }

  __device__ void write_source(std::int32_t row, int src, int token) const {
    if (dispatch_.out_src_rank != nullptr) dispatch_.out_src_rank[row] = src;
    if (dispatch_.out_src_token != nullptr) dispatch_.out_src_token[row] = token;
  }

  const DeviceDispatch& dispatch_;
  const DeviceShape& shape_;
  const DeviceCall& call_;
  const Plan& plan_;
  int lane_;
};

/// All threads: places the rows of all sources' tokens of a share.
template <class Carrier>
__device__ void take_share(const DeviceDispatch& dispatch,
                           const DeviceCall& call,
                           const Plan& plan,
                           Carrier& carrier,
                           std::int32_t* rows_of_warp,
                           int share,
                           int num_shares) {
  const DeviceShape& shape = dispatch.shape;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const bool is_note_warp = threadIdx.x / 32 == blockDim.x / 32 - 1;
  const RowNotes notes(dispatch, call, plan);
  for (int token = share; token < shape.max_tokens; token += num_shares) {
    for (int step = 0; step < shape.num_ranks; ++step) {
      const int src = (shape.rank + step) % shape.num_ranks;
      if (!plan.has_row(src, token)) {
        if (is_note_warp) notes.write_absent(src, token);
        continue;
      }
      const int local = lane < shape.num_topk ? plan.choice(src, token, lane) : -1;
      const std::int32_t row = local >= 0 ? plan.position(src, token, local) : -1;
      const std::uint32_t same = __match_any_sync(kAllLanes, local);
      const std::uint32_t here = __ballot_sync(kAllLanes, row >= 0);
      const bool is_leader =
          plan.is_rank_major() ? lane == __ffs(static_cast<int>(here)) - 1 : lane == __ffs(static_cast<int>(same)) - 1;
      const std::uint32_t leaders = __ballot_sync(kAllLanes, row >= 0 && is_leader);
      __syncwarp();
      rows_of_warp[lane] = row;
      __syncwarp();
      const Copies copies{leaders, rows_of_warp};
      if (src == shape.rank) {
        carrier.take_own(token, copies);
      } else {
        carrier.take_peer(src, token, copies);
      }
      if (is_note_warp) notes.write(src, token, local, row, same);
    }
  }
}

/// Block 0: tables for every peer, counts for the caller.
class Keeper {
 public:
  __device__ Keeper(const DeviceDispatch& dispatch, const DeviceCall& call)
      : dispatch_(dispatch), shape_(dispatch.shape), call_(call) {}

  /// All threads. After it nobody waits for this rank's routing.
  __device__ void publish(const sync::DeviceHeader& header) const {
    const int num_peers = shape_.num_ranks - 1;
    const int thread = static_cast<int>(threadIdx.x);
    for (int peer = thread; peer < shape_.num_ranks; peer += static_cast<int>(blockDim.x)) {
      if (peer != shape_.rank) call_.say_header(header, peer);
    }
    for (int item = thread; item < num_peers * dispatch_.num_tokens; item += static_cast<int>(blockDim.x)) {
      const int peer = (shape_.rank + 1 + item / dispatch_.num_tokens) % shape_.num_ranks;
      write_entry(peer, item % dispatch_.num_tokens);
    }
    for (int token = thread; token < dispatch_.num_tokens; token += static_cast<int>(blockDim.x)) keep_own(token);
  }

  /// All threads, with the plan: what the caller is told.
  __device__ void write_counts(const Plan& plan) const {
    const int thread = static_cast<int>(threadIdx.x);
    const int num_threads = static_cast<int>(blockDim.x);
    for (int src = thread; src < shape_.num_ranks; src += num_threads) {
      if (dispatch_.out_rank_counts != nullptr) dispatch_.out_rank_counts[src] = plan.rank_count(src);
    }
    for (int local = thread; local < plan.num_local(); local += num_threads) {
      if (dispatch_.out_wanted != nullptr) dispatch_.out_wanted[local] = plan.wanted(local);
      const int kept = plan.is_rank_major() ? plan.wanted(local) : plan.kept(local);
      if (dispatch_.out_counts != nullptr) dispatch_.out_counts[local] = kept;
    }
    if (dispatch_.out_offsets != nullptr && !plan.is_rank_major()) {
      for (int group = thread; group <= plan.num_local(); group += num_threads) {
        dispatch_.out_offsets[group] = plan.offset(group);
      }
    }
    if (shape_.layout == Layout::expert_major) note_padding(plan);
    if (plan.is_rank_major() && shape_.can_overflow) take_off_dropped(plan);
    if (thread == 0) write_totals(plan);
  }

 private:
  __device__ void write_entry(int peer, int token) const {
    const model::TableFormat& format = shape_.table;
    WideWord* const entry = call_.table(peer, shape_.rank, token);
    std::uint32_t words[model::kTableWords] = {};
    std::uint32_t wide = 0;
    std::uint32_t word = 0;
    std::uint32_t field = 0;
    const auto put = [&](std::uint32_t value) {
      if (field == format.fields_per_word) {
        field = 0;
        if (++word == model::kTableWords) {
          store_wide_relaxed(entry + wide, {words[0], words[1], words[2], call_.tag()});
          words[0] = words[1] = words[2] = 0;
          ++wide;
          word = 0;
        }
      }
      words[word] |= value << (field * format.bits);
      ++field;
    };
    put(static_cast<std::uint32_t>(slot_of(peer, token)));
    for (int k = 0; k < shape_.num_topk; ++k) {
      put(static_cast<std::uint32_t>(local_expert(shape_, peer, choice_of(dispatch_, token, k)) + 1));
    }
    store_wide_relaxed(entry + wide, {words[0], words[1], words[2], call_.tag()});
  }

  /// Place of a rank among the token's ranks, which stand in order of their last chosen expert. 0 if it is none.
  [[nodiscard]] __device__ int slot_of(int rank, int token) const {
    int num = 0;
    return place_of(rank, token, num);
  }

  __device__ int place_of(int rank, int token, int& num_ranks) const {
    std::uint64_t seen = 0;
    int from_end = -1;
    num_ranks = 0;
    for (int k = shape_.num_topk - 1; k >= 0; --k) {
      const int expert = choice_of(dispatch_, token, k);
      if (expert < 0) continue;
      const int owner = owner_of(shape_, expert);
      if ((seen >> owner & 1) != 0) continue;
      seen |= std::uint64_t{1} << owner;
      if (owner == rank) from_end = num_ranks;
      ++num_ranks;
    }
    return from_end < 0 ? 0 : num_ranks - 1 - from_end;
  }

  /// The own half of the handle, and ids that are none.
  __device__ void keep_own(int token) const {
    const DeviceHandle& handle = dispatch_.handle;
    const std::int64_t first = std::int64_t{token} * shape_.num_topk;
    bool is_here = false;
    for (int k = 0; k < shape_.num_topk; ++k) {
      const int expert = choice_of(dispatch_, token, k);
      is_here = is_here || (expert >= 0 && owner_of(shape_, expert) == shape_.rank);
      if (dispatch_.topk_idx == nullptr) continue;
      handle.ids[first + k] = expert;
      if (dispatch_.topk_weights != nullptr) handle.weights[first + k] = dispatch_.topk_weights[first + k];
      if (expert < 0) report_bad_id(token, k);
    }
    int num = 0;
    const int own = place_of(shape_.rank, token, num);
    handle.home[2 * token] = static_cast<std::uint8_t>(num);
    handle.home[2 * token + 1] = static_cast<std::uint8_t>(is_here ? own + 1 : 0);
  }

  __device__ void report_bad_id(int token, int k) const {
    const std::int64_t at = std::int64_t{token} * shape_.num_topk + k;
    const std::int64_t id = dispatch_.has_wide_ids ? reinterpret_cast<const std::int64_t*>(dispatch_.topk_idx)[at]
                                                   : reinterpret_cast<const std::int32_t*>(dispatch_.topk_idx)[at];
    if (id == -1) return;
    sync::DeviceReport& report = *dispatch_.context.report;
    report.bad_id_value = id;
    report.bad_id_token = static_cast<std::uint32_t>(token);
    report.bad_id_choice = static_cast<std::uint32_t>(k);
    report.bad_id_epoch = call_.epoch();
    fence_system();
    atomicAdd_system(reinterpret_cast<unsigned long long*>(&report.num_bad_ids), 1ULL);
  }

  __device__ void note_padding(const Plan& plan) const {
    for (int group = static_cast<int>(threadIdx.x); group < plan.num_local(); group += static_cast<int>(blockDim.x)) {
      const std::int64_t end =
          plan.offset(group + 1) < shape_.capacity_rows ? plan.offset(group + 1) : shape_.capacity_rows;
      for (std::int64_t row = plan.offset(group) + plan.wanted(group); row < end; ++row) {
        if (dispatch_.out_src_rank != nullptr) dispatch_.out_src_rank[row] = -1;
        if (dispatch_.out_src_token != nullptr) dispatch_.out_src_token[row] = -1;
        if (dispatch_.out_weights != nullptr) dispatch_.out_weights[row] = 0;
      }
    }
  }

  /// rank_major: experts of dropped rows did not get them.
  __device__ void take_off_dropped(const Plan& plan) const {
    __syncthreads();
    if (dispatch_.out_counts == nullptr) return;
    const int num_items = shape_.num_ranks * shape_.max_tokens;
    for (int item = static_cast<int>(threadIdx.x); item < num_items; item += static_cast<int>(blockDim.x)) {
      const int src = item / shape_.max_tokens;
      const int token = item % shape_.max_tokens;
      if (token >= plan.num_tokens_of(src) || plan.position(src, token, 0) >= 0) continue;
      std::uint16_t named[model::kMaxDeviceTopk];
      int num_named = 0;
      plan.visit_choices(src, token, [&](int, int local) {
        bool is_new = true;
        for (int i = 0; i < num_named; ++i) is_new = is_new && named[i] != local;
        named[num_named++] = static_cast<std::uint16_t>(local);
        if (is_new) atomicSub(&dispatch_.out_counts[local], 1);
      });
    }
  }

  __device__ void write_totals(const Plan& plan) const {
    std::int64_t num_rows = plan.num_rows();
    std::int64_t num_overflowed = plan.total() - num_rows;
    if (!plan.is_rank_major()) {
      std::int64_t num_kept = 0;
      num_overflowed = 0;
      for (int local = 0; local < plan.num_local(); ++local) {
        num_kept += plan.kept(local);
        num_overflowed += plan.wanted(local) - plan.kept(local);
      }
      if (shape_.layout == Layout::expert_padded) num_rows = num_kept;
    }
    if (dispatch_.out_row_counts != nullptr) {
      dispatch_.out_row_counts[0] = num_rows;
      dispatch_.out_row_counts[1] = num_overflowed;
    }
    if (!dispatch_.has_host_counts) return;
    sync::DeviceReport& report = *dispatch_.context.report;
    report.num_rows = num_rows;
    report.num_overflowed = num_overflowed;
    store_release_system(&report.counts_epoch, call_.epoch());
  }

  const DeviceDispatch& dispatch_;
  const DeviceShape& shape_;
  const DeviceCall& call_;
};

template <class Carrier>
__device__ void zero_padding(const DeviceShape& shape, const Plan& plan, Carrier& carrier, int share, int num_shares) {
  if (plan.is_rank_major()) {
    carrier.zero_rows(plan.num_rows(), shape.capacity_rows, share, num_shares);
    return;
  }
  const bool is_padded = shape.layout == Layout::expert_padded;
  for (int group = 0; group < plan.num_local(); ++group) {
    const std::int64_t first = plan.offset(group) + plan.kept(group);
    const std::int64_t end = plan.offset(group + 1);
    carrier.zero_rows(first, is_padded || end < shape.capacity_rows ? end : shape.capacity_rows, share, num_shares);
  }
  if (!is_padded) carrier.zero_rows(plan.num_rows(), shape.capacity_rows, share, num_shares);
}

/// Blocks 1.. have a share each. `num_shares` = gridDim.x - 1.
template <Cast kCast, ScaleFormat kFormat>
__global__ void __launch_bounds__(kMaxThreads, 1) dispatch(const __grid_constant__ DeviceDispatch args) {
  extern __shared__ __align__(16) std::byte memory[];
  __shared__ sync::DeviceHeader headers[kMaxRanks];
  __shared__ std::int32_t rows_of[kMaxThreads];
  __shared__ int is_mine;
  const DeviceShape& shape = args.shape;
  const DeviceCall call(shape, args.context);
  const PlanMaps maps = PlanMaps::carve(memory, shape);
  const int num_shares = static_cast<int>(gridDim.x) - 1;
  const int own_share = static_cast<int>(blockIdx.x) - 1;
  const bool is_keeper = own_share < 0;
  const sync::DeviceHeader header{static_cast<std::uint32_t>(args.num_tokens),
                                  static_cast<std::uint8_t>(sync::Operation::dispatch_latency),
                                  args.has_weights,
                                  shape.digest,
                                  args.refusal};
  RowCarrier<kCast, kFormat> carrier(args, call, maps);
  const Keeper keeper(args, call);
  const auto send_if_mine = [&](int share) {
    if (threadIdx.x == 0) is_mine = call.take_share(share) ? 1 : 0;
    __syncthreads();
    const bool is_taken = is_mine != 0;
    __syncthreads();
    if (is_taken) carrier.send_share(share, num_shares);
  };
  if (is_keeper) {
    keeper.publish(header);
  } else {
    send_if_mine(own_share);
  }
  // Nobody waits for peers before everything has left: a rank makes progress in a single block slot.
  if (threadIdx.x == 0) is_mine = call.are_all_taken(num_shares) ? 1 : 0;
  __syncthreads();
  if (is_mine == 0) {
    for (int share = 0; share < num_shares; ++share) {
      __syncthreads();
      send_if_mine(share);
    }
  }
  Plan plan(args, call, maps, headers);
  plan.build(is_keeper, header);
  if (is_keeper) {
    keeper.write_counts(plan);
    for (int src = static_cast<int>(threadIdx.x); src < shape.num_ranks; src += static_cast<int>(blockDim.x)) {
      if (headers[src].refusal != 0) call.report_refusal(src, headers[src].refusal);
    }
  } else {
    take_share(args, call, plan, carrier, rows_of + threadIdx.x / 32 * 32, own_share, num_shares);
    if (shape.has_zero_padding) zero_padding(shape, plan, carrier, own_share, num_shares);
  }
  call.leave();
}

using Kernel = void (*)(DeviceDispatch);

Kernel kernel_for(const DeviceShape& shape) {
  if (shape.cast == Cast::none) return dispatch<Cast::none, ScaleFormat::none>;
  return shape.scale_format == ScaleFormat::f32 ? dispatch<Cast::fp8, ScaleFormat::f32>
                                                : dispatch<Cast::fp8, ScaleFormat::ue8m0>;
}

int num_threads_for(const DeviceShape& shape) { return threads_for(shape.part[0].num_words, kMaxThreads); }

}  // namespace

void launch_dispatch(const DeviceDispatch& dispatch, const DeviceLaunch& launch, const DeviceFacts& facts) {
  const int num_shares = shares_for(dispatch.shape, launch, facts);
  const std::size_t shared_bytes = PlanMaps::carve(nullptr, dispatch.shape).size_bytes;
  launch_kernel(kernel_for(dispatch.shape),
                dispatch,
                {num_shares + 1, num_threads_for(dispatch.shape), shared_bytes},
                launch.stream);
}

void load_dispatch(const DeviceShape& shape) {
  load_kernel(kernel_for(shape), PlanMaps::carve(nullptr, shape).size_bytes);
}

}  // namespace moebus::backend::cuda
