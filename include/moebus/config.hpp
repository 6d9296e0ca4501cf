// Configuration: what all ranks agree on before a byte moves.
// Room: public vocabulary · host.

#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "moebus/types.hpp"

namespace moebus {

/// Describes one exchange (one shape of MoE layer). The same on every rank; `prepare()` compares it and names each
/// difference.
struct ExchangeConfig {
  int num_experts = 0;          ///< over all ranks; need not divide by the ranks; >= 1
  int num_topk = 0;             ///< choices per token, 1..kMaxTopk
  int hidden = 0;               ///< columns of a dispatched row, >= 1
  int max_tokens_per_rank = 0;  ///< most tokens a rank may dispatch in one call, >= 1

  DType dtype = DType::bf16;  ///< of the rows given to dispatch; bf16 when `cast` is fp8
  Cast cast = Cast::none;
  ScaleFormat scale_format = ScaleFormat::none;  ///< with cast: what is made; without: what DispatchInput::scales holds
  ScaleOrder scale_order = ScaleOrder::row_major;
  std::array<int, kMaxSideTensors> side_bytes{};  ///< bytes per row of each side tensor, 0 = none

  Layout layout = Layout::rank_major;
  int expert_alignment = 1;  ///< rows; expert_major groups start at multiples of it
  std::int64_t capacity_rows =
      0;  ///< rows of the result (expert_padded: rows per expert); 0 = worst case, nothing can overflow
  bool zero_padding = false;  ///< write zeros into rows that no token fills; otherwise they are undefined

  Path path = Path::latency;
  Delivery delivery = Delivery::direct;             ///< throughput path only
  std::size_t stage_bytes = std::size_t{64} << 20;  ///< most registered bytes a rank lends to rounds (throughput path)

  int combine_hidden = 0;  ///< columns of a combined row, 0 = hidden
  DType combine_dtype = DType::bf16;
  CombineRows combine_rows = CombineRows::per_rank;
  bool combine_lane = false;  ///< combine can return per-choice floats (CombineInput::lane)

  /// Seats for experts on every rank. 0 = one seat per expert, in contiguous blocks; else seats are filled by
  /// Exchange::set_placement (until then: experts in order, the remaining seats empty), and num_ranks * seats_per_rank
  /// must reach num_experts.
  int seats_per_rank = 0;
  InterNode inter_node = InterNode::gateway;  ///< how rows cross between nodes, in groups of two levels
  int context =
      0;  ///< the sequence of calls that this exchange belongs to, 0..kMaxContexts-1; each has its own windows

  int max_handles = 2;          ///< dispatches whose combine may still be open at one time
  bool caller_results = false;  ///< results always go to tensors of the caller; no result memory is kept here
};

/// Says how a group comes together and how long its members wait.
struct GroupOptions {
  std::string token;  ///< shared secret; needed where the network is used beyond loopback, never sent
  std::chrono::milliseconds join_limit{60'000};      ///< for join, prepare and other set-up exchanges
  std::chrono::milliseconds arrival_limit{120'000};  ///< for a peer to make a call that this rank has made
  std::chrono::milliseconds progress_limit{10'000};  ///< for bytes of a call that its sender has begun
  std::string transport = "auto";                    ///< "auto", "loopback" or "shm"
  std::string host_id;  ///< node that this rank says it is on; empty = MOEBUS_HOST_ID, else this machine's boot id
  int levels = 0;  ///< 1: combine adds over ranks; 2: over the ranks of a node, then over nodes; 0 = 2 if there are
                   ///< several nodes. Part of the result's bits, see docs/architecture.md
  MapPeers map_peers = MapPeers::reachable;  ///< whose memory is mapped; bytes to others go through the transport
  bool show_progress = true;                 ///< log a line that names missing ranks while a set-up wait lasts
};

/// Bytes that a configuration needs on one rank.
struct BytesNeeded {
  std::size_t registered = 0;  ///< windows that peers write into, signals included
  std::size_t local = 0;       ///< results, handles and scratch that only this rank touches
  std::size_t pinned = 0;      ///< host memory locked for a device; 0 on CPU ranks
};

}  // namespace moebus
