#include "cli/floor.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>

#include "cli/processor.hpp"
#include "cli/samples.hpp"
#include "moebus/info.hpp"

namespace moebus::cli {

namespace {

constexpr std::chrono::seconds kFlagLimit{5};
constexpr std::size_t kRowAlignment = 16;  // of rows in windows

std::size_t aligned(std::size_t bytes) { return (bytes + kRowAlignment - 1) / kRowAlignment * kRowAlignment; }

void copy_plain(std::byte* dst,
                std::size_t dst_stride,
                const std::byte* src,
                std::size_t src_stride,
                std::size_t row_bytes,
                std::size_t rows) {
  if (dst_stride == row_bytes && src_stride == row_bytes) {
    std::memcpy(dst, src, rows * row_bytes);
    return;
  }
  for (std::size_t r = 0; r < rows; ++r) std::memcpy(dst + r * dst_stride, src + r * src_stride, row_bytes);
}

// Stores past the caches; rows start at multiples of 16 bytes.
void copy_streaming(std::byte* dst,
                    std::size_t dst_stride,
                    const std::byte* src,
                    std::size_t src_stride,
                    std::size_t row_bytes,
                    std::size_t rows) {
  for (std::size_t r = 0; r < rows; ++r) copy_row_streaming(dst + r * dst_stride, src + r * src_stride, row_bytes);
  fence_streams();
}

void copy_library(std::byte* dst,
                  std::size_t dst_stride,
                  const std::byte* src,
                  std::size_t src_stride,
                  std::size_t row_bytes,
                  std::size_t rows) {
  copy_rows(dst, dst_stride, src, src_stride, row_bytes, rows);
}

// Reads every byte once; the sum keeps the compiler from leaving it out.
std::uint64_t read_rows(const CopyStep& step) {
  std::uint64_t sum = 0;
  for (std::size_t r = 0; r < step.rows; ++r) {
    const std::byte* const row = step.src + r * step.stride;
    std::size_t i = 0;
    std::array<std::uint64_t, 4> part{};
    for (; i + sizeof(part) <= step.row_bytes; i += sizeof(part)) {
      std::array<std::uint64_t, 4> words{};
      std::memcpy(words.data(), row + i, sizeof(words));
      for (std::size_t w = 0; w < words.size(); ++w) part[w] += words[w];
    }
    sum += part[0] + part[1] + part[2] + part[3];
  }
  return sum;
}

std::uint64_t run(const std::vector<CopyStep>& steps, CopyRows copy) {
  std::uint64_t sum = 0;
  for (const CopyStep& step : steps) {
    if (step.dst == nullptr) {
      sum += read_rows(step);
    } else {
      copy(step.dst, step.stride, step.src, step.stride, step.row_bytes, step.rows);
    }
  }
  return sum;
}

void add(std::vector<CopyStep>& steps, std::byte* dst, const std::byte* src, std::size_t row_bytes, std::int64_t rows) {
  if (rows > 0) steps.push_back({dst, src, row_bytes, aligned(row_bytes), static_cast<std::size_t>(rows)});
}

std::int64_t most_result_rows(const std::vector<RowCounts>& counts) {
  std::int64_t most = 0;
  for (const RowCounts& set : counts) most = std::max(most, set.result_rows);
  return most;
}

// A window's rows of one source start at a fixed place, as in the latency path's slots.
std::size_t source_offset(const BenchSetup& setup, int source, std::size_t stride) {
  return static_cast<std::size_t>(source) * static_cast<std::size_t>(setup.options.tokens) * stride;
}

void touch(const Pages& pages) { std::memset(pages.data(), 1, pages.size()); }

double elapsed_us(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

std::span<const Copier> copiers() {
  static const std::array<Copier, 3> kCopiers{
      Copier{"library", copy_library}, Copier{"memcpy", copy_plain}, Copier{"streaming", copy_streaming}};
  return std::span(kCopiers).first(can_stream() ? 3 : 2);
}

std::size_t floor_window_bytes(const BenchSetup& setup) {
  const std::size_t row = std::max(aligned(travel_bytes(setup.config)), aligned(answer_bytes(setup.config)));
  // [source][token]; per_rank combine sends at most one row a token as well.
  return static_cast<std::size_t>(setup.num_ranks) * static_cast<std::size_t>(setup.options.tokens) * row;
}

FloorWindows::FloorWindows(const BenchSetup& setup, bool is_private)
    : is_shared_(!is_private),
      num_turns_(setup.config.path == Path::latency ? 2 : 1),
      rank_bytes_(floor_window_bytes(setup)),
      pages_(num_turns_ * rank_bytes_ * static_cast<std::size_t>(setup.num_ranks) + kFlagBytes, !is_private) {}

Floor::Floor(const BenchSetup& setup, int rank, const FloorWindows& windows, const std::vector<RowCounts>& counts) {
  const auto sets = static_cast<std::size_t>(setup.num_sets);
  const std::size_t travel = aligned(travel_bytes(setup.config));
  const std::size_t answer = aligned(answer_bytes(setup.config));
  const auto rows = static_cast<std::size_t>(std::max<std::int64_t>(most_result_rows(counts), setup.options.tokens));
  source_ = Pages(sets * static_cast<std::size_t>(setup.options.tokens) * travel, false);
  answers_ = Pages(setup.options.kind == BenchKind::dispatch ? 0 : sets * rows * answer, false);
  result_ = Pages(rows * travel, false);
  output_ = Pages(static_cast<std::size_t>(setup.options.tokens) * answer, false);
  touch(source_);
  touch(answers_);
  touch(result_);
  touch(output_);
  dispatch_.resize(sets);
  combine_.resize(sets);
  plan_dispatch(setup, rank, windows, counts);
  if (setup.options.kind != BenchKind::dispatch) plan_combine(setup, rank, windows, counts);
}

void Floor::plan_dispatch(const BenchSetup& setup,
                          int rank,
                          const FloorWindows& windows,
                          const std::vector<RowCounts>& counts) {
  const ExchangeConfig& config = setup.config;
  const std::size_t bytes = travel_bytes(config);
  const std::size_t stride = aligned(bytes);
  // Rows that arrive in their final place need no second copy: the throughput path's direct delivery.
  const bool is_direct = config.path == Path::throughput && config.delivery == Delivery::direct;
  for (std::size_t set = 0; set < counts.size(); ++set) {
    const std::byte* const source = source_.data() + set * source_offset(setup, 1, stride);
    CopyPlan& plan = dispatch_[set];
    std::int64_t left = counts[set].result_rows;
    std::byte* out = result_.data();
    for (int step = 1; step < setup.num_ranks; ++step) {
      // Each rank begins with its next neighbour, so that not all write to one.
      const int peer = (rank + step) % setup.num_ranks;
      const std::int64_t out_rows = counts[set].sent[static_cast<std::size_t>(peer)];
      add(plan.push, windows.of(peer, set) + source_offset(setup, rank, stride), source, bytes, out_rows);
      const std::int64_t in_rows = counts[set].received[static_cast<std::size_t>(peer)];
      left -= in_rows;
      if (is_direct) continue;
      add(plan.home, out, windows.of(rank, set) + source_offset(setup, peer, stride), bytes, in_rows);
      out += static_cast<std::size_t>(in_rows) * stride;
    }
    // Own rows, and in expert layouts the further copies of a row: one for each expert beyond the first.
    while (left > 0) {
      const std::int64_t rows = std::min<std::int64_t>(left, setup.options.tokens);
      add(plan.home, out, source, bytes, rows);
      out += static_cast<std::size_t>(rows) * stride;
      left -= rows;
    }
  }
}

void Floor::plan_combine(const BenchSetup& setup,
                         int rank,
                         const FloorWindows& windows,
                         const std::vector<RowCounts>& counts) {
  const std::size_t bytes = answer_bytes(setup.config);
  const std::size_t stride = aligned(bytes);
  const auto rows_of_set =
      static_cast<std::size_t>(std::max<std::int64_t>(most_result_rows(counts), setup.options.tokens));
  for (std::size_t set = 0; set < counts.size(); ++set) {
    const std::byte* const answers = answers_.data() + set * rows_of_set * stride;
    CopyPlan& plan = combine_[set];
    std::int64_t pushed = 0;
    std::int64_t home_rows = 0;
    for (int step = 1; step < setup.num_ranks; ++step) {
      const int peer = (rank + step) % setup.num_ranks;
      const std::int64_t rows = counts[set].received[static_cast<std::size_t>(peer)];
      const std::byte* const from = answers + static_cast<std::size_t>(pushed) * stride;
      add(plan.push, windows.of(peer, set) + source_offset(setup, rank, stride), from, bytes, rows);
      pushed += rows;
    }
    // What is not pushed is read where it lies: own tokens' rows, and in expert layouts further rows of a token.
    const std::int64_t unpushed = counts[set].result_rows - pushed;
    add(plan.home, nullptr, answers + static_cast<std::size_t>(pushed) * stride, bytes, unpushed);
    for (int step = 1; step < setup.num_ranks; ++step) {
      const int peer = (rank + step) % setup.num_ranks;
      const std::int64_t rows = counts[set].sent[static_cast<std::size_t>(peer)];
      const std::byte* const window = windows.of(rank, set) + source_offset(setup, peer, stride);
      // One arrived row per output is copied, which writes the output; the others are read.
      const std::int64_t copied = std::min<std::int64_t>(rows, setup.options.tokens - home_rows);
      add(plan.home, output_.data() + static_cast<std::size_t>(home_rows) * stride, window, bytes, copied);
      add(plan.home, nullptr, window + static_cast<std::size_t>(copied) * stride, bytes, rows - copied);
      home_rows += copied;
    }
    // Outputs that no arrived row fills are written from own rows.
    const std::int64_t unfilled =
        std::min<std::int64_t>(setup.options.tokens - home_rows, static_cast<std::int64_t>(rows_of_set));
    add(plan.home, output_.data() + static_cast<std::size_t>(home_rows) * stride, answers, bytes, unfilled);
  }
}

double Floor::pass_us(const CopyPlan& plan, const Copier& copier, const std::function<void()>& barrier) {
  barrier();
  auto start = std::chrono::steady_clock::now();
  read_sum_ += run(plan.push, copier.copy);
  double total = elapsed_us(start);
  barrier();
  start = std::chrono::steady_clock::now();
  read_sum_ += run(plan.home, copier.copy);
  total += elapsed_us(start);
  return total;
}

double flag_round_trip_us(int rank, const FloorWindows& windows) {
  constexpr std::uint64_t kRounds = 4000;
  constexpr std::uint64_t kRoundsPerSample = 20;
  // Two flags on lines of their own.
  auto* const first = reinterpret_cast<std::uint64_t*>(windows.flags());
  auto* const second = first + 32;
  std::atomic_ref<std::uint64_t> mine(rank == 0 ? *first : *second);
  std::atomic_ref<std::uint64_t> theirs(rank == 0 ? *second : *first);
  constexpr int kLooksPerClock = 1 << 16;
  const auto limit = std::chrono::steady_clock::now() + kFlagLimit;
  const auto wait_for = [&](std::uint64_t value) {
    for (int looks = 0; theirs.load(std::memory_order_acquire) != value; ++looks) {
      pause();
      if (looks % kLooksPerClock == kLooksPerClock - 1 && std::chrono::steady_clock::now() > limit) return false;
    }
    return true;
  };
  std::vector<double> samples;
  auto start = std::chrono::steady_clock::now();
  for (std::uint64_t round = 1; round <= kRounds; ++round) {
    if (rank == 0) mine.store(round, std::memory_order_release);
    if (!wait_for(round)) return 0;
    if (rank != 0) mine.store(round, std::memory_order_release);
    if (round % kRoundsPerSample != 0) continue;
    samples.push_back(elapsed_us(start) / static_cast<double>(kRoundsPerSample));
    start = std::chrono::steady_clock::now();
  }
  return summarise(samples).median;
}

double bytes_written(const CopyPlan& plan) noexcept {
  double bytes = 0;
  for (const std::vector<CopyStep>* steps : {&plan.push, &plan.home}) {
    for (const CopyStep& step : *steps) {
      if (step.dst != nullptr) bytes += static_cast<double>(step.row_bytes * step.rows);
    }
  }
  return bytes;
}

}  // namespace moebus::cli
