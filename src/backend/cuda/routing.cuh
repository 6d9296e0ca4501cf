// Routing on the device: the caller's ids, table entries as they travel, and the positions that follow from them.
// Room: backend/cuda · device.
// Source: [ours] design 4.2 (the receiver derives every position from the tables), 4.3 (order).

#pragma once

#include "backend/cuda/device_call.cuh"
#include "base/math.hpp"

namespace moebus::backend::cuda {

/// Returns id `at` as the caller gave it.
__device__ __forceinline__ std::int64_t given_id(const DeviceDispatch& dispatch, std::int64_t at) {
  return dispatch.has_wide_ids ? __ldg(reinterpret_cast<const long long*>(dispatch.topk_idx) + at)
                               : __ldg(reinterpret_cast<const int*>(dispatch.topk_idx) + at);
}

/// Returns choice `at` of all that this rank's tokens made, -1 for none; what is no expert counts as none.
__device__ __forceinline__ int choice_of(const DeviceDispatch& dispatch, int at) {
  const DeviceShape& shape = dispatch.shape;
  if (dispatch.topk_idx == nullptr) return dispatch.handle.ids[at];
  const std::int64_t id = given_id(dispatch, at);
  return id >= 0 && id < shape.num_experts ? static_cast<int>(id) : -1;
}

/// Returns an expert's number on its owner `rank`, -1 if it lives elsewhere.
__device__ __forceinline__ int local_expert(const DeviceShape& shape, int rank, int expert) {
  const int local = expert - shape.first_expert[rank];
  return expert >= 0 && local >= 0 && expert < shape.first_expert[rank + 1] ? local : -1;
}

/// Calls `visit(k, local expert)` for every choice of a table entry that names one; waits for its words.
template <class Visit>
__device__ __forceinline__ void visit_entry(const DeviceCall& call,
                                            const DeviceShape& shape,
                                            const WideWord* entry,
                                            const WideWord& first,
                                            const Awaited& awaited,
                                            const Visit& visit) {
  const model::TableFormat& format = shape.table;
  const std::uint32_t mask = (1U << format.bits) - 1U;
  const int num_local = shape.first_expert[shape.rank + 1] - shape.first_expert[shape.rank];
  int k = -1;  // field 0 is the home slot
#pragma unroll 1
  for (std::uint32_t wide = 0; wide < format.num_wide; ++wide) {
    const WideWord value =
        wide == 0 ? call.wait_tagged(entry, first, awaited) : call.wait_tagged(entry + wide, awaited);
    const std::uint32_t words[model::kTableWords] = {value.x, value.y, value.z};
#pragma unroll
    for (const std::uint32_t word : words) {
#pragma unroll 1
      for (std::uint32_t field = 0; field < format.fields_per_word && k < shape.num_topk; ++field, ++k) {
        const int local = static_cast<int>(word >> (field * format.bits) & mask) - 1;
        // Whatever a peer wrote there: it names an expert of this rank or none.
        if (k >= 0 && local >= 0 && local < num_local) visit(k, local);
      }
    }
  }
}

/// Returns one field of an entry that has come.
__device__ __forceinline__ std::uint32_t read_field(const DeviceShape& shape, const WideWord* entry, int field) {
  const model::FieldPlace place = model::field_place(shape.table, static_cast<std::uint32_t>(field));
  const auto* const words = reinterpret_cast<const std::uint32_t*>(entry + place.wide);
  return load_relaxed(words + place.word) >> place.shift & ((1U << shape.table.bits) - 1U);
}

/// Where a block keeps what follows from the tables. Sizes depend on the shape; see carve.
struct PlanMaps {
  std::int64_t* offsets = nullptr;      // [groups + 1] first row of each group
  std::int32_t* counts = nullptr;       // [local experts] wanted rows
  std::int32_t* rank_counts = nullptr;  // [ranks]
  std::uint32_t* bits = nullptr;        // [groups, words] tokens that chose the group's expert (rank_major: any)
  std::uint16_t* before = nullptr;      // [groups, words] rows of the group before each word
  std::uint16_t* experts = nullptr;     // [tokens, K] what this rank's tokens chose
  std::size_t size_bytes = 0;

