// Planning of one throughput call: 4096 tokens a rank, top-8 of 256 experts, 8 ranks, uniform routing, one core.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "base/local_memory.hpp"
#include "model/receive_plan.hpp"
#include "model/send_plan.hpp"

namespace moebus::model {
namespace {

using base::idx;

constexpr int kNumRanks = 8;
constexpr int kNumTokens = 4096;
constexpr int kNumExperts = 256;
constexpr int kNumTopk = 8;
// Enough that branch predictors cannot learn the routing: each set alone has 32768 choices of its own.
constexpr int kNumSets = 8;

Shape bench_shape(Layout layout) {
  ExchangeConfig config;
  config.num_experts = kNumExperts;
  config.num_topk = kNumTopk;
  config.hidden = 7168;
  config.max_tokens_per_rank = kNumTokens;
  config.layout = layout;
  config.path = Path::throughput;
  return make_shape(config, kNumRanks);
}

/// One rank's routing, taken into a plan with memory of its own.
struct Sender {
  base::LocalMemory memory;
  SendPlan plan;
};

std::vector<std::int32_t> random_ids(std::mt19937& random) {
  std::vector<std::int32_t> ids;
  std::vector<std::int32_t> experts(kNumExperts);
  std::iota(experts.begin(), experts.end(), 0);
  for (int token = 0; token < kNumTokens; ++token) {
    for (int k = 0; k < kNumTopk; ++k) {
      const auto other = std::uniform_int_distribution<int>(k, kNumExperts - 1)(random);
      std::swap(experts[idx(k)], experts[idx(other)]);
    }
    ids.insert(ids.end(), experts.begin(), experts.begin() + kNumTopk);
  }
  return ids;
}

Sender make_sender(const Shape& shape, std::mt19937& random) {
  Sender sender;
  base::Carver counter;
  sender.plan.carve(counter, shape);
  sender.memory = base::LocalMemory(counter.used_bytes());
  base::Carver carver(sender.memory.data());
  sender.plan.carve(carver, shape);
  const std::vector<std::int32_t> ids = random_ids(random);
  const std::vector<float> weights(ids.size(), 0.125F);
  const auto bad = take_routing(shape,
                                tensor_2d(ids.data(), DType::i32, kNumTokens, kNumTopk),
                                tensor_2d(weights.data(), DType::f32, kNumTokens, kNumTopk),
                                kNumTokens,
                                sender.plan);
  if (bad) std::abort();
  plan_send(shape, sender.plan);
  return sender;
}

std::vector<Sender> make_senders(const Shape& shape, int count) {
  std::mt19937 random(11);
  std::vector<Sender> senders;
  for (int i = 0; i < count; ++i) senders.push_back(make_sender(shape, random));
  return senders;
}

void take(benchmark::State& state) {
  const Shape shape = bench_shape(Layout::rank_major);
  std::vector<Sender> senders = make_senders(shape, 1);
  std::mt19937 random(5);
  std::vector<std::vector<std::int64_t>> sets;
  for (int i = 0; i < kNumSets; ++i) {
    const std::vector<std::int32_t> ids = random_ids(random);
    sets.emplace_back(ids.begin(), ids.end());
  }
  const std::vector<float> weights(idx(kNumTokens * kNumTopk), 0.125F);
  std::size_t set = 0;
  for (auto _ : state) {
    const auto bad = take_routing(shape,
                                  tensor_2d(sets[set].data(), DType::i64, kNumTokens, kNumTopk),
                                  tensor_2d(weights.data(), DType::f32, kNumTokens, kNumTopk),
                                  kNumTokens,
                                  senders[0].plan);
    benchmark::DoNotOptimize(bad.has_value());
    benchmark::ClobberMemory();
    set = (set + 1) % kNumSets;
  }
}

void own_table(benchmark::State& state) {
  const Shape shape = bench_shape(Layout::rank_major);
  std::vector<Sender> senders = make_senders(shape, kNumSets);
  std::size_t set = 0;
  for (auto _ : state) {
    plan_send(shape, senders[set].plan);
    benchmark::ClobberMemory();
    set = (set + 1) % kNumSets;
  }
}

/// Tables of one destination, as its window holds them.  // [source][max tokens]
struct Tables {
  std::vector<std::byte> memory;
  std::vector<TableView> views;
};

void write(benchmark::State& state) {
  const Shape shape = bench_shape(Layout::rank_major);
  const TableRowFormat format = table_row_format(kNumTopk);
  std::vector<Sender> senders = make_senders(shape, kNumSets);
  std::vector<std::vector<std::byte>> memory(kNumRanks, std::vector<std::byte>(kNumTokens * format.stride_bytes));
  std::vector<std::byte*> tables;
  for (auto& table : memory) tables.push_back(table.data());
  std::size_t set = 0;
  for (auto _ : state) {
    write_tables(shape, format, senders[set].plan, tables);
    benchmark::ClobberMemory();
    set = (set + 1) % kNumSets;
  }
}

void count(benchmark::State& state) {
  const Shape shape = bench_shape(Layout::expert_major);
  std::vector<Sender> senders = make_senders(shape, kNumSets);
  std::vector<std::int32_t> marks(kNumExperts);
  std::vector<std::int32_t> counts(kNumRanks + kNumExperts);
  std::size_t set = 0;
  for (auto _ : state) {
    write_counts(shape, senders[set].plan, marks, counts);
    benchmark::ClobberMemory();
    set = (set + 1) % kNumSets;
  }
}

/// Tables of `kNumSets` destinations: destination `set` receives from eight senders of its own.
std::vector<Tables> make_tables(const Shape& shape, const TableRowFormat& format) {
  std::vector<Tables> sets(kNumSets);
  std::vector<std::byte> elsewhere(kNumTokens * format.stride_bytes);
  std::mt19937 random(17);
  for (int set = 0; set < kNumSets; ++set) {
    Tables& tables = sets[idx(set)];
    tables.memory.resize(kNumRanks * elsewhere.size());
    for (int src = 0; src < kNumRanks; ++src) {
      const Sender sender = make_sender(shape, random);
      std::vector<std::byte*> places(kNumRanks, elsewhere.data());
      std::byte* here = tables.memory.data() + idx(src) * elsewhere.size();
      places[idx(set % kNumRanks)] = here;
      write_tables(shape, format, sender.plan, places);
      tables.views.push_back({here, sender.plan.num_rows_to[idx(set % kNumRanks)], true});
    }
  }
  return sets;
}

void all_sources(benchmark::State& state, Layout layout) {
  const Shape shape = bench_shape(layout);
  const TableRowFormat format = table_row_format(kNumTopk);
  const std::vector<Tables> sets = make_tables(shape, format);
  ReceivePlan plan;
  base::Carver counter;
  plan.carve(counter, shape);
  const base::LocalMemory memory(counter.used_bytes());
  base::Carver carver(memory.data());
  plan.carve(carver, shape);
  std::size_t set = 0;
  for (auto _ : state) {
    plan_receive(shape, format, static_cast<int>(set % kNumRanks), sets[set].views, shape.capacity_rows, plan);
    benchmark::ClobberMemory();
    set = (set + 1) % kNumSets;
  }
}

void own_positions(benchmark::State& state) {
  const Shape shape = bench_shape(Layout::expert_major);
  std::vector<Sender> senders = make_senders(shape, kNumSets);
  std::vector<std::int32_t> marks(kNumExperts);
  std::vector<std::int32_t> counts(kNumRanks + kNumExperts);
  write_counts(shape, senders[0].plan, marks, counts);
  const std::vector<const std::int32_t*> counts_of(kNumRanks, counts.data());
  const std::vector<std::int64_t> granted(kNumRanks, shape.capacity_rows);
  RegionPlan region;
  base::Carver counter;
  region.carve(counter, shape);
  const base::LocalMemory memory(counter.used_bytes());
  base::Carver carver(memory.data());
  region.carve(carver, shape);
  std::size_t set = 0;
  for (auto _ : state) {
    plan_region(shape, senders[set].plan, 3, counts_of, granted, region);
    benchmark::ClobberMemory();
    set = (set + 1) % kNumSets;
  }
}

BENCHMARK(take)->Unit(benchmark::kMicrosecond);
BENCHMARK(own_table)->Unit(benchmark::kMicrosecond);
BENCHMARK(write)->Unit(benchmark::kMicrosecond);
BENCHMARK(count)->Unit(benchmark::kMicrosecond);
BENCHMARK(own_positions)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(all_sources, rank_major, Layout::rank_major)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(all_sources, expert_major, Layout::expert_major)->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(all_sources, expert_padded, Layout::expert_padded)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace moebus::model
