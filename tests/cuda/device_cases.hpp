// Device cases: exchange cases that devices can run, and what tests of the latency path on a GPU share: streams,
// blocks, and what a report says. Ranks may be driven by one thread, be threads, or be processes. Room: tests/cuda ·
// host.

#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sync/device_block.hpp"
#include "tests/support/exchange_run.hpp"

namespace moebus::tests {

/// Streams of device 0 that wait for no others.
class Streams {
 public:
  explicit Streams(int num);
  ~Streams();
  Streams(const Streams&) = delete;
  Streams& operator=(const Streams&) = delete;

  [[nodiscard]] StreamHandle operator[](int i) const;

 private:
  std::vector<cudaStream_t> streams_;
};

/// Makes a random case, or nothing if devices cannot run the one of this seed.
[[nodiscard]] std::optional<ExchangeCase> device_case(std::uint64_t seed, int num_ranks);

/// Makes a case of five tokens a rank.
[[nodiscard]] ExchangeCase small_case(int num_ranks);

/// Returns how many blocks carry rows: all ranks share one device, and every block has to find a place.
[[nodiscard]] int blocks_for(std::uint64_t seed, int num_ranks);

/// Says how a call failed, or nothing if none did.
[[nodiscard]] std::optional<std::string> failure_text(const sync::DeviceReport& report);

}  // namespace moebus::tests