  __host__ __device__ static PlanMaps carve(std::byte* memory, const DeviceShape& shape) {
    const auto groups = static_cast<std::size_t>(shape.layout == Layout::rank_major ? 1 : shape.max_local_experts);
    const auto words = static_cast<std::size_t>(model::map_words(shape));
    PlanMaps maps;
    const auto take = [&]<class T>(T*& pointer, std::size_t num) {
      pointer = reinterpret_cast<T*>(memory + maps.size_bytes);
      maps.size_bytes += base::align_up(num * sizeof(T), std::size_t{16});
    };
    take(maps.offsets, groups + 1);
    take(maps.counts, static_cast<std::size_t>(shape.max_local_experts));
    take(maps.rank_counts, static_cast<std::size_t>(shape.num_ranks));
    take(maps.bits, groups * words);
    take(maps.before, groups * words);
    take(maps.experts, static_cast<std::size_t>(shape.max_tokens) * static_cast<std::size_t>(shape.num_topk));
    return maps;
  }

  /// All threads: reads the own ids, all at once; a barrier must follow.
  __device__ void stage_own(const DeviceDispatch& dispatch) const {
    const int num = dispatch.num_tokens * dispatch.shape.num_topk;
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < num; i += static_cast<int>(blockDim.x)) {
      const int expert = choice_of(dispatch, i);
      experts[i] = expert >= 0 ? static_cast<std::uint16_t>(expert) : model::kNoExpert;
    }
  }

  /// Returns the expert that an own token chose, -1 for none.
  [[nodiscard]] __device__ int own_expert(int token, int k, int num_topk) const {
    const std::uint16_t expert = experts[token * num_topk + k];
    return expert == model::kNoExpert ? -1 : expert;
  }
};

/// Experts of one token that count already: an expert named twice is one row.
class DistinctExperts {
 public:
  /// True if the expert was not there yet.
  __device__ bool add(int local) {
    bool is_new = true;
#pragma unroll 1
    for (int i = 0; i < num_; ++i) is_new = is_new && experts_[i] != local;
    experts_[num_++] = static_cast<std::uint16_t>(local);
    return is_new;
  }

 private:
  std::uint16_t experts_[model::kMaxDeviceTopk];
  int num_ = 0;
};

/// A block's knowledge of a call.
class Plan {
 public:
  __device__ Plan(const DeviceDispatch& dispatch,
                  const DeviceCall& call,
                  const PlanMaps& maps,
                  sync::DeviceHeader* headers)
      : shape_(dispatch.shape), call_(call), maps_(maps), headers_(headers) {
    words_per_source_ = base::ceil_div(shape_.max_tokens, 32);
    words_ = shape_.num_ranks * words_per_source_;
    num_local_ = shape_.first_expert[shape_.rank + 1] - shape_.first_expert[shape_.rank];
    is_rank_major_ = shape_.layout == Layout::rank_major;
    groups_ = is_rank_major_ ? 1 : num_local_;
  }

  /// All threads. Reads every table; afterwards all of the block may ask. `counts_experts`: also counts per expert of
  /// rank_major, and rows per source.
  __device__ void build(bool counts_experts, const sync::DeviceHeader& own);

  [[nodiscard]] __device__ int num_tokens_of(int src) const { return static_cast<int>(headers_[src].num_tokens); }

  [[nodiscard]] __device__ bool has_weights_of(int src) const { return headers_[src].has_weights; }

  [[nodiscard]] __device__ int num_local() const { return num_local_; }

  [[nodiscard]] __device__ bool is_rank_major() const { return is_rank_major_; }

  /// A warp: true if the token has an expert here.
  [[nodiscard]] __device__ bool has_row(int src, int token) const {
    const int word = word_of(src, token);
    const std::uint32_t bit = 1U << (token % 32);
    if (is_rank_major_) return (maps_.bits[word] & bit) != 0;
    bool is_here = false;
#pragma unroll 1
    for (int g = static_cast<int>(threadIdx.x % 32); g < groups_; g += 32) {
      is_here = is_here || (maps_.bits[g * words_ + word] & bit) != 0;
    }
    return __any_sync(kAllLanes, is_here) != 0;
  }

