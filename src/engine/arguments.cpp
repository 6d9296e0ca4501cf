#include "engine/arguments.hpp"

#include "engine/tensor_check.hpp"

namespace moebus::engine {

using base::idx;

namespace {

using Check = std::optional<Refusal>;

// Ready-made: a check that passes must cost next to nothing.
constexpr std::array<std::string_view, kMaxSideTensors> kSideNames{"side[0]", "side[1]"};
constexpr std::array<std::string_view, kMaxSideTensors> kOutputSideNames{"output.side[0]", "output.side[1]"};
constexpr std::array<std::string_view, 2> kBiasNames{"bias[0]", "bias[1]"};

Check check_num_tokens(const model::Shape& shape, const DispatchInput& input) {
  const int most = shape.config.max_tokens_per_rank;
  if (!input.tokens.is_given())
    return refuse("dispatch: tokens is not given; pass [0, {}] for no tokens", shape.config.hidden);
  if (input.tokens.shape[0] < 0) return refuse("dispatch: tokens has {} rows", input.tokens.shape[0]);
  if (input.tokens.shape[0] > most) {
    return refuse(
        "dispatch: tokens has {} rows; config.max_tokens_per_rank is {}: raise it, or send fewer tokens in a call",
        input.tokens.shape[0],
        most);
  }
  return std::nullopt;
}

Check check_scales(const model::Shape& shape, const DispatchInput& input, std::int64_t num_tokens) {
  const ExchangeConfig& config = shape.config;
  const bool is_wanted = config.cast == Cast::none && config.scale_format != ScaleFormat::none;
  if (input.scales.is_given() != is_wanted) {
    return refuse("dispatch: scales {} given; with config.scale_format {} and cast {} they must {}be",
                  input.scales.is_given() ? "are" : "are not",
                  to_string(config.scale_format),
                  to_string(config.cast),
                  is_wanted ? "" : "not ");
  }
  if (!is_wanted) return std::nullopt;
  const DType dtype = config.scale_format == ScaleFormat::f32 ? DType::f32 : DType::i32;
  if (input.scales.dtype != dtype) {
    return refuse(
        "dispatch: scales are {}; config.scale_format {} means {}. Scales of another format must be converted and the "
        "rows quantised anew, never reinterpreted",
        to_string(input.scales.dtype),
        to_string(config.scale_format),
        to_string(dtype));
  }
  // Any strides: scales may lie column-major, as other kernels leave them.
  ConstTensorView dense = input.scales;
  dense.stride = {dense.shape[1], 1, 0};
  return check_tensor({"dispatch", "scales", dtype, 2, {num_tokens, shape.dispatch_row.scale_items, -1}, true, 4},
                      dense);
}

Check check_outputs(const model::Shape& shape, int rank, const DispatchInput& input) {
  const ExchangeConfig& config = shape.config;
  const DispatchOutput& output = input.output;
  const bool is_direct = config.path == Path::throughput && config.delivery == Delivery::direct;
  if (!output.tokens.is_given()) {
    if (output.scales.is_given() || output.side[0].is_given() || output.side[1].is_given()) {
      return refuse(
          "dispatch: output.scales or output.side is given and output.tokens is not; give all of them, or none");
    }
    if (config.caller_results) return refuse("dispatch: output.tokens is not given; config.caller_results promised it");
    return std::nullopt;
  }
  if (is_direct) {
    return refuse(
        "dispatch: output.tokens is given with direct delivery, whose result is the registered region: use staged "
        "delivery");
  }
  const bool is_padded = config.layout == Layout::expert_padded;
  const int dims = is_padded ? 3 : 2;
  const std::int64_t local = shape.placement.num_local(rank);
  const auto expected = [&](std::string_view name, DType dtype, std::int64_t columns, std::size_t alignment) {
    ExpectedTensor want{"dispatch", name, dtype, dims, {shape.capacity_rows, columns, -1}, true, alignment};
    if (is_padded) want.shape = {local, shape.capacity_rows, columns};
    return want;
  };
  if (auto bad =
          check_tensor(expected("output.tokens", shape.dispatch_row.wire_dtype, config.hidden, 1), output.tokens))
    return bad;
  if (config.scale_format != ScaleFormat::none) {
    const DType dtype = config.scale_format == ScaleFormat::f32 ? DType::f32 : DType::i32;
    ConstTensorView dense = output.scales;
    const std::int64_t items = shape.dispatch_row.scale_items;
    dense.stride = is_padded ? std::array<std::int64_t, 3>{shape.capacity_rows * items, items, 1}
                             : std::array<std::int64_t, 3>{items, 1, 0};
    if (auto bad = check_tensor(expected("output.scales", dtype, items, 4), dense)) return bad;
  }
  for (std::size_t s = 0; s < kMaxSideTensors; ++s) {
    if (config.side_bytes[s] == 0) continue;
    const std::string_view name = kOutputSideNames[s];
    if (auto bad = check_tensor(expected(name, DType::u8, config.side_bytes[s], 1), output.side[s])) return bad;
  }
  return std::nullopt;
}

}  // namespace

Check check_dispatch_input(const model::Shape& shape, int rank, const DispatchInput& input) {
  const ExchangeConfig& config = shape.config;
  if (auto bad = check_num_tokens(shape, input)) return bad;
  const std::int64_t num_tokens = input.tokens.shape[0];
  if (auto bad =
          check_tensor({"dispatch", "tokens", config.dtype, 2, {num_tokens, config.hidden, -1}, false}, input.tokens)) {
    return bad;
  }
  const bool is_cached = input.handle.is_valid();
  const DType id_dtype = input.topk_idx.dtype;
  if (input.topk_idx.is_given() && id_dtype != DType::i32 && id_dtype != DType::i64) {
    return refuse("dispatch: topk_idx is {}; i32 or i64 is needed", to_string(id_dtype));
  }
  const ExpectedTensor ids{
      "dispatch", "topk_idx", id_dtype, 2, {num_tokens, config.num_topk, -1}, true, size_of(id_dtype)};
  if (!is_cached) {
    if (auto bad = check_tensor(ids, input.topk_idx)) return bad;
  }
  if (input.topk_weights.is_given()) {
    if (auto bad = check_tensor({"dispatch", "topk_weights", DType::f32, 2, {num_tokens, config.num_topk, -1}, true, 4},
                                input.topk_weights)) {
      return bad;
    }
  }
  if (auto bad = check_scales(shape, input, num_tokens)) return bad;
  for (std::size_t s = 0; s < kMaxSideTensors; ++s) {
    const std::string_view name = kSideNames[s];
    if (input.side[s].is_given() != (config.side_bytes[s] > 0)) {
      return refuse("dispatch: {} {} given; config.side_bytes[{}] is {}",
                    name,
                    input.side[s].is_given() ? "is" : "is not",
                    s,
                    config.side_bytes[s]);
    }
    if (!input.side[s].is_given()) continue;
    if (auto bad = check_tensor({"dispatch", name, DType::u8, 2, {num_tokens, config.side_bytes[s], -1}, false},
                                input.side[s])) {
      return bad;
    }
  }
  return check_outputs(shape, rank, input);
}

namespace {

Check check_weighting(const model::Shape& shape, std::int64_t num_tokens, const CombineInput& input) {
  const ExchangeConfig& config = shape.config;
  if (config.layout == Layout::rank_major && input.weighting != Weighting::none) {
    return refuse(
        "combine: weighting is {} with layout rank_major, whose rows the caller has weighted and summed already: use "
        "none",
        to_string(input.weighting));
  }
  const bool is_given = input.topk_weights.is_given();
  if (is_given != (input.weighting == Weighting::given)) {
    return refuse(
        "combine: topk_weights {} given and weighting is {}", is_given ? "is" : "is not", to_string(input.weighting));
  }
  if (!is_given) return std::nullopt;
  return check_tensor({"combine", "topk_weights", DType::f32, 2, {num_tokens, config.num_topk, -1}, true, 4},
                      input.topk_weights);
}

Check check_bias(const model::Shape& shape, std::int64_t num_tokens, const CombineInput& input) {
  if (input.bias[1].is_given() && !input.bias[0].is_given())
    return refuse("combine: bias[1] is given and bias[0] is not");
  for (std::size_t b = 0; b < input.bias.size(); ++b) {
    if (!input.bias[b].is_given()) continue;
    const std::string_view name = kBiasNames[b];
    const std::int64_t hidden = shape.combine_row.hidden;
    const ExpectedTensor want{"combine", name, shape.combine_row.dtype, 2, {num_tokens, hidden, -1}, false};
    if (auto bad = check_tensor(want, input.bias[b])) return bad;
  }
  return std::nullopt;
}

}  // namespace

Check check_combine_input(
    const model::Shape& shape, int rank, std::int64_t num_rows, std::int64_t num_tokens, const CombineInput& input) {
  const ExchangeConfig& config = shape.config;
  const bool is_padded = config.layout == Layout::expert_padded;
  ExpectedTensor rows{
      "combine", "rows", shape.combine_row.dtype, is_padded ? 3 : 2, {-1, shape.combine_row.hidden, -1}, false};
  if (is_padded) rows.shape = {shape.placement.num_local(rank), shape.capacity_rows, shape.combine_row.hidden};
  if (is_padded) rows.is_contiguous = true;
  if (auto bad = check_tensor(rows, input.rows)) return bad;
  if (!is_padded && input.rows.shape[0] < num_rows) {
    return refuse("combine: rows has {} rows; the dispatch of this handle gave {}", input.rows.shape[0], num_rows);
  }
  if (auto bad = check_weighting(shape, num_tokens, input)) return bad;
  if (auto bad = check_bias(shape, num_tokens, input)) return bad;
  if (input.lane.is_given()) {
    if (!config.combine_lane)
      return refuse("combine: lane is given; set config.combine_lane, so that windows have room for it");
    ExpectedTensor lane{"combine", "lane", DType::f32, 2, {input.lane.shape[0], config.num_topk, -1}, true, 1};
    if (auto bad = check_tensor(lane, input.lane)) return bad;
    const std::int64_t least = is_padded ? shape.placement.num_local(rank) * shape.capacity_rows : num_rows;
    if (input.lane.shape[0] < least) {
      return refuse("combine: lane has {} rows; the result of the dispatch has {}", input.lane.shape[0], least);
    }
  }
  if (input.output.is_given()) {
    return check_tensor(
        {"combine", "output", shape.combine_row.dtype, 2, {num_tokens, shape.combine_row.hidden, -1}, false},
        input.output);
  }
  return std::nullopt;
}

}  // namespace moebus::engine
