// Calls of the latency path on one GPU that two ranks share, from CUDA graphs: time a call, slowest rank. Inputs rotate
// over more memory than the second-level cache holds. What is timed was compared with the oracle first.

#include <benchmark/benchmark.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>

#include "backend/cuda/device_cuda.hpp"
#include "base/math.hpp"
#include "moebus/error.hpp"
#include "tests/cuda/device_rank.hpp"

namespace moebus::tests {
namespace {

using base::idx;
using cases::ExchangeCase;

constexpr int kNumRanks = 2;
constexpr int kNumCalls = 40;  // in a graph
constexpr std::size_t kNumSets = 40;

void check(cudaError_t result) {
  if (result == cudaSuccess) return;
  std::fprintf(stderr, "%s\n", cudaGetErrorString(result));
  std::exit(1);
}

enum class What : std::uint8_t { dispatch, combine, pair };

ExchangeCase case_of(Layout layout, Cast cast, int tokens) {
  ExchangeCase one;
  one.num_ranks = kNumRanks;
  one.config.num_experts = 256;
  one.config.num_topk = 8;
  one.config.hidden = 7168;
  one.config.max_tokens_per_rank = tokens;
  one.config.layout = layout;
  one.config.cast = cast;
  one.config.scale_format = cast == Cast::fp8 ? ScaleFormat::f32 : ScaleFormat::none;
  one.num_tokens.assign(kNumRanks, tokens);
  one.weighting = layout == Layout::rank_major ? Weighting::none : Weighting::dispatched;
  return one;
}

/// One rank with rotating inputs.
struct BenchRank {
  cudaStream_t stream = nullptr;
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  std::unique_ptr<DeviceRank> rank;
  std::vector<std::unique_ptr<backend::DeviceMemory>> tokens;
  std::vector<std::unique_ptr<backend::DeviceMemory>> rows;
  std::vector<std::unique_ptr<backend::DeviceMemory>> outputs;
  cudaGraphExec_t graph = nullptr;
};

void copy_sets(BenchRank& bench,
               std::vector<std::unique_ptr<backend::DeviceMemory>>& sets,
               const std::byte* from,
               std::size_t bytes) {
  for (std::size_t i = 0; i < kNumSets; ++i) {
    sets.push_back(bench.rank->device().allocate(bytes));
    check(cudaMemcpy(sets.back()->data(), from, bytes, cudaMemcpyDefault));
  }
}

void enqueue(BenchRank& bench, What what, int call, int num_blocks) {
  const std::size_t set = idx(call) % kNumSets;
  const backend::DeviceLaunch launch{{bench.stream}, num_blocks};
  if (what != What::combine) {
    backend::DeviceDispatch dispatch = bench.rank->dispatch_call();
    dispatch.tokens.data = bench.tokens[set]->data();
    dispatch.has_host_counts = false;
    bench.rank->device().enqueue_dispatch(dispatch, launch);
  }
  if (what != What::dispatch) {
    backend::DeviceCombine combine = bench.rank->combine_call();
    combine.rows.data = bench.rows[set % bench.rows.size()]->data();
    combine.output.data = bench.outputs[set]->data();
    bench.rank->device().enqueue_combine(combine, launch);
  }
}

void capture(BenchRank& bench, What what, int num_blocks) {
  cudaGraph_t graph = nullptr;
  check(cudaStreamBeginCapture(bench.stream, cudaStreamCaptureModeThreadLocal));
  for (int call = 0; call < kNumCalls; ++call) enqueue(bench, what, call, num_blocks);
  check(cudaStreamEndCapture(bench.stream, &graph));
  check(cudaGraphInstantiate(&bench.graph, graph, 0));
  check(cudaGraphDestroy(graph));
  check(cudaGraphUpload(bench.graph, bench.stream));
}

/// Returns microseconds a call on the slowest rank.
double replay(std::vector<BenchRank>& ranks) {
  for (BenchRank& bench : ranks) {
    check(cudaEventRecord(bench.begin, bench.stream));
    check(cudaGraphLaunch(bench.graph, bench.stream));
    check(cudaEventRecord(bench.end, bench.stream));
  }
  float slowest = 0;
  for (BenchRank& bench : ranks) {
    float ms = 0;
    check(cudaEventSynchronize(bench.end));
    check(cudaEventElapsedTime(&ms, bench.begin, bench.end));
    slowest = std::max(slowest, ms);
  }
  return double{slowest} * 1e3 / kNumCalls;
}

/// Makes the ranks and runs a pair once; exits if a byte is wrong.
std::vector<BenchRank> make_ranks(const ExchangeCase& one, int num_blocks) {
  const cases::DispatchTruth sent = cases::make_dispatch_truth(one, 0);
  const cases::CombineTruth back = cases::make_combine_truth(one, sent, 0);
  std::vector<BenchRank> ranks(kNumRanks);
  std::vector<std::unique_ptr<DeviceRank>> members;
  for (int r = 0; r < kNumRanks; ++r) {
    BenchRank& bench = ranks[idx(r)];
    check(cudaStreamCreateWithFlags(&bench.stream, cudaStreamNonBlocking));
    check(cudaEventCreate(&bench.begin));
    check(cudaEventCreate(&bench.end));
    members.push_back(std::make_unique<DeviceRank>(backend::cuda::make_device(0), StreamHandle{bench.stream}, one, r));
  }
  DeviceRank::connect(members);
  for (int r = 0; r < kNumRanks; ++r) ranks[idx(r)].rank = std::move(members[idx(r)]);
  std::string wrong;
  for (BenchRank& bench : ranks) bench.rank->load(sent);
  for (BenchRank& bench : ranks) bench.rank->enqueue_dispatch(num_blocks);
  for (BenchRank& bench : ranks)
    wrong += bench.rank->synchronize() ? bench.rank->difference(sent).value_or("") : "no end";
  for (BenchRank& bench : ranks) bench.rank->load(sent, back);
  for (BenchRank& bench : ranks) bench.rank->enqueue_combine(num_blocks);
  for (BenchRank& bench : ranks)
    wrong += bench.rank->synchronize() ? bench.rank->difference(back).value_or("") : "no end";
  if (!wrong.empty()) {
    std::fprintf(stderr, "not equal to the oracle, so not timed: %s\n", wrong.c_str());
    std::exit(1);
  }
  for (BenchRank& bench : ranks) {
    const backend::DeviceDispatch& dispatch = bench.rank->dispatch_call();
    const backend::DeviceCombine& combine = bench.rank->combine_call();
    const std::size_t sent_bytes = idx(dispatch.num_tokens) * idx(dispatch.tokens.row_stride_bytes);
    copy_sets(bench, bench.tokens, dispatch.tokens.data, sent_bytes);
    std::size_t rows = idx(dispatch.shape.capacity_rows);
    if (one.config.layout == Layout::expert_padded) rows *= idx(dispatch.shape.max_local_experts);
    const std::size_t row_bytes = idx(combine.rows.row_stride_bytes);
    const std::size_t sets = std::min<std::size_t>(kNumSets, std::size_t{2'000'000'000} / (rows * row_bytes));
    for (std::size_t i = 0; i < sets; ++i) {
      bench.rows.push_back(bench.rank->device().allocate(rows * row_bytes));
      check(cudaMemcpy(bench.rows.back()->data(), combine.rows.data, rows * row_bytes, cudaMemcpyDefault));
    }
    copy_sets(bench, bench.outputs, combine.output.data, idx(combine.num_tokens) * row_bytes);
  }
  return ranks;
}

void run(benchmark::State& state, Layout layout, Cast cast, What what, int tokens) {
  int num_devices = 0;
  if (cudaGetDeviceCount(&num_devices) != cudaSuccess || num_devices == 0) {
    state.SkipWithError("there is no GPU here");
    return;
  }
  const auto num_blocks = static_cast<int>(state.range(0));
  const ExchangeCase one = case_of(layout, cast, tokens);
  std::vector<BenchRank> ranks = make_ranks(one, num_blocks);
  for (BenchRank& bench : ranks) capture(bench, what, num_blocks);
  for (int i = 0; i < 3; ++i) replay(ranks);
  std::vector<double> times;
  for ([[maybe_unused]] auto _ : state) {
    const double us = replay(ranks);
    times.push_back(us);
    state.SetIterationTime(us * 1e-6);
  }
  for (BenchRank& bench : ranks) {
    if (bench.rank->report().failure_epoch != 0) state.SkipWithError("a call failed");
    check(cudaGraphExecDestroy(bench.graph));
  }
  std::sort(times.begin(), times.end());
  state.counters["median_us"] = times[times.size() / 2];
  state.counters["p99_us"] = times[times.size() * 99 / 100];
}

void add(const char* layout_name, Layout layout, Cast cast, What what, int tokens) {
  const char* const calls[] = {"dispatch", "combine", "pair"};
  const std::string name = std::string(calls[static_cast<int>(what)]) + "/" + layout_name + "/" +
                           (cast == Cast::fp8 ? "fp8" : "bf16") + "/tokens:" + std::to_string(tokens) + "/blocks";
  auto* const bench = benchmark::RegisterBenchmark(
      name.c_str(), [=](benchmark::State& state) { run(state, layout, cast, what, tokens); });
  bench->UseManualTime()->Iterations(41)->Unit(benchmark::kMicrosecond);
  if (tokens == 1) {
    bench->Arg(1);
  } else {
    bench->Arg(60)->Arg(32)->Arg(16);
  }
}

void add_all() {
  for (const What what : {What::dispatch, What::combine, What::pair}) {
    add("rank_major", Layout::rank_major, Cast::fp8, what, 128);
    add("expert_major", Layout::expert_major, Cast::fp8, what, 128);
  }
  add("rank_major", Layout::rank_major, Cast::none, What::dispatch, 128);
  add("rank_major", Layout::rank_major, Cast::fp8, What::pair, 1);
}

}  // namespace
}  // namespace moebus::tests

int main(int argc, char** argv) {
  moebus::tests::add_all();
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