  /// Returns the result row of a token in a group, -1 if it is dropped.
  [[nodiscard]] __device__ std::int32_t position(int src, int token, int local) const {
    const int group = is_rank_major_ ? 0 : local;
    const int at = group * words_ + word_of(src, token);
    const std::uint32_t below = maps_.bits[at] & ((1U << (token % 32)) - 1U);
    const std::int64_t index = maps_.before[at] + __popc(below);
    if (shape_.layout == Layout::expert_padded) {
      return index < shape_.capacity_rows ? static_cast<std::int32_t>(group * shape_.capacity_rows + index) : -1;
    }
    const std::int64_t row = (is_rank_major_ ? 0 : maps_.offsets[group]) + index;
    return row < shape_.capacity_rows ? static_cast<std::int32_t>(row) : -1;
  }

  [[nodiscard]] __device__ std::int32_t wanted(int local) const { return maps_.counts[local]; }

  [[nodiscard]] __device__ std::int32_t rank_count(int src) const { return maps_.rank_counts[src]; }

  [[nodiscard]] __device__ std::int64_t offset(int group) const { return maps_.offsets[group]; }

  /// Rows of an expert's group that the capacity has room for.
  [[nodiscard]] __device__ std::int32_t kept(int local) const {
    const std::int64_t room =
        shape_.capacity_rows - (shape_.layout == Layout::expert_padded ? 0 : maps_.offsets[local]);
    const std::int64_t want = maps_.counts[local];
    return static_cast<std::int32_t>(room < 0 ? 0 : room < want ? room : want);
  }

  /// rank_major: rows that are wanted in all.
  [[nodiscard]] __device__ std::int64_t total() const { return maps_.offsets[groups_]; }

  /// Rows of the result in use, as DispatchResult::num_rows (expert_padded: not this way).
  [[nodiscard]] __device__ std::int64_t num_rows() const {
    const std::int64_t end = maps_.offsets[groups_];
    return end < shape_.capacity_rows ? end : shape_.capacity_rows;
  }

  /// Calls `visit(k, local expert)` for the choices of a token that sit here. One thread.
  template <class Visit>
  __device__ void visit_choices(int src, int token, const Visit& visit) const {
    if (src == shape_.rank) {
#pragma unroll 1
      for (int k = 0; k < shape_.num_topk; ++k) {
        const int local = local_expert(shape_, src, maps_.own_expert(token, k, shape_.num_topk));
        if (local >= 0) visit(k, local);
      }
      return;
    }
    const WideWord* const entry = call_.table(shape_.rank, src, token);
    visit_entry(call_, shape_, entry, load_wide_relaxed(entry), {DeviceWait::table, src, token}, visit);
  }

  /// Returns choice k of a token that has come, as a local expert, or -1.
  [[nodiscard]] __device__ int choice(int src, int token, int k) const {
    if (src == shape_.rank) return local_expert(shape_, src, maps_.own_expert(token, k, shape_.num_topk));
    const int local = static_cast<int>(read_field(shape_, call_.table(shape_.rank, src, token), 1 + k)) - 1;
    return local < num_local_ ? local : -1;
  }

 private:
  [[nodiscard]] __device__ int word_of(int src, int token) const { return src * words_per_source_ + token / 32; }

  __device__ void wait_for_headers(const sync::DeviceHeader& own);
  __device__ void add_up();

  const DeviceShape& shape_;
  const DeviceCall& call_;
  PlanMaps maps_;
  sync::DeviceHeader* headers_;
  int words_per_source_;
  int words_;
  int num_local_;
  int groups_;
  bool is_rank_major_;
};

__device__ inline void Plan::wait_for_headers(const sync::DeviceHeader& own) {
#pragma unroll 1
  for (int src = static_cast<int>(threadIdx.x); src < shape_.num_ranks; src += static_cast<int>(blockDim.x)) {
    sync::DeviceHeader header = src == shape_.rank ? own : call_.wait_header(src, own);
    if (header.num_tokens > static_cast<std::uint32_t>(shape_.max_tokens)) header.num_tokens = 0;
    headers_[src] = header;
  }
}

