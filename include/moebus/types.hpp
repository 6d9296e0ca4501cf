// Types: the small values that every public call speaks in.
// Room: public vocabulary · host.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace moebus {

/// Limits of this version. More than these is Error{unsupported}, never undefined.
inline constexpr int kMaxRanks = 64;
inline constexpr int kMaxTopk = 64;
inline constexpr int kMaxSideTensors = 2;
inline constexpr int kMaxContexts = 8;

/// Names an element type. All of them are moved bit for bit; bf16, f16 and f32 can be summed; e4m3 is a target of the
/// cast. Packed formats (FP4, INT4) travel as u8 with as many columns as bytes.
enum class DType : std::uint8_t { u8, i8, e4m3, e5m2, bf16, f16, i16, i32, f32, i64, f64 };

/// Returns the size of one element in bytes.
[[nodiscard]] constexpr std::size_t size_of(DType dtype) noexcept {
  switch (dtype) {
    case DType::u8:
    case DType::i8:
    case DType::e4m3:
    case DType::e5m2:
      return 1;
    case DType::bf16:
    case DType::f16:
    case DType::i16:
      return 2;
    case DType::i32:
    case DType::f32:
      return 4;
    case DType::i64:
    case DType::f64:
      return 8;
  }
  return 0;
}

/// True for the types that combine can add up.
[[nodiscard]] constexpr bool is_summable(DType dtype) noexcept {
  return dtype == DType::bf16 || dtype == DType::f16 || dtype == DType::f32;
}

/// Where a tensor lives.
enum class MemoryKind : std::uint8_t { host, device };

/// A queue of work on a device, made by the caller: a cudaStream_t, whose type this library never names. Null is the
/// device's default stream.
struct StreamHandle {
  void* value = nullptr;
};

/// How a call moves rows. `latency`: fixed slots, one pass, for up to a few hundred tokens a rank.
/// `throughput`: counts and grants first, then rows straight to their final place.
enum class Path : std::uint8_t { latency, throughput };

/// Where the throughput path puts rows. `direct`: the result is the registered region (sized by the capacity; no copy,
/// but of rows from afar: docs/guide/nodes.md). `staged`: through a fixed region in rounds, into ordinary memory.
enum class Delivery : std::uint8_t { direct, staged };

/// How received rows are arranged; see docs/glossary.md.
enum class Layout : std::uint8_t { rank_major, expert_major, expert_padded };

/// What an owner sends home in combine: one summed row per (token, rank), or one row per (token, expert).
enum class CombineRows : std::uint8_t { per_rank, per_expert };

/// Conversion inside dispatch. `fp8`: bf16 rows become e4m3 with one scale per 128 columns.
enum class Cast : std::uint8_t { none, fp8 };

/// Scale format; part of a tensor's type. `ue8m0`: powers of two as biased exponents, four packed in an i32.
enum class ScaleFormat : std::uint8_t { none, f32, ue8m0 };

/// Memory order of received scales. `column_major`: column stride = rows rounded up to 16 bytes, as grouped GEMMs with
/// TMA want it.
enum class ScaleOrder : std::uint8_t { row_major, column_major };

/// Where combine's weights come from. `dispatched`: those given to dispatch. `given`: those in
/// CombineInput::topk_weights.
enum class Weighting : std::uint8_t { none, dispatched, given };

/// How rows cross between nodes. `gateway`: once per (token, node), to one rank of the node, which forwards them, and
/// adds up what goes back. `direct`: once per (token, rank), without a stop.
enum class InterNode : std::uint8_t { gateway, direct };

/// Whose memory a rank maps: everybody's that can be, its own node's only, or nobody's.
enum class MapPeers : std::uint8_t { reachable, node, none };

/// Columns that share one scale (the last block may be shorter).
inline constexpr int kScaleBlock = 128;

std::string_view to_string(DType dtype) noexcept;
std::string_view to_string(MemoryKind kind) noexcept;
std::string_view to_string(Path path) noexcept;
std::string_view to_string(Delivery delivery) noexcept;
std::string_view to_string(Layout layout) noexcept;
std::string_view to_string(CombineRows rows) noexcept;
std::string_view to_string(Cast cast) noexcept;
std::string_view to_string(ScaleFormat format) noexcept;
std::string_view to_string(ScaleOrder order) noexcept;
std::string_view to_string(Weighting weighting) noexcept;
std::string_view to_string(InterNode inter_node) noexcept;
std::string_view to_string(MapPeers map_peers) noexcept;

}  // namespace moebus
