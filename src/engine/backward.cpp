// Backward: combine's gradient is a cached dispatch whose rows are multiplied where they arrive; dispatch's gradient is
// an unweighted combine. Checks, and what happens to the rows; the transfers are those of dispatch.cpp and combine.cpp.

#include <algorithm>

#include "engine/combine_state.hpp"
#include "engine/dispatch_state.hpp"
#include "engine/tensor_check.hpp"

namespace moebus::engine {

using base::idx;

namespace {

using Check = std::optional<Refusal>;

bool is_rank_major(const model::Shape& shape) noexcept { return shape.config.layout == Layout::rank_major; }

/// Returns why gradients of combine cannot travel by this exchange's dispatch.
Check check_gradient_config(const model::Shape& shape) {
  const ExchangeConfig& config = shape.config;
  const bool is_plain = config.cast == Cast::none && config.scale_format == ScaleFormat::none &&
                        config.side_bytes == decltype(config.side_bytes){};
  if (is_plain && config.dtype == config.combine_dtype && config.hidden == shape.combine_row.hidden) {
    return std::nullopt;
  }
  return refuse(
      "combine_backward: this exchange dispatches {} x {} (cast {}, scales {}, side tensors {} and {} bytes) and "
      "combines {} x {}; gradients of the latter need a dispatch of just that type and width: use a second exchange of "
      "the same group with such a config, which takes the same handles",
      to_string(config.dtype),
      config.hidden,
      to_string(config.cast),
      to_string(config.scale_format),
      config.side_bytes[0],
      config.side_bytes[1],
      to_string(config.combine_dtype),
      shape.combine_row.hidden);
}

/// What a tensor laid out as the result of dispatch must be, in combine's type.
ExpectedTensor result_tensor(const model::Shape& shape, std::string_view call, std::string_view name) noexcept {
  const std::int64_t hidden = shape.combine_row.hidden;
  if (shape.config.layout != Layout::expert_padded)
    return {call, name, shape.combine_row.dtype, 2, {-1, hidden, -1}, false};
  const std::int64_t num_local = shape.placement.num_local(shape.rank);
  return {call, name, shape.combine_row.dtype, 3, {num_local, shape.capacity_rows, hidden}};
}

/// Checks a tensor of rows that the caller gives.
Check check_given_rows(const model::Shape& shape,
                       std::string_view call,
                       std::string_view name,
                       std::int64_t num_rows,
                       const ConstTensorView& rows) {
  if (auto bad = check_tensor(result_tensor(shape, call, name), rows)) return bad;
  if (shape.config.layout == Layout::expert_padded || rows.shape[0] >= num_rows) return std::nullopt;
  return refuse("{}: {} has {} rows; the dispatch of this handle gave {}", call, name, rows.shape[0], num_rows);
}

/// Checks the lane, given or to be filled.
Check check_lane(const model::Shape& shape,
                 std::string_view call,
                 const model::ReceivePlan& receive,
                 const ConstTensorView& lane) {
  if (!shape.config.combine_lane) {
    return refuse("{}: lane is given; set config.combine_lane, so that windows have room for it", call);
  }
  const ExpectedTensor want{call, "lane", DType::f32, 2, {-1, shape.config.num_topk, -1}, true, alignof(float)};
  if (auto bad = check_tensor(want, lane)) return bad;
  const std::int64_t least = model::lane_rows(shape, receive);
  if (lane.shape[0] >= least) return std::nullopt;
  return refuse("{}: lane has {} rows; the result of the dispatch has {}", call, lane.shape[0], least);
}

}  // namespace

// --- Of combine ---

Check ExchangeCore::check_combine_backward(const CombineGradInput& input) const {
  if (auto bad = check_gradient_config(shape_)) return bad;
  const HandleSlot* slot = input.handle.slot_;
  if (slot == nullptr) return refuse("combine_backward: handle is empty; pass the one that combine was given");
  if (!fits(*slot)) {
    return refuse(
        "combine_backward: handle belongs to an exchange with another plan (group, experts, top-k, tokens, layout, "
        "capacity or seats differ); pass the one that combine was given, and give both exchanges the same of these");
  }
  if (slot->placement_digest != placement_digest_) {
    return refuse(
        "combine_backward: handle is stale: the placement of experts is not that of its dispatch; run backward before "
        "set_placement (and set the same placement on an exchange for gradients)");
  }
  if (is_direct(shape_) && !slot->has_region) {
    return refuse(
        "combine_backward: handle was made by an exchange without direct delivery, so it holds no positions for this "
        "one; use an exchange with the same delivery for both, or one with staged delivery here");
  }
  const ExpectedTensor want{"combine_backward",
                            "grad_tokens",
                            shape_.combine_row.dtype,
                            2,
                            {slot->send.num_tokens, shape_.combine_row.hidden, -1},
                            false};
  if (auto bad = check_tensor(want, input.grad_tokens)) return bad;
  if (input.grad_rows.is_given()) {
    ExpectedTensor rows = result_tensor(shape_, "combine_backward", "grad_rows");
    if (shape_.config.layout != Layout::expert_padded) rows.shape[0] = shape_.capacity_rows;
    rows.is_contiguous = true;
    if (auto bad = check_tensor(rows, input.grad_rows)) return bad;
  } else if (shape_.config.caller_results) {
    return refuse("combine_backward: grad_rows is not given; config.caller_results promised it");
  } else if ((is_direct(shape_) ? context_->region_hold() : context_->result_hold()).is_held) {
    return Refusal{ErrorCode::resource_exhausted,
                   "combine_backward: an earlier result of this context still holds the library's result memory; "
                   "release() it, pass grad_rows, or use an exchange in another context for gradients"};
  }
  return check_weight_gradients(input, *slot);
}

Check ExchangeCore::check_weight_gradients(const CombineGradInput& input, const HandleSlot& slot) const {
  if (input.weighting == Weighting::given) {
    return refuse(
        "combine_backward: weighting is given, whose weights the owners do not keep: give topk_weights to dispatch, "
        "and use weighting dispatched in combine and here");
  }
  if (is_rank_major(shape_)) {
    if (input.weighting != Weighting::none || input.rows.is_given() || input.lane.is_given()) {
      return refuse(
          "combine_backward: weighting, rows or lane is given with layout rank_major, whose rows the caller has "
          "weighted and summed: leave them out, and make the lane for dispatch_backward where rows are weighted");
    }
    return std::nullopt;
  }
  const model::ReceivePlan& receive = slot.receive;
  if (input.weighting == Weighting::dispatched && !receive.has_weights && receive.num_wire_rows(shape_) > 0) {
    return refuse(
        "combine_backward: weighting is dispatched, but no weights (or not by every rank) were given to that "
        "dispatch: give topk_weights to dispatch");
  }
  if (!input.rows.is_given()) {
    if (input.lane.is_given())
      return refuse("combine_backward: lane is given and rows is not; both make weights' gradient");
    return std::nullopt;
  }
  if (auto bad = check_given_rows(shape_, "combine_backward", "rows", receive.num_rows, input.rows)) return bad;
  if (input.lane.is_given()) return check_lane(shape_, "combine_backward", receive, input.lane);
  if (shape_.config.caller_results) {
    return refuse("combine_backward: rows is given and lane is not; config.caller_results promised it");
  }
  if (!shape_.config.combine_lane) {
    return refuse("combine_backward: rows is given; set config.combine_lane, so that there is memory for the lane");
  }
  return std::nullopt;
}

CombineGradients ExchangeCore::combine_backward(const CombineGradInput& input) {
  check_prepared("combine_backward");
  check_free("combine_backward");
  DispatchInput carried;
  carried.tokens = input.grad_tokens;
  carried.handle = input.handle;
  carried.output.tokens = input.grad_rows;
  start_dispatch(carried, &input);
  DispatchResult received = wait_dispatch();
  const auto start = base::Clock::now();
  CombineGradients gradients;
  gradients.grad_rows = received.tokens;
  gradients.num_rows = received.num_rows;
  gradients.lease_ = std::move(received.lease_);
  if (!is_rank_major(shape_)) weigh_gradients(input, input.handle.slot_->receive, gradients);
  stats_.dispatch.total_ns += static_cast<std::uint64_t>((base::Clock::now() - start).count());
  return gradients;
}

void ExchangeCore::weigh_gradients(const CombineGradInput& input,
                                   const model::ReceivePlan& receive,
                                   CombineGradients& gradients) {
  const model::CombineRowFormat& format = shape_.combine_row;
  const auto size = static_cast<std::int64_t>(size_of(format.dtype));
  const bool is_padded = shape_.config.layout == Layout::expert_padded;
  const auto row_stride = [&](const ConstTensorView& rows) { return rows.stride[is_padded ? 1 : 0] * size; };
  float* lane = nullptr;
  if (input.rows.is_given()) {
    const std::int64_t num_rows = model::lane_rows(shape_, receive);
    // [rows, K] f32, contiguous: checked with the arguments.
    lane = input.lane.is_given() ? reinterpret_cast<float*>(input.lane.data) : scratch_.gradient_lane.data();
    std::fill_n(lane, num_rows * shape_.config.num_topk, 0.0F);
    gradients.lane = tensor_2d(static_cast<const float*>(lane), DType::f32, num_rows, shape_.config.num_topk);
  }
  const bool is_weighted = input.weighting == Weighting::dispatched;
  model::GradientRows& listed = scratch_.gradients;
  for (std::int32_t first = 0; first < receive.num_wire_rows(shape_); first += kGradientBlock) {
    const model::RowRange block{first, std::min(first + kGradientBlock, receive.num_wire_rows(shape_))};
    model::list_gradient_rows(shape_, receive, block, is_weighted, listed);
    if (lane != nullptr) {
      // Before the rows are multiplied.
      group_->backend().dot_rows({format.dtype,
                                  format.hidden,
                                  gradients.grad_rows.data,
                                  row_stride(gradients.grad_rows),
                                  input.rows.data,
                                  row_stride(input.rows),
                                  listed.row.first(listed.num),
                                  listed.dot.data()});
      model::write_gradient_lane(shape_, listed, lane);
    }
    group_->backend().scale_rows({format.dtype,
                                  format.hidden,
                                  gradients.grad_rows.data,
                                  row_stride(gradients.grad_rows),
                                  listed.scaled.first(listed.num_scaled),
                                  listed.factor.data()});
  }
}

// --- Of dispatch ---

Check ExchangeCore::check_dispatch_backward(const DispatchGradInput& input) const {
  const model::CombineRowFormat& format = shape_.combine_row;
  if (format.hidden != shape_.config.hidden) {
    return refuse(
        "dispatch_backward: this exchange dispatches rows of {} columns and combines rows of {}: use a second exchange "
        "of the same group with combine_hidden 0, which takes the same handles",
        shape_.config.hidden,
        format.hidden);
  }
  const HandleSlot* slot = input.handle.slot_;
  if (slot == nullptr) return refuse("dispatch_backward: handle is empty; pass that of the dispatch");
  if (!fits(*slot)) {
    return refuse(
        "dispatch_backward: handle belongs to an exchange with another plan (group, experts, top-k, tokens, layout, "
        "capacity or seats differ); pass that of the dispatch, and give both exchanges the same of these");
  }
  const model::ReceivePlan& receive = slot->receive;
  if (auto bad = check_given_rows(shape_, "dispatch_backward", "grad_rows", receive.num_rows, input.grad_rows))
    return bad;
  if (input.lane.is_given()) {
    if (auto bad = check_lane(shape_, "dispatch_backward", receive, input.lane)) return bad;
  }
  if (input.grad_tokens.is_given()) {
    const ExpectedTensor want{
        "dispatch_backward", "grad_tokens", format.dtype, 2, {slot->send.num_tokens, format.hidden, -1}, false};
    return check_tensor(want, input.grad_tokens);
  }
  if (!shape_.config.caller_results) return std::nullopt;
  return refuse("dispatch_backward: grad_tokens is not given; config.caller_results promised it");
}

DispatchGradients ExchangeCore::dispatch_backward(const DispatchGradInput& input) {
  check_prepared("dispatch_backward");
  check_free("dispatch_backward");
  CombineInput carried;
  carried.rows = input.grad_rows;
  carried.handle = input.handle;
  carried.lane = input.lane;
  carried.output = input.grad_tokens;
  start_combine(carried, &input);
  const CombineResult home = wait_combine();
  return {home.tokens, home.lane};
}

}  // namespace moebus::engine
