// Kernels: the inner loops that exist once per instruction set. Plain pointers and counts only: their sources are
// compiled for instructions that the CPU may lack, so they must not call (and thereby emit) inline functions or
// templates shared with the rest of the program; the linker might keep their copy. Room: backend/cpu · host.

#pragma once

#include <cstddef>
#include <cstdint>

namespace moebus::backend {

inline constexpr int kBlockColumns = 128;  // columns that share a scale
inline constexpr int kGroupBlocks = 4;     // blocks that fill one UE8M0 word; what a cast kernel takes at a time
inline constexpr int kGroupColumns = kBlockColumns * kGroupBlocks;
inline constexpr int kMaxGroups = 8;  // so that one word has a bit for every block

/// Casts `num_groups` (<= kMaxGroups) whole groups of bf16 columns to e4m3 `codes` and contiguous scales
/// (one f32 a block, or one word of UE8M0 bytes a group). Bit b of the result is set if block b holds an inf or NaN or
/// is near the top of the range: its codes and scale are then unspecified, and the caller makes them by the scalar
/// code.
using CastGroups = std::uint32_t (*)(const std::byte* row,
                                     int num_groups,
                                     std::byte* codes,
                                     std::byte* scales) noexcept;

/// One output row of a sum: acc = bias[0] + bias[1], then the terms in order; see SumJob.
struct SumRow {
  const std::byte* const* terms;  // [num_terms], null = skipped
  const float* weights;           // [num_terms], or null = unweighted
  int num_terms;
  const std::byte* bias[2];
  std::byte* output;
  int columns;
  bool is_streamed;  // output is aligned to kLineBytes, and past the caches
};

/// Adds columns [begin, columns) and returns the first column that is left over; the caller finishes it by the scalar
/// code.
using SumColumns = int (*)(const SumRow& row, int begin) noexcept;

/// Multiplies columns of a row where they lie and returns the first column that is left over, as SumColumns does.
using ScaleColumns = int (*)(std::byte* row, float factor, int columns) noexcept;

/// Partial sums of a dot product: sum j gets columns j, j + 16, j + 32, ...; see DotJob.
inline constexpr int kDotSums = 16;

/// Writes the partial sums over columns [0, end) and returns `end`, a multiple of kDotSums.
using DotColumns = int (*)(const std::byte* left, const std::byte* right, int columns, float* sums) noexcept;

/// Copies whole lines past the caches; `dst` is on a line, `size_bytes` a multiple of kLineBytes. Reads ahead in `src`,
/// and near its end the lines from `next` on (any address; it is only a hint).
using CopyLines = void (*)(std::byte* dst,
                           const std::byte* src,
                           std::size_t size_bytes,
                           const std::byte* next) noexcept;

/// How far kernels read ahead. Measured on a Zen 5 server core, rows from memory. Copy by 64-byte streaming stores 17
/// GB/s, 1 KiB ahead 19, 2 KiB ahead and at the next row 21 (memcpy 15). Sum of two rows 13 GB/s, 1 KiB ahead 25, 2
/// KiB 31.
inline constexpr std::size_t kReadAheadBytes = 2048;

/// One instruction set's kernels; null = left to the scalar code.
struct Kernels {
  CastGroups cast_f32;
  CastGroups cast_ue8m0;
  SumColumns sum_bf16;
  SumColumns sum_f16;
  SumColumns sum_f32;
  ScaleColumns scale_bf16;
  ScaleColumns scale_f16;
  ScaleColumns scale_f32;
  DotColumns dot_bf16;
  DotColumns dot_f16;
  DotColumns dot_f32;
  CopyLines copy_lines;
};

inline constexpr std::size_t kLineBytes = 64;

std::uint32_t cast_groups_f32_avx2(const std::byte* row, int num_groups, std::byte* codes, std::byte* scales) noexcept;
std::uint32_t cast_groups_ue8m0_avx2(const std::byte* row,
                                     int num_groups,
                                     std::byte* codes,
                                     std::byte* scales) noexcept;
std::uint32_t cast_groups_f32_avx512(const std::byte* row,
                                     int num_groups,
                                     std::byte* codes,
                                     std::byte* scales) noexcept;
std::uint32_t cast_groups_ue8m0_avx512(const std::byte* row,
                                       int num_groups,
                                       std::byte* codes,
                                       std::byte* scales) noexcept;
std::uint32_t cast_groups_f32_avx512_vbmi(const std::byte* row,
                                          int num_groups,
                                          std::byte* codes,
                                          std::byte* scales) noexcept;
std::uint32_t cast_groups_ue8m0_avx512_vbmi(const std::byte* row,
                                            int num_groups,
                                            std::byte* codes,
                                            std::byte* scales) noexcept;

int sum_bf16_avx2(const SumRow& row, int begin) noexcept;
int sum_f16_avx2(const SumRow& row, int begin) noexcept;
int sum_f32_avx2(const SumRow& row, int begin) noexcept;
int sum_bf16_avx512(const SumRow& row, int begin) noexcept;
int sum_f16_avx512(const SumRow& row, int begin) noexcept;
int sum_f32_avx512(const SumRow& row, int begin) noexcept;

int scale_bf16_avx2(std::byte* row, float factor, int columns) noexcept;
int scale_f16_avx2(std::byte* row, float factor, int columns) noexcept;
int scale_f32_avx2(std::byte* row, float factor, int columns) noexcept;
int dot_bf16_avx2(const std::byte* left, const std::byte* right, int columns, float* sums) noexcept;
int dot_f16_avx2(const std::byte* left, const std::byte* right, int columns, float* sums) noexcept;
int dot_f32_avx2(const std::byte* left, const std::byte* right, int columns, float* sums) noexcept;
int scale_bf16_avx512(std::byte* row, float factor, int columns) noexcept;
int scale_f16_avx512(std::byte* row, float factor, int columns) noexcept;
int scale_f32_avx512(std::byte* row, float factor, int columns) noexcept;
int dot_bf16_avx512(const std::byte* left, const std::byte* right, int columns, float* sums) noexcept;
int dot_f16_avx512(const std::byte* left, const std::byte* right, int columns, float* sums) noexcept;
int dot_f32_avx512(const std::byte* left, const std::byte* right, int columns, float* sums) noexcept;

void copy_lines_avx2(std::byte* dst, const std::byte* src, std::size_t size_bytes, const std::byte* next) noexcept;
void copy_lines_avx512(std::byte* dst, const std::byte* src, std::size_t size_bytes, const std::byte* next) noexcept;

/// ThreadSanitizer does not see non-temporal stores: ordinary ones are used under it.
#if defined(__SANITIZE_THREAD__)
inline constexpr bool kCanStream = false;
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
inline constexpr bool kCanStream = false;
#else
inline constexpr bool kCanStream = true;
#endif
#else
inline constexpr bool kCanStream = true;
#endif

}  // namespace moebus::backend