__device__ inline void Plan::build(bool counts_experts, const sync::DeviceHeader& own) {
  const int thread = static_cast<int>(threadIdx.x);
  const int num_threads = static_cast<int>(blockDim.x);
#pragma unroll 1
  for (int i = thread; i < groups_ * words_; i += num_threads) maps_.bits[i] = 0;
#pragma unroll 1
  for (int i = thread; i < num_local_; i += num_threads) maps_.counts[i] = 0;
#pragma unroll 1
  for (int i = thread; i < shape_.num_ranks; i += num_threads) maps_.rank_counts[i] = 0;
  // The first entries are asked for before it is known whether they will come: both answers are on the way together.
  const int num_items = shape_.num_ranks * shape_.max_tokens;
  WideWord first{};
  if (thread < num_items)
    first = load_wide_relaxed(call_.table(shape_.rank, thread / shape_.max_tokens, thread % shape_.max_tokens));
  wait_for_headers(own);
  __syncthreads();
#pragma unroll 1
  for (int item = thread; item < num_items; item += num_threads) {
    const int src = item / shape_.max_tokens;
    const int token = item % shape_.max_tokens;
    if (token >= num_tokens_of(src)) continue;
    const std::uint32_t bit = 1U << (token % 32);
    const int word = word_of(src, token);
    bool has_any = false;
    DistinctExperts named;
    const auto take = [&](int, int local) {
      if (!is_rank_major_) {
        atomicOr(&maps_.bits[local * words_ + word], bit);
      } else if (counts_experts) {
        if (named.add(local)) atomicAdd(&maps_.counts[local], 1);
      }
      has_any = true;
    };
    if (src == shape_.rank) {
      visit_choices(src, token, take);
    } else {
      const WideWord* const entry = call_.table(shape_.rank, src, token);
      const WideWord value = item == thread ? first : load_wide_relaxed(entry);
      visit_entry(call_, shape_, entry, value, {DeviceWait::table, src, token}, take);
    }
    if (!has_any) continue;
    if (is_rank_major_) atomicOr(&maps_.bits[word], bit);
    if (counts_experts) atomicAdd(&maps_.rank_counts[src], 1);
  }
  __syncthreads();
  add_up();
}

/// Rows before each word of each group, and where groups begin.
__device__ inline void Plan::add_up() {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int num_warps = static_cast<int>(blockDim.x / 32);
#pragma unroll 1
  for (int group = static_cast<int>(threadIdx.x / 32); group < groups_; group += num_warps) {
    int sum = 0;
#pragma unroll 1
    for (int first = 0; first < words_; first += 32) {
      const int word = first + lane;
      const int own = word < words_ ? __popc(maps_.bits[group * words_ + word]) : 0;
      int until = own;
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(kAllLanes, until, step);
        if (lane >= step) until += other;
      }
      if (word < words_) maps_.before[group * words_ + word] = static_cast<std::uint16_t>(sum + until - own);
      sum += __shfl_sync(kAllLanes, until, 31);
    }
    if (lane == 0) {
      if (is_rank_major_) {
        maps_.offsets[0] = 0;
        maps_.offsets[1] = sum;
      } else {
        maps_.counts[group] = sum;
      }
    }
  }
  __syncthreads();
  if (is_rank_major_) return;
  if (threadIdx.x < 32) {
    std::int64_t offset = 0;
    const bool is_padded = shape_.layout == Layout::expert_padded;
#pragma unroll 1
    for (int first = 0; first < groups_; first += 32) {
      const int group = first + lane;
      const int rows = group < groups_ ? maps_.counts[group] : 0;
      const std::int64_t own = is_padded ? shape_.capacity_rows : base::align_up(rows, shape_.expert_alignment);
      std::int64_t until = own;
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const std::int64_t other = __shfl_up_sync(kAllLanes, until, step);
        if (lane >= step) until += other;
      }
      if (group < groups_) maps_.offsets[group] = offset + until - own;
      offset += __shfl_sync(kAllLanes, until, 31);
    }
    // Lanes past the last group added padding of their own in expert_padded.
    if (lane == 0) maps_.offsets[groups_] = is_padded ? groups_ * shape_.capacity_rows : offset;
  }
  __syncthreads();
}

}  // namespace moebus::backend::cuda
