// Stats: what an exchange did, with waiting kept apart from work. Always on.
// Room: public vocabulary · host.

#pragma once

#include <array>
#include <cstdint>

#include "moebus/types.hpp"

namespace moebus {

/// Counts what went to and came from one peer (the own rank included: rows that stayed at home). With gateways: what
/// was handed over to and by that rank, wherever it came from and goes; a gateway counts what it forwards.
struct PeerStats {
  std::uint64_t rows_sent = 0;
  std::uint64_t rows_received = 0;
  std::uint64_t bytes_sent = 0;      ///< payload, scales and side tensors that left for the peer; 0 for the own rank
  std::uint64_t bytes_received = 0;  ///< the same, towards this rank
  std::uint64_t wait_ns = 0;         ///< time this rank stood still because that peer was not there yet
};

/// Counts one kind of call.
struct CallStats {
  std::uint64_t calls = 0;
  std::uint64_t refused = 0;          ///< calls that ended with an argument error, here or on another rank
  std::uint64_t total_ns = 0;         ///< from call to return; of a posted call: inside the post and inside wait()
  std::uint64_t wait_ns = 0;          ///< part of it spent waiting for peers; work = total - wait
  std::uint64_t bytes_control = 0;    ///< tables, counts and signals sent to peers
  std::uint64_t rows_overflowed = 0;  ///< rows dropped here because the capacity was reached
};

/// A snapshot of one exchange on one rank.
struct ExchangeStats {
  int num_ranks = 0;
  CallStats dispatch;
  CallStats combine;
  std::array<PeerStats, kMaxRanks> dispatch_peers{};  ///< first num_ranks entries
  std::array<PeerStats, kMaxRanks> combine_peers{};
};

/// Time of each set-up phase, in microseconds.
struct PrepareReport {
  double agree_us = 0;     ///< configuration compared over all ranks
  double allocate_us = 0;  ///< windows created and every page touched
  double map_us = 0;       ///< peers' windows mapped here
  double warm_up_us = 0;   ///< a full dispatch and combine on zeros in each parity (0 until warm_up ran)
};

}  // namespace moebus
