// Tensor check: whether a tensor that the caller gave is what a call needs, and how a refusal is worded.
// Room: engine · host.

#pragma once

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

#include "engine/call.hpp"
#include "moebus/tensor.hpp"

namespace moebus::engine {

template <class... Args>
[[nodiscard]] Refusal refuse(fmt::format_string<Args...> text, Args&&... args) {
  return {ErrorCode::invalid_argument, fmt::format(text, std::forward<Args>(args)...)};
}

/// What a tensor must be. A dimension of -1 is free.
struct ExpectedTensor {
  std::string_view call;
  std::string_view name;
  DType dtype;
  int num_dims;
  std::array<std::int64_t, 3> shape;
  bool is_contiguous = true;  ///< false: only the last dimension must be
  std::size_t alignment = 1;  ///< of the data, bytes
};

/// Returns the first fault found (argument, value, limit, remedy), or nothing.
[[nodiscard]] std::optional<Refusal> check_tensor(const ExpectedTensor& want, const ConstTensorView& tensor);

}  // namespace moebus::engine
