// Gather: every rank learns what every rank has to say, carried by a tiny exchange of the library itself.
// So the same code serves threads, processes and ranks of an outer launcher, and its barrier is as tight as a call.
// Room: cli · host.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "moebus/exchange.hpp"
#include "moebus/group.hpp"

namespace moebus::cli {

/// Threads: one caller at a time per rank; all calls are collective, in the same order on all ranks.
class Gather {
 public:
  /// Collective. Errors: as Exchange::prepare.
  explicit Gather(const Group& group);

  /// Returns every rank's text, in rank order. Errors: as Exchange::dispatch.
  std::vector<std::string> texts(const std::string& own);

  /// Replaces each entry by its maximum over ranks. All ranks give equally many, or Error{internal}.
  void maximum(std::vector<double>& values);

  /// Replaces each entry by its sum over ranks. All ranks give equally many, or Error{internal}.
  void sum(std::vector<double>& values);

  /// Returns when every rank has called it.
  void barrier();

 private:
  static constexpr std::size_t kMessageBytes = 4096;

  // Replaces each entry by what `of_two` makes, one by one, of all ranks' entries.
  void merge(std::vector<double>& values, double (*of_two)(double, double));

  // Sends `size` bytes to all ranks; returns the received rows [ranks, kMessageBytes], valid until the next round.
  const std::byte* round(const void* bytes, std::size_t size);

  int num_ranks_;
  Exchange exchange_;
  std::vector<std::int64_t> everyone_;
  std::vector<std::byte> message_;
  std::vector<std::byte> received_;  // a copy: results must not be held while others are made
};

}  // namespace moebus::cli
