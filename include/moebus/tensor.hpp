// Tensors: a non-owning view of up to three dimensions, with strides in elements.
// Room: public vocabulary · host.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "moebus/types.hpp"

namespace moebus {

/// Points at memory that somebody else owns. An empty view (no data, zero elements) means "not given".
///
/// Units: strides in elements, never bytes.
template <class Byte>
struct BasicTensorView {
  static constexpr int kMaxDims = 3;

  Byte* data = nullptr;
  DType dtype = DType::u8;
  MemoryKind memory = MemoryKind::host;
  int num_dims = 0;                             ///< 0 = not given
  std::array<std::int64_t, kMaxDims> shape{};   ///< elements per dimension
  std::array<std::int64_t, kMaxDims> stride{};  ///< elements between neighbours of a dimension

  [[nodiscard]] bool is_given() const noexcept { return num_dims > 0; }

  [[nodiscard]] std::int64_t num_elements() const noexcept {
    std::int64_t n = num_dims > 0 ? 1 : 0;
    for (int d = 0; d < num_dims; ++d) n *= shape[static_cast<std::size_t>(d)];
    return n;
  }

  operator BasicTensorView<const std::byte>() const noexcept { return {data, dtype, memory, num_dims, shape, stride}; }
};

using TensorView = BasicTensorView<std::byte>;
using ConstTensorView = BasicTensorView<const std::byte>;

/// Returns a row-major view of host memory: shape [n].
template <class T>
[[nodiscard]] auto tensor_1d(T* data, DType dtype, std::int64_t n) noexcept {
  using Byte = std::conditional_t<std::is_const_v<T>, const std::byte, std::byte>;
  // A tensor is bytes with a dtype beside it; the cast drops the C++ element type on purpose.
  return BasicTensorView<Byte>{reinterpret_cast<Byte*>(data), dtype, MemoryKind::host, 1, {n}, {1}};
}

/// Returns a row-major view of host memory: shape [rows, columns].
template <class T>
[[nodiscard]] auto tensor_2d(T* data, DType dtype, std::int64_t rows, std::int64_t columns) noexcept {
  using Byte = std::conditional_t<std::is_const_v<T>, const std::byte, std::byte>;
  return BasicTensorView<Byte>{
      reinterpret_cast<Byte*>(data), dtype, MemoryKind::host, 2, {rows, columns}, {columns, 1}};
}

/// Returns a row-major view of host memory: shape [outer, rows, columns].
template <class T>
[[nodiscard]] auto tensor_3d(
    T* data, DType dtype, std::int64_t outer, std::int64_t rows, std::int64_t columns) noexcept {
  using Byte = std::conditional_t<std::is_const_v<T>, const std::byte, std::byte>;
  return BasicTensorView<Byte>{
      reinterpret_cast<Byte*>(data), dtype, MemoryKind::host, 3, {outer, rows, columns}, {rows * columns, columns, 1}};
}

}  // namespace moebus
