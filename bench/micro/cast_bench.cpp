// Cast of one bf16 row in cache, beside a memcpy of the same row.
#include <benchmark/benchmark.h>

#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "backend/cpu/backend_cpu.hpp"
#include "model/codec.hpp"

namespace moebus::backend {
namespace {

constexpr int kHidden = 7168;

std::vector<std::uint16_t> random_row() {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<std::uint16_t> row(kHidden);
  for (auto& x : row) x = model::bf16_from_f32(normal(random));
  return row;
}

void copy_row(benchmark::State& state) {
  const auto row = random_row();
  std::vector<std::uint16_t> sink(row.size());
  for (auto _ : state) {
    std::memcpy(sink.data(), row.data(), row.size() * 2);
    benchmark::DoNotOptimize(sink.data());
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * kHidden * 2);
}

void cast_row(benchmark::State& state, SimdLevel level, ScaleFormat scales) {
  ExchangeConfig config;
  config.hidden = kHidden;
  config.cast = Cast::fp8;
  config.scale_format = scales;
  const auto format = model::dispatch_row_format(config);
  const auto row = random_row();
  std::vector<std::byte> codes(format.payload_bytes);
  std::vector<std::byte> scale_items(format.scales_bytes);
  RowArrays sink;
  sink.tokens = codes.data();
  sink.scales = scale_items.data();
  sink.scale_item_stride_bytes = 4;
  ConstRowArrays source;
  source.tokens = reinterpret_cast<const std::byte*>(row.data());
  const auto backend = make_cpu_backend(level);
  const RowMove move{0, 0};
  for (auto _ : state) {
    backend->place(format, source, sink, {&move, 1}, Stores::cached);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * kHidden * 2);
}

const bool kRegistered = [] {
  benchmark::RegisterBenchmark("memcpy_row", copy_row);
  for (const SimdLevel level : {SimdLevel::scalar, SimdLevel::avx2, SimdLevel::avx512}) {
    if (!has_simd_level(level)) continue;
    for (const ScaleFormat scales : {ScaleFormat::f32, ScaleFormat::ue8m0}) {
      const std::string name = "cast_row/" + std::string(to_string(level)) + "/" + std::string(to_string(scales));
      benchmark::RegisterBenchmark(name.c_str(), cast_row, level, scales);
    }
  }
  return true;
}();

}  // namespace
}  // namespace moebus::backend
