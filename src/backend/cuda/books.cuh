// Books: what a dispatch writes beside the rows: tables for peers, counts and sources for the caller, and what combine
// must know.
// Room: backend/cuda · device.
// Source: [ours] design 4.3 (order), 4.6 (ranks stand in order of their last chosen expert).

#pragma once

#include "backend/cuda/routing.cuh"

namespace moebus::backend::cuda {

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
#pragma unroll 1
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

/// Block 0: tables for every peer, counts for the caller.
class Keeper {
 public:
  __device__ Keeper(const DeviceDispatch& dispatch, const DeviceCall& call, const PlanMaps& maps)
      : dispatch_(dispatch), shape_(dispatch.shape), call_(call), maps_(maps) {}

  /// All threads. After it nobody waits for this rank's routing.
  __device__ void publish(const sync::DeviceHeader& header) const {
    const int thread = static_cast<int>(threadIdx.x);
#pragma unroll 1
    for (int peer = thread; peer < shape_.num_ranks; peer += static_cast<int>(blockDim.x)) {
      if (peer != shape_.rank) call_.say_header(header, peer);
    }
    const int num_warps = static_cast<int>(blockDim.x / 32);
#pragma unroll 1
    for (int token = thread / 32; token < dispatch_.num_tokens; token += num_warps) write_entries(token);
    // Nobody waits for what follows.
#pragma unroll 1
    for (int token = thread / 32; token < dispatch_.num_tokens; token += num_warps) keep_own(token);
  }

  /// All threads, with the plan: what the caller is told.
  __device__ void write_counts(const Plan& plan) const {
    const int thread = static_cast<int>(threadIdx.x);
    const int num_threads = static_cast<int>(blockDim.x);
#pragma unroll 1
    for (int src = thread; src < shape_.num_ranks; src += num_threads) {
      if (dispatch_.out_rank_counts != nullptr) dispatch_.out_rank_counts[src] = plan.rank_count(src);
    }
#pragma unroll 1
    for (int local = thread; local < plan.num_local(); local += num_threads) {
      if (dispatch_.out_wanted != nullptr) dispatch_.out_wanted[local] = plan.wanted(local);
      const int kept = plan.is_rank_major() ? plan.wanted(local) : plan.kept(local);
      if (dispatch_.out_counts != nullptr) dispatch_.out_counts[local] = kept;
    }
    if (dispatch_.out_offsets != nullptr && !plan.is_rank_major()) {
#pragma unroll 1
      for (int group = thread; group <= plan.num_local(); group += num_threads) {
        dispatch_.out_offsets[group] = plan.offset(group);
      }
    }
    if (shape_.layout == Layout::expert_major) note_padding(plan);
    if (plan.is_rank_major() && shape_.can_overflow) take_off_dropped(plan);
    if (thread == 0) write_totals(plan);
  }

 private:
  /// A warp's view of an own token: lane = choice.
  struct Choices {
    int expert;
    int owner;           ///< -1 = none
    std::uint32_t last;  ///< lanes whose choice is the last of its owner
  };

  [[nodiscard]] __device__ Choices choices_of(int token) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
    Choices choices;
    choices.expert = lane < shape_.num_topk ? maps_.own_expert(token, lane, shape_.num_topk) : -1;
    choices.owner = choices.expert >= 0 ? owner_of(shape_, choices.expert) : -1;
    const std::uint32_t group = __match_any_sync(kAllLanes, choices.owner);
    choices.last = __ballot_sync(kAllLanes, choices.owner >= 0 && lane == 31 - __clz(static_cast<int>(group)));
    return choices;
  }

  /// Place of a rank among the token's ranks, which stand in order of their last chosen expert; -1 if it is none.
  [[nodiscard]] __device__ static int slot_of(const Choices& choices, int rank) {
    const std::uint32_t lanes = __ballot_sync(kAllLanes, choices.owner == rank);
    if (lanes == 0) return -1;
    const int last = 31 - __clz(static_cast<int>(lanes));
    return __popc(choices.last & ((1U << last) - 1U));
  }

  __device__ void write_entries(int token) const {
    const Choices choices = choices_of(token);
#pragma unroll 1
    for (int step = 1; step < shape_.num_ranks; ++step) {
      const int peer = (shape_.rank + step) % shape_.num_ranks;
      write_entry(peer, token, choices);
    }
  }

