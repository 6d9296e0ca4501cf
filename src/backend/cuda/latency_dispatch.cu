// Latency dispatch: rows leave before anyone's routing is known, for slots [source][token] at their destinations, and
// are placed as they come. Block 0 keeps the books, the others carry rows.
// Room: backend/cuda · device.
// Source: [ours] design 4.2, 4.5 (self-validating rows), 4.8 (shares); measured sketches, docs/performance.md.

#include "backend/cuda/books.cuh"
#include "backend/cuda/cuda_check.hpp"
#include "backend/cuda/kernels.hpp"
#include "backend/cuda/launch.hpp"
#include "backend/cuda/row_carrier.cuh"

namespace moebus::backend::cuda {

namespace {

/// All threads: places the rows of all sources' tokens of a share.
template <class Carrier>
__device__ void take_share(const DeviceDispatch& dispatch,
                           const DeviceCall& call,
                           const Plan& plan,
                           const Carrier& carrier,
                           int share,
                           int num_shares) {
  const DeviceShape& shape = dispatch.shape;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const RowNotes notes(dispatch, call, plan);
  const int num_pieces = carrier.num_pieces();
  for_each_unit(share, num_shares, shape.max_tokens, num_pieces * shape.num_ranks, [&](int token, int unit) {
    const int src = (shape.rank + unit / num_pieces) % shape.num_ranks;
    const int piece = unit % num_pieces;
    if (!plan.has_row(src, token)) {
      if (piece == 0) notes.write_absent(src, token);
      return;
    }
    // The row is asked for first: both answers are on the way together.
    Piece there = carrier.ask(src, token, piece);
    const int local = lane < shape.num_topk ? plan.choice(src, token, lane) : -1;
    const std::int32_t row = local >= 0 ? plan.position(src, token, local) : -1;
    const std::uint32_t same = __match_any_sync(kAllLanes, local);
    const std::uint32_t here = __ballot_sync(kAllLanes, row >= 0);
    const int leader = __ffs(static_cast<int>(plan.is_rank_major() ? here : same)) - 1;
    const std::uint32_t copies = __ballot_sync(kAllLanes, row >= 0 && lane == leader);
    carrier.take(src, token, piece, there, copies, row);
    if (piece == 0) notes.write(src, token, local, row, same);
  });
}

/// All threads: writes zeros into rows that no token fills and that are this block's.
template <class Carrier>
__device__ void zero_padding(
    const DeviceShape& shape, const Plan& plan, const Carrier& carrier, int share, int num_shares) {
  const int num_warps = static_cast<int>(blockDim.x / 32);
  const auto zero = [&](std::int64_t first, std::int64_t last) {
#pragma unroll 1
    for (std::int64_t row = first + share + std::int64_t{threadIdx.x / 32} * num_shares; row < last;
         row += std::int64_t{num_warps} * num_shares) {
      carrier.zero_row(row);
    }
  };
  if (plan.is_rank_major()) return zero(plan.num_rows(), shape.capacity_rows);
  const bool is_padded = shape.layout == Layout::expert_padded;
#pragma unroll 1
  for (int group = 0; group < plan.num_local(); ++group) {
    const std::int64_t end = plan.offset(group + 1);
    zero(plan.offset(group) + plan.kept(group), is_padded || end < shape.capacity_rows ? end : shape.capacity_rows);
  }
  if (!is_padded) zero(plan.num_rows(), shape.capacity_rows);
}

/// Blocks 1.. have a share each. `num_shares` = gridDim.x - 1.
template <Cast kCast, ScaleFormat kFormat>
__global__ void __launch_bounds__(kThreads, 1) dispatch(const __grid_constant__ DeviceDispatch args) {
  extern __shared__ __align__(16) std::byte memory[];
  __shared__ sync::DeviceHeader headers[kMaxRanks];
  __shared__ Alarm alarm;
  __shared__ int is_mine;
  const DeviceShape& shape = args.shape;
  const DeviceCall call(shape, args.context, alarm);
  const PlanMaps maps = PlanMaps::carve(memory, shape);
  const int num_shares = static_cast<int>(gridDim.x) - 1;
  const int own_share = static_cast<int>(blockIdx.x) - 1;
  const bool is_keeper = own_share < 0;
  const sync::DeviceHeader header{static_cast<std::uint32_t>(args.num_tokens),
                                  static_cast<std::uint8_t>(sync::Operation::dispatch_latency),
                                  args.has_weights,
                                  shape.digest,
                                  args.refusal};
  const RowCarrier<kCast, kFormat> carrier(args, call, maps);
  const Keeper keeper(args, call, maps);
  maps.stage_own(args);
  __syncthreads();
  if (is_keeper) keeper.publish(header);
  send_shares(call, own_share, num_shares, is_mine, [&](int share) {
    for_each_unit(share, num_shares, args.num_tokens, carrier.num_own_pieces(), [&](int token, int piece) {
      carrier.send(token, piece);
    });
  });
  Plan plan(args, call, maps, headers);
  plan.build(is_keeper, header);
  if (is_keeper) {
    keeper.write_counts(plan);
#pragma unroll 1
    for (int src = static_cast<int>(threadIdx.x); src < shape.num_ranks; src += static_cast<int>(blockDim.x)) {
      if (headers[src].refusal != 0) call.report_refusal(src, headers[src].refusal);
    }
  } else {
    take_share(args, call, plan, carrier, own_share, num_shares);
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

}  // namespace

void launch_dispatch(const DeviceDispatch& dispatch, const DeviceLaunch& launch, const DeviceFacts& facts) {
  const int num_shares = shares_for(dispatch.shape, launch, facts);
  const std::size_t shared_bytes = PlanMaps::carve(nullptr, dispatch.shape).size_bytes;
  launch_kernel(kernel_for(dispatch.shape), dispatch, {num_shares + 1, shared_bytes}, launch.stream);
}

void load_dispatch(const DeviceShape& shape) {
  load_kernel(kernel_for(shape), PlanMaps::carve(nullptr, shape).size_bytes);
}

}  // namespace moebus::backend::cuda
