// Rows: wide words out of and into tensors of any width and alignment, casts and sums of a wide word.
// Room: backend/cuda · device.
// Source: [ours] design 5 (numbers) and 4.6 (order of sums); model/codec.hpp is the truth that this equals bit for bit.

#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "backend/cuda/ptx.cuh"
#include "backend/device.hpp"
#include "model/codec.hpp"

namespace moebus::backend::cuda {

constexpr int kWide = static_cast<int>(model::kWideBytes);

/// True if rows can be read and written in wide words.
__device__ __forceinline__ bool is_aligned(const std::byte* data, std::int64_t stride_bytes) {
  return ((reinterpret_cast<std::uintptr_t>(data) | static_cast<std::uintptr_t>(stride_bytes)) & (kWide - 1)) == 0;
}

// What is rare is no part of the loops that use it: a kernel's time at few tokens is the time to fetch its
// instructions.

static __device__ __noinline__ WideWord load_bytes(const std::byte* row, std::uint32_t row_bytes, std::uint32_t first) {
  std::uint32_t words[4] = {0, 0, 0, 0};
#pragma unroll 1
  for (std::uint32_t i = 0; i < kWide && first + i < row_bytes; ++i) {
    const auto byte = static_cast<std::uint32_t>(row[first + i]) << (8 * (i % 4));
    words[0] |= i / 4 == 0 ? byte : 0;
    words[1] |= i / 4 == 1 ? byte : 0;
    words[2] |= i / 4 == 2 ? byte : 0;
    words[3] |= i / 4 == 3 ? byte : 0;
  }
  return {words[0], words[1], words[2], words[3]};
}

static __device__ __noinline__ void store_bytes(std::byte* row,
                                                std::uint32_t row_bytes,
                                                std::uint32_t first,
                                                WideWord value) {
#pragma unroll 1
  for (std::uint32_t i = 0; i < kWide && first + i < row_bytes; ++i) {
    const std::uint32_t word = i / 4 == 0 ? value.x : i / 4 == 1 ? value.y : i / 4 == 2 ? value.z : value.w;
    row[first + i] = static_cast<std::byte>(word >> (8 * (i % 4)));
  }
}

/// Returns bytes [16 word, 16 word + 16) of a row of `row_bytes` bytes, zeros past its end.
__device__ __forceinline__ WideWord load_word(const std::byte* row,
                                              std::uint32_t row_bytes,
                                              std::uint32_t word,
                                              bool aligned) {
  const std::uint32_t first = word * kWide;
  if (aligned && first + kWide <= row_bytes) return load_streaming(reinterpret_cast<const WideWord*>(row) + word);
  return load_bytes(row, row_bytes, first);
}

__device__ __forceinline__ void store_word(
    std::byte* row, std::uint32_t row_bytes, std::uint32_t word, bool aligned, const WideWord& value) {
  const std::uint32_t first = word * kWide;
  if (aligned && first + kWide <= row_bytes) {
    reinterpret_cast<WideWord*>(row)[word] = value;
  } else {
    store_bytes(row, row_bytes, first, value);
  }
}

/// Scales go item by item where columns are not neighbours.
__device__ __forceinline__ void store_scales(
    const DeviceRows& scales, std::int64_t row, std::uint32_t num_items, std::uint32_t word, const WideWord& value) {
  std::byte* at = scales.data;
  if (scales.group_rows > 0) {
    at += row / scales.group_rows * scales.group_stride_bytes;
    row %= scales.group_rows;
  }
  at += row * scales.row_stride_bytes;
  const std::uint32_t items[4] = {value.x, value.y, value.z, value.w};
#pragma unroll
  for (std::uint32_t i = 0; i < 4; ++i) {
    const std::uint32_t item = 4 * word + i;
    if (item < num_items) *reinterpret_cast<std::uint32_t*>(at + item * scales.item_stride_bytes) = items[i];
  }
}

__device__ __forceinline__ WideWord load_scales(const DeviceRows& scales,
                                                std::int64_t row,
                                                std::uint32_t num_items,
                                                std::uint32_t word) {
  const std::byte* const at = scales.data + row * scales.row_stride_bytes;
  std::uint32_t items[4] = {0, 0, 0, 0};
#pragma unroll
  for (std::uint32_t i = 0; i < 4; ++i) {
    const std::uint32_t item = 4 * word + i;
    if (item < num_items) items[i] = *reinterpret_cast<const std::uint32_t*>(at + item * scales.item_stride_bytes);
  }
  return {items[0], items[1], items[2], items[3]};
}

// --- The FP8 cast: 16 elements a thread, eight threads a block of 128 ---

constexpr int kCastElements = 16;

struct CastWord {
  WideWord codes;
  std::uint32_t scale;  ///< f32 bits, or the UE8M0 exponent; the same in the eight threads
};

/// All lanes of a warp take part. `low` and `high` are 16 bf16 elements, zeros past the row's end.
template <ScaleFormat kFormat>
static __device__ __noinline__ CastWord cast_word(WideWord low, WideWord high) {
  const std::uint32_t pairs[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  float amax = model::kAmaxFloor;
#pragma unroll
  for (const std::uint32_t pair : pairs) {
    // fmaxf ignores NaN, as the amax does.
    amax = fmaxf(amax, fabsf(__uint_as_float(pair << 16)));
    amax = fmaxf(amax, fabsf(__uint_as_float(pair & 0xFFFF0000U)));
  }
#pragma unroll
  for (int step = 4; step > 0; step /= 2) amax = fmaxf(amax, __shfl_xor_sync(0xFFFFFFFFU, amax, step));
  const model::Fp8Block block =
      kFormat == ScaleFormat::ue8m0 ? model::fp8_block_ue8m0(amax) : model::fp8_block_f32(amax);
  const float multiplier = block.multiplier;
  std::uint32_t codes[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 a{__uint_as_float(pairs[2 * i] << 16), __uint_as_float(pairs[2 * i] & 0xFFFF0000U)};
    const float2 b{__uint_as_float(pairs[2 * i + 1] << 16), __uint_as_float(pairs[2 * i + 1] & 0xFFFF0000U)};
    const std::uint32_t low_codes =
        __nv_cvt_float2_to_fp8x2({a.x * multiplier, a.y * multiplier}, __NV_SATFINITE, __NV_E4M3);
    const std::uint32_t high_codes =
        __nv_cvt_float2_to_fp8x2({b.x * multiplier, b.y * multiplier}, __NV_SATFINITE, __NV_E4M3);
    codes[i] = low_codes | high_codes << 16;
  }
  if (block.is_nan || block.max_code != model::kMaxCodeE4m3) {
    // Rare: a block with an inf, or one whose largest code would become inf.
#pragma unroll
    for (std::uint32_t& word : codes) {
      std::uint32_t fixed = 0;
#pragma unroll 1
      for (int i = 0; i < 4; ++i) {
        const std::uint32_t code = word >> (8 * i) & 0xFF;
        const std::uint32_t magnitude = code & 0x7F;
        const std::uint32_t top = block.max_code;
        const std::uint32_t kept = magnitude == model::kNanE4m3 || magnitude <= top ? code : (code & 0x80) | top;
        fixed |= (block.is_nan ? std::uint32_t{model::kNanE4m3} : kept) << (8 * i);
      }
      word = fixed;
    }
  }
  return {{codes[0], codes[1], codes[2], codes[3]},
          kFormat == ScaleFormat::f32 ? __float_as_uint(block.scale) : block.exponent};
}

// --- Sums of wide words of one type, in float32 ---

template <DType kType>
struct Elements;

template <>
struct Elements<DType::bf16> {
  static constexpr int kNum = 8;
  static constexpr std::uint32_t kNotArmed = 0x7FFF7FFFU;  // two NaN: what all ones are to a sum

  static __device__ __forceinline__ float get(const std::uint32_t (&words)[4], int i) {
    return __uint_as_float(i % 2 == 0 ? words[i / 2] << 16 : words[i / 2] & 0xFFFF0000U);
  }

  static __device__ __forceinline__ void round(const float (&acc)[kNum], std::uint32_t (&words)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      // Rounds to nearest even; NaN becomes 0x7FFF.
      const __nv_bfloat162 pair = __floats2bfloat162_rn(acc[2 * i], acc[2 * i + 1]);
      words[i] = *reinterpret_cast<const std::uint32_t*>(&pair);
    }
  }
};

template <>
struct Elements<DType::f16> {
  static constexpr int kNum = 8;
  static constexpr std::uint32_t kNotArmed = 0x7FFF7FFFU;