  __device__ void write_entry(int peer, int token, const Choices& choices) const {
    const model::TableFormat& format = shape_.table;
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int slot = slot_of(choices, peer);
    const int local = choices.owner == peer ? choices.expert - shape_.first_expert[peer] + 1 : 0;
    const model::FieldPlace place = model::field_place(format, static_cast<std::uint32_t>(1 + lane));
    const std::uint32_t bits = static_cast<std::uint32_t>(local) << place.shift;
    WideWord* const entry = call_.table(peer, shape_.rank, token);
#pragma unroll 1
    for (std::uint32_t wide = 0; wide < format.num_wide; ++wide) {
      std::uint32_t words[model::kTableWords];
#pragma unroll
      for (std::uint32_t word = 0; word < model::kTableWords; ++word) {
        const bool is_mine = local > 0 && place.wide == wide && place.word == word;
        words[word] = __reduce_or_sync(kAllLanes, is_mine ? bits : 0U);
      }
      // Field 0.
      if (wide == 0 && slot > 0) words[0] |= static_cast<std::uint32_t>(slot);
      if (lane == 0) store_wide_relaxed(entry + wide, {words[0], words[1], words[2], call_.tag()});
    }
  }

  /// The own half of the handle, and ids that are none.
  __device__ void keep_own(int token) const {
    const DeviceHandle& handle = dispatch_.handle;
    const Choices choices = choices_of(token);
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int own = slot_of(choices, shape_.rank);
    if (lane == 0) {
      handle.home[2 * token] = static_cast<std::uint8_t>(__popc(choices.last));
      handle.home[2 * token + 1] = static_cast<std::uint8_t>(own + 1);
    }
    if (lane >= shape_.num_topk || dispatch_.topk_idx == nullptr) return;
    const std::int64_t at = std::int64_t{token} * shape_.num_topk + lane;
    handle.ids[at] = choices.expert;
    if (dispatch_.topk_weights != nullptr) handle.weights[at] = dispatch_.topk_weights[at];
    if (choices.expert < 0) report_bad_id(token, lane);
  }

  __device__ void report_bad_id(int token, int k) const {
    const std::int64_t at = std::int64_t{token} * shape_.num_topk + k;
    const std::int64_t id = given_id(dispatch_, at);
    if (id == -1) return;
    sync::DeviceReport& report = *dispatch_.context.report;
    report.bad_id_value = id;
    report.bad_id_token = static_cast<std::uint32_t>(token);
    report.bad_id_choice = static_cast<std::uint32_t>(k);
    report.bad_id_epoch = call_.epoch();
    atomicAdd(&dispatch_.context.state->num_bad_ids, 1U);
  }

  __device__ void note_padding(const Plan& plan) const {
#pragma unroll 1
    for (int group = static_cast<int>(threadIdx.x); group < plan.num_local(); group += static_cast<int>(blockDim.x)) {
      const std::int64_t end =
          plan.offset(group + 1) < shape_.capacity_rows ? plan.offset(group + 1) : shape_.capacity_rows;
#pragma unroll 1
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
#pragma unroll 1
    for (int item = static_cast<int>(threadIdx.x); item < num_items; item += static_cast<int>(blockDim.x)) {
      const int src = item / shape_.max_tokens;
      const int token = item % shape_.max_tokens;
      if (token >= plan.num_tokens_of(src) || plan.position(src, token, 0) >= 0) continue;
      DistinctExperts named;
      plan.visit_choices(src, token, [&](int, int local) {
        if (named.add(local)) atomicSub(&dispatch_.out_counts[local], 1);
      });
    }
  }

  __device__ void write_totals(const Plan& plan) const {
    std::int64_t num_rows = plan.num_rows();
    std::int64_t num_overflowed = plan.total() - num_rows;
    if (!plan.is_rank_major()) {
      std::int64_t num_kept = 0;
      num_overflowed = 0;
#pragma unroll 1
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
    sync::DeviceReport& report = *dispatch_.context.report;
    // Counted on the device: atomics on the host's memory are not everywhere what they say.
    const std::uint32_t num_bad_ids = load_relaxed(&dispatch_.context.state->num_bad_ids);
    if (num_bad_ids > 0) report.num_bad_ids = num_bad_ids;
    if (!dispatch_.has_host_counts) return;
    report.num_rows = num_rows;
    report.num_overflowed = num_overflowed;
    store_release_system(&report.counts_epoch, call_.epoch());
  }

  const DeviceDispatch& dispatch_;
  const DeviceShape& shape_;
  const DeviceCall& call_;
  PlanMaps maps_;
};

}  // namespace moebus::backend::cuda
