#include "engine/tensor_check.hpp"

#include <cstdint>
#include <string>

#include "base/math.hpp"

namespace moebus::engine {

using base::idx;

namespace {

std::string shape_text(const ConstTensorView& tensor) {
  std::string text = "[";
  for (int d = 0; d < tensor.num_dims; ++d) {
    text += fmt::format("{}{}", d > 0 ? ", " : "", tensor.shape[idx(d)]);
  }
  return text + "]";
}

std::optional<Refusal> check_strides(const ExpectedTensor& want, const ConstTensorView& tensor) {
  std::int64_t dense = 1;
  for (int d = want.num_dims - 1; d >= 0; --d) {
    const std::int64_t stride = tensor.stride[idx(d)];
    const bool is_exact = want.is_contiguous || d == want.num_dims - 1;
    if (tensor.shape[idx(d)] > 1 && (is_exact ? stride != dense : stride < dense)) {
      return refuse(
          "{}: {} has stride {} in dimension {}; {} {} needed there. A copy would hide the cost: pass a contiguous "
          "tensor",
          want.call,
          want.name,
          stride,
          d,
          dense,
          is_exact ? "is" : "at least is");
    }
    dense *= tensor.shape[idx(d)];
  }
  return std::nullopt;
}

}  // namespace

std::optional<Refusal> check_tensor(const ExpectedTensor& want, const ConstTensorView& tensor) {
  if (tensor.num_dims != want.num_dims) {
    return refuse("{}: {} has {} dimensions; {} are needed", want.call, want.name, tensor.num_dims, want.num_dims);
  }
  if (tensor.dtype != want.dtype) {
    return refuse("{}: {} is {}; the exchange was configured for {}",
                  want.call,
                  want.name,
                  to_string(tensor.dtype),
                  to_string(want.dtype));
  }
  if (tensor.memory != MemoryKind::host) {
    return refuse(
        "{}: {} is in {} memory; CPU ranks exchange host memory", want.call, want.name, to_string(tensor.memory));
  }
  for (int d = 0; d < want.num_dims; ++d) {
    if (want.shape[idx(d)] >= 0 && tensor.shape[idx(d)] != want.shape[idx(d)]) {
      return refuse("{}: {} has shape {}; dimension {} must be {}",
                    want.call,
                    want.name,
                    shape_text(tensor),
                    d,
                    want.shape[idx(d)]);
    }
  }
  if (tensor.num_elements() == 0) return std::nullopt;
  if (tensor.data == nullptr) {
    return refuse("{}: {} has shape {} and no data (null pointer)", want.call, want.name, shape_text(tensor));
  }
  if (reinterpret_cast<std::uintptr_t>(tensor.data) % want.alignment != 0) {
    return refuse("{}: {} starts at an address that is not a multiple of {}", want.call, want.name, want.alignment);
  }
  return check_strides(want, tensor);
}

}  // namespace moebus::engine
