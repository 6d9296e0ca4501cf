// Peers: the order in which a rank turns to the others, and tensors laid over result memory.
// Room: engine · host.

#pragma once

#include "backend/backend.hpp"
#include "model/layout.hpp"
#include "moebus/io.hpp"
#include "moebus/stats.hpp"

namespace moebus::engine {

/// Calls `function(peer)` for every other rank, each rank beginning with its next neighbour so that not all begin with
/// the same.
template <class Function>
void for_each_peer(int rank, int num_ranks, const Function& function) {
  for (int step = 1; step < num_ranks; ++step) function((rank + step) % num_ranks);
}

/// Counts rows that went to and came from a peer; `row_bytes` is 0 for the own rank, whose rows cross nothing.
inline void count_rows(PeerStats& stats, std::uint64_t sent, std::uint64_t received, std::size_t row_bytes) noexcept {
  stats.rows_sent += sent;
  stats.rows_received += received;
  stats.bytes_sent += sent * row_bytes;
  stats.bytes_received += received * row_bytes;
}

/// Tensors of a whole result laid over `memory` (all rows of the capacity).
[[nodiscard]] DispatchOutput result_tensors(const model::Shape& shape,
                                            const model::ResultLayout& layout,
                                            int rank,
                                            std::byte* memory) noexcept;

/// The same memory as rows, for the backend.
[[nodiscard]] backend::RowArrays result_rows(const model::Shape& shape,
                                             const model::ResultLayout& layout,
                                             std::byte* memory) noexcept;

/// `num_slots` slots that begin at `memory`, as rows.
[[nodiscard]] backend::RowArrays slot_rows(const model::DispatchRowFormat& format,
                                           std::byte* memory,
                                           std::int64_t num_slots) noexcept;

/// Calls `function(from, to, stride_bytes)` for each part of two slot arrays of the same format.
template <class Function>
void for_each_part(const model::DispatchRowFormat& format,
                   const backend::RowArrays& from,
                   const backend::RowArrays& to,
                   const Function& function) {
  function(from.tokens, to.tokens, from.token_stride_bytes);
  if (format.scales_bytes > 0) function(from.scales, to.scales, from.scale_row_stride_bytes);
  for (std::size_t s = 0; s < kMaxSideTensors; ++s) {
    if (format.side_bytes[s] > 0) function(from.side[s], to.side[s], from.side_stride_bytes[s]);
  }
}

/// The caller's result tensors as rows.
[[nodiscard]] backend::RowArrays output_rows(const model::Shape& shape, const DispatchOutput& output) noexcept;

/// The caller's input tensors as rows.
[[nodiscard]] backend::ConstRowArrays input_rows(const DispatchInput& input) noexcept;

}  // namespace moebus::engine
