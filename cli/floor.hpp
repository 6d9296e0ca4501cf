// Floor: the least that a call could take here, measured as the copies its layout needs: same bytes, same rotation, all
// ranks at once. Room: cli · host.

#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "cli/feed.hpp"
#include "cli/pages.hpp"

namespace moebus::cli {

/// Memory that stands for the peers' windows: one region per rank, seen by all ranks where they share a parent.
class FloorWindows {
 public:
  /// Call it before ranks start, so that they share it. `is_private`: ranks have no common parent; then each writes
  /// into its own.
  FloorWindows(const BenchSetup& setup, bool is_private);

  /// Returns the window of `rank` for a call on that input set, or this process's own stand-in for it. On the latency
  /// path calls take turns in two of them, as the library's do: what is read and written is spread over as much memory.
  [[nodiscard]] std::byte* of(int rank, std::size_t set) const noexcept {
    return pages_.data() + (static_cast<std::size_t>(rank) * num_turns_ + set % num_turns_) * rank_bytes_;
  }

  /// Returns a page for flags, behind the windows.
  [[nodiscard]] std::byte* flags() const noexcept { return pages_.data() + pages_.size() - kFlagBytes; }

  [[nodiscard]] bool is_shared() const noexcept { return is_shared_; }

  static constexpr std::size_t kFlagBytes = 4096;

 private:
  bool is_shared_;
  std::size_t num_turns_;
  std::size_t rank_bytes_;
  Pages pages_;
};

/// Bytes of a window that one call of the floor of `setup` uses, per rank.
std::size_t floor_window_bytes(const BenchSetup& setup);

/// One batch of rows to copy, or only to read (dst null).
struct CopyStep {
  std::byte* dst = nullptr;
  const std::byte* src = nullptr;
  std::size_t row_bytes = 0;
  std::size_t stride = 0;  ///< of rows, on both sides
  std::size_t rows = 0;
};

/// The copies of one call on one rank: into peers' memory first, then, when all are done, what is left to do at home.
struct CopyPlan {
  std::vector<CopyStep> push;
  std::vector<CopyStep> home;
};

/// Copies a batch of rows.
using CopyRows = void (*)(std::byte* dst,
                          std::size_t dst_stride,
                          const std::byte* src,
                          std::size_t src_stride,
                          std::size_t row_bytes,
                          std::size_t rows);

/// A way to copy that floors are compared over.
struct Copier {
  std::string name;  ///< "library", "memcpy" or, where a processor can, "streaming"
  CopyRows copy = nullptr;
};

/// The library's own copy first, then the plain ones it is measured against.
std::span<const Copier> copiers();

/// One rank's buffers and plans for the floors of dispatch and combine.
class Floor {
 public:
  Floor(const BenchSetup& setup, int rank, const FloorWindows& windows, const std::vector<RowCounts>& counts);

  [[nodiscard]] const std::vector<CopyPlan>& dispatch() const noexcept { return dispatch_; }  ///< index = input set

  [[nodiscard]] const std::vector<CopyPlan>& combine() const noexcept { return combine_; }

  /// Returns the time of one pass of a plan in microseconds; waiting for others is not in it. Collective.
  double pass_us(const CopyPlan& plan, const Copier& copier, const std::function<void()>& barrier);

 private:
  void plan_dispatch(const BenchSetup& setup,
                     int rank,
                     const FloorWindows& windows,
                     const std::vector<RowCounts>& counts);
  void plan_combine(const BenchSetup& setup,
                    int rank,
                    const FloorWindows& windows,
                    const std::vector<RowCounts>& counts);

  Pages source_;   // [sets, tokens] rows as they travel
  Pages answers_;  // [sets, result rows] rows for combine
  Pages result_;   // of dispatch
  Pages output_;   // of combine
  std::vector<CopyPlan> dispatch_;
  std::vector<CopyPlan> combine_;
  std::uint64_t read_sum_ = 0;
};

/// Returns the median round trip in microseconds of a bare flag between ranks 0 and 1 in their shared window: what any
/// exchange of two ranks pays at least. Both call it; other ranks, and ranks that share no memory, must not. 0 if the
/// other does not answer within seconds.
double flag_round_trip_us(int rank, const FloorWindows& windows);

/// Returns bytes that a plan writes.
double bytes_written(const CopyPlan& plan) noexcept;

}  // namespace moebus::cli
