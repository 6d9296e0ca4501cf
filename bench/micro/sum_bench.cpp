// Weighted sum of rows to one row, in cache (rows reused) and out of it (rows rotated), beside the bytes it reads.
#include <benchmark/benchmark.h>

#include <random>
#include <string>
#include <vector>

#include "backend/cpu/backend_cpu.hpp"
#include "model/codec.hpp"

namespace moebus::backend {
namespace {

constexpr int kHidden = 7168;

/// Sums `num_terms` rows to each of `num_outputs` outputs.
void sum_rows(benchmark::State& state, SimdLevel level, int num_terms, int num_outputs) {
  const std::size_t num_rows = static_cast<std::size_t>(num_terms) * static_cast<std::size_t>(num_outputs);
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<std::uint16_t> rows(num_rows * kHidden);
  for (auto& x : rows) x = model::bf16_from_f32(normal(random));
  std::vector<std::uint16_t> output(static_cast<std::size_t>(num_outputs) * kHidden + 32);
  std::vector<std::int32_t> first{0};
  std::vector<const std::byte*> terms;
  const std::vector<float> weights(num_rows, 0.125F);
  for (std::size_t t = 0; t < num_rows; ++t) terms.push_back(reinterpret_cast<const std::byte*>(&rows[t * kHidden]));
  for (int o = 0; o < num_outputs; ++o) first.push_back(first.back() + num_terms);
  SumJob job;
  job.hidden = kHidden;
  job.num_outputs = num_outputs;
  job.first = first.data();
  job.term = terms.data();
  job.weight = weights.data();
  job.output = reinterpret_cast<std::byte*>((reinterpret_cast<std::uintptr_t>(output.data()) + 63) / 64 * 64);
  job.output_stride_bytes = kHidden * 2;
  const auto backend = make_cpu_backend(level);
  for (auto _ : state) {
    backend->sum(job);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() *
                          static_cast<std::int64_t>(num_rows + static_cast<std::size_t>(num_outputs)) * kHidden * 2);
  state.SetItemsProcessed(state.iterations() * num_outputs);
}

const bool kRegistered = [] {
  for (const SimdLevel level : {SimdLevel::scalar, SimdLevel::avx2, SimdLevel::avx512}) {
    if (!has_simd_level(level)) continue;
    for (const int num_terms : {1, 2, 8}) {
      for (const int num_outputs : {1, 2048}) {
        if (level == SimdLevel::scalar && num_outputs > 1) continue;
        const std::string name = "sum_rows/" + std::string(to_string(level)) + "/terms:" + std::to_string(num_terms) +
                                 "/outputs:" + std::to_string(num_outputs);
        benchmark::RegisterBenchmark(name.c_str(), sum_rows, level, num_terms, num_outputs);
      }
    }
  }
  return true;
}();

}  // namespace
}  // namespace moebus::backend
