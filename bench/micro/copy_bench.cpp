// Row copies of batches around the streaming threshold: memcpy, and what the backend chooses.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "backend/cpu/backend_cpu.hpp"
#include "backend/cpu/copy.hpp"

namespace moebus::backend {
namespace {

constexpr std::size_t kRowBytes = 7168;

/// Memory on a line, in pages that were touched.
class Lines {
 public:
  explicit Lines(std::size_t size) : bytes_(size + kLineBytes, std::byte{1}) {}

  std::byte* begin() {
    return bytes_.data() + (kLineBytes - reinterpret_cast<std::uintptr_t>(bytes_.data()) % kLineBytes) % kLineBytes;
  }

 private:
  std::vector<std::byte> bytes_;
};

/// Copies a batch of range(0) rows in random order; every call takes another part of 64 MiB.
template <class Copy>
void copy_batches(benchmark::State& state, Copy copy) {
  const auto num_rows = static_cast<std::size_t>(state.range(0));
  const std::size_t batch_bytes = num_rows * kRowBytes;
  const std::size_t num_batches = std::max<std::size_t>(2, (std::size_t{64} << 20) / batch_bytes);
  Lines source(num_batches * batch_bytes);
  Lines sink(num_batches * batch_bytes);
  std::vector<RowMove> moves(num_rows);
  for (std::size_t i = 0; i < num_rows; ++i) moves[i] = {static_cast<std::int32_t>(i), static_cast<std::int32_t>(i)};
  std::shuffle(moves.begin(), moves.end(), std::mt19937(3));
  std::size_t batch = 0;
  for (auto _ : state) {
    copy(sink.begin() + batch * batch_bytes, source.begin() + batch * batch_bytes, moves);
    benchmark::ClobberMemory();
    batch = (batch + 1) % num_batches;
  }
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(batch_bytes));
}

void copy_by_memcpy(benchmark::State& state) {
  copy_batches(state, [](std::byte* sink, const std::byte* source, const std::vector<RowMove>& moves) {
    for (const RowMove& m : moves) {
      std::memcpy(sink + m.dst * std::ptrdiff_t{kRowBytes}, source + m.src * std::ptrdiff_t{kRowBytes}, kRowBytes);
    }
  });
}

void copy_by_backend(benchmark::State& state) {
  const auto backend = make_cpu_backend();
  copy_batches(state, [&](std::byte* sink, const std::byte* source, const std::vector<RowMove>& moves) {
    backend->copy_slots(
        source, kRowBytes, sink, kRowBytes, kRowBytes, moves, backend->stores_for(moves.size() * kRowBytes));
  });
}

BENCHMARK(copy_by_memcpy)->RangeMultiplier(2)->Range(16, 2048);
BENCHMARK(copy_by_backend)->RangeMultiplier(2)->Range(16, 2048);

}  // namespace
}  // namespace moebus::backend
