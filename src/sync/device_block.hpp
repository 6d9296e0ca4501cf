// Device blocks: the words that kernels of one rank, its peers and its host speak in. Layouts only; the loads and
// stores are in sync/atomics.hpp (host) and backend/cuda (device). Room: sync · host+device layout. Source: [ours]
// design 4.5 (epoch on the device), 4.9 (memory order), 7 (abort words, error record).

#pragma once

#include <cstddef>
#include <cstdint>

#include "moebus/types.hpp"
#include "sync/atomics.hpp"

namespace moebus::sync {

/// 16 bytes that travel whole: a 128-bit store is not torn, so that one of its words says whether the others are there.
struct alignas(16) WideWord {
  std::uint32_t x = 0;
  std::uint32_t y = 0;
  std::uint32_t z = 0;
  std::uint32_t w = 0;
};

/// Last word of a wide word of payload that nobody has written yet. Windows for rows hold nothing else between calls.
inline constexpr std::uint32_t kArmed = 0xFFFFFFFFU;

/// Tag of everything else that travels in wide words: the epoch, in the last word. Epochs count from 1, so that neither
/// zeroed nor armed memory matches.
[[nodiscard]] constexpr std::uint32_t tag_of(std::uint64_t epoch) noexcept { return static_cast<std::uint32_t>(epoch); }

/// What a rank says of a call to each peer, in one wide word: its tag follows.
/// Layout: x = tokens 24 | operation 4 | flags 4; y = digest; z = error code of a refusal, 0 = none.
struct DeviceHeader {
  std::uint32_t num_tokens = 0;
  std::uint8_t operation = 0;  ///< sync::Operation
  bool has_weights = false;
  std::uint32_t digest = 0;
  std::uint32_t refusal = 0;  ///< ErrorCode
};

inline constexpr std::uint32_t kMaxDeviceTokens = (1U << 24) - 1;

[[nodiscard]] constexpr WideWord encode(const DeviceHeader& header, std::uint32_t tag) noexcept {
  return {
      header.num_tokens << 8 | static_cast<std::uint32_t>(header.operation & 0xF) << 4 | (header.has_weights ? 1U : 0U),
      header.digest,
      header.refusal,
      tag};
}

[[nodiscard]] constexpr DeviceHeader decode_header(const WideWord& word) noexcept {
  return {word.x >> 8, static_cast<std::uint8_t>(word.x >> 4 & 0xF), (word.x & 1) != 0, word.y, word.z};
}

/// In every rank's window: who gave up. Written by peers.
struct alignas(128) DeviceControl {
  Word aborted[kMaxRanks] = {};  ///< [peer] sync::Abort, sticky
};

inline constexpr int kMaxDeviceBlocks = 1024;

/// State of a context on its own device; nobody else sees it.
struct alignas(128) DeviceState {
  std::uint64_t epoch = 1;        ///< of the next call
  std::uint32_t num_left = 0;     ///< blocks that have left the running call
  std::uint32_t is_ended = 0;     ///< the group is poisoned: later kernels do nothing
  std::uint32_t num_taken = 0;    ///< shares of this call that some block sends or has sent
  std::uint32_t num_bad_ids = 0;  ///< in all calls so far
  std::uint32_t unused[2] = {};
  std::uint32_t taken[kMaxDeviceBlocks] = {};  ///< [share] tag of the last call in which a block took it
};

/// What a kernel waited for.
enum class DeviceWait : std::uint32_t { none, header, table, row, weights, tail };

/// In host memory that the device maps: limits that the host may change, and what kernels report. One writer a field.
struct alignas(128) DeviceReport {
  // Written by the host, read by every long wait.
  std::uint64_t arrival_limit_ns = 0;
  std::uint64_t progress_limit_ns = 0;
  std::uint64_t unused[14] = {};

  // Written by the device: the first failure; `failure_epoch` is written last, 0 = none.
  std::uint64_t failure_epoch = 0;
  std::uint32_t failure_code = 0;  ///< ErrorCode
  std::uint32_t culprit = 0;
  std::uint32_t waited_for = 0;  ///< DeviceWait
  std::uint32_t token = 0;       ///< of the culprit, where one was waited for
  std::uint32_t expected[4] = {};
  std::uint32_t seen[4] = {};
  std::uint64_t waited_ns = 0;

  // Refusals: the last refused call, by whom, why. `refused_epoch` is written last.
  std::uint64_t refused_epoch = 0;
  std::uint32_t refused_by = 0;
  std::uint32_t refused_code = 0;

  // Ids that are neither an expert nor -1: how many in all calls so far, and the last one.
  std::uint64_t num_bad_ids = 0;
  std::uint64_t bad_id_epoch = 0;
  std::int64_t bad_id_value = 0;
  std::uint32_t bad_id_token = 0;
  std::uint32_t bad_id_choice = 0;

  // Counts of the last call that asked for them; `counts_epoch` is written last.
  std::uint64_t counts_epoch = 0;
  std::int64_t num_rows = 0;
  std::int64_t num_overflowed = 0;
};

static_assert(sizeof(WideWord) == 16 && sizeof(DeviceControl) == 512);

}  // namespace moebus::sync