  static __device__ __forceinline__ float get(const std::uint32_t (&words)[4], int i) {
    const auto bits = static_cast<unsigned short>(i % 2 == 0 ? words[i / 2] & 0xFFFFU : words[i / 2] >> 16);
    return __half2float(__ushort_as_half(bits));
  }

  static __device__ __forceinline__ void round(const float (&acc)[kNum], std::uint32_t (&words)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const __half2 pair = __floats2half2_rn(acc[2 * i], acc[2 * i + 1]);
      words[i] = *reinterpret_cast<const std::uint32_t*>(&pair);
    }
  }
};

template <>
struct Elements<DType::f32> {
  static constexpr int kNum = 4;
  static constexpr std::uint32_t kNotArmed = model::kNanF32;

  static __device__ __forceinline__ float get(const std::uint32_t (&words)[4], int i) {
    return __uint_as_float(words[i]);
  }

  static __device__ __forceinline__ void round(const float (&acc)[kNum], std::uint32_t (&words)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = __float_as_uint(model::canonical_f32(acc[i]));
  }
};

/// A running sum of one wide word.
template <DType kType>
class WordSum {
 public:
  using Type = Elements<kType>;

  __device__ __forceinline__ void add(const WideWord& value) {
    const std::uint32_t words[4] = {value.x, value.y, value.z, value.w};
#pragma unroll
    for (int i = 0; i < Type::kNum; ++i) acc_[i] = acc_[i] + Type::get(words, i);
  }

  __device__ __forceinline__ void add(const WideWord& value, float weight) {
    const std::uint32_t words[4] = {value.x, value.y, value.z, value.w};
#pragma unroll
    for (int i = 0; i < Type::kNum; ++i) acc_[i] = __fmaf_rn(weight, Type::get(words, i), acc_[i]);
  }

  /// Starts from a row of bias instead of +0.
  __device__ __forceinline__ void start(const WideWord& value) {
    const std::uint32_t words[4] = {value.x, value.y, value.z, value.w};
#pragma unroll
    for (int i = 0; i < Type::kNum; ++i) acc_[i] = Type::get(words, i);
  }

  [[nodiscard]] __device__ __forceinline__ WideWord rounded() const {
    std::uint32_t words[4];
    Type::round(acc_, words);
    return {words[0], words[1], words[2], words[3]};
  }

 private:
  float acc_[Type::kNum] = {};
};

}  // namespace moebus::backend::cuda
