// The latency path on a GPU against the oracle, below the engine: all ranks share one device, their kernels wait for
// each other.

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include "backend/cuda/device_cuda.hpp"
#include "moebus/error.hpp"
#include "tests/cuda/device_cases.hpp"
#include "tests/cuda/device_rank.hpp"
#include "tests/cuda/gpu_probe.hpp"
#include "tests/support/exchange_run.hpp"

namespace moebus::tests {
namespace {

/// All ranks of a case on device 0.
class DeviceGroup {
 public:
  explicit DeviceGroup(const ExchangeCase& one) : streams_(one.num_ranks) {
    for (int rank = 0; rank < one.num_ranks; ++rank) {
      ranks_.push_back(std::make_unique<DeviceRank>(backend::cuda::make_device(0), streams_[rank], one, rank));
    }
    DeviceRank::connect(ranks_);
  }

  [[nodiscard]] std::vector<std::unique_ptr<DeviceRank>>& ranks() { return ranks_; }

  /// Loads, calls and compares, dispatch then combine.
  [[nodiscard]] ::testing::AssertionResult exchange(const DispatchTruth& sent,
                                                    const CombineTruth& back,
                                                    int num_blocks) {
    for (auto& rank : ranks_) rank->load(sent);
    for (auto& rank : ranks_) rank->enqueue_dispatch(num_blocks);
    if (const auto bad = differences(sent)) return ::testing::AssertionFailure() << *bad;
    for (auto& rank : ranks_) rank->load(sent, back);
    for (auto& rank : ranks_) rank->enqueue_combine(num_blocks);
    if (const auto bad = differences(back)) return ::testing::AssertionFailure() << *bad;
    return ::testing::AssertionSuccess();
  }

  template <class Truth>
  [[nodiscard]] std::optional<std::string> differences(const Truth& truth) {
    std::string all;
    for (auto& rank : ranks_) {
      if (!rank->synchronize()) return "a call did not end";
    }
    for (auto& rank : ranks_) {
      if (const auto failure = failure_text(rank->report())) all += *failure + "\n";
    }
    for (auto& rank : ranks_) {
      if (const auto bad = rank->difference(truth)) all += *bad + "\n";
    }
    for (auto& rank : ranks_) {
      if (!rank->is_armed()) all += "a word of a window for rows is not armed after the call\n";
    }
    return all.empty() ? std::nullopt : std::optional(all);
  }

 private:
  Streams streams_;
  std::vector<std::unique_ptr<DeviceRank>> ranks_;
};

class DeviceLatency : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override { MOEBUS_NEEDS_GPU(); }
};

TEST_P(DeviceLatency, EqualsTheOracleOnRandomCases) {
  const int num_ranks = GetParam();
  int num_run = 0;
  for (std::uint64_t seed = first_seed(); num_run < 60; ++seed) {
    const auto one = device_case(seed, num_ranks);
    if (!one) continue;
    ++num_run;
    DeviceGroup group(*one);
    for (int call = 0; call < 3; ++call) {
      const DispatchTruth sent = make_dispatch_truth(*one, call);
      const CombineTruth back = make_combine_truth(*one, sent, call);
      ASSERT_TRUE(group.exchange(sent, back, blocks_for(seed, num_ranks))) << describe(*one) << " call " << call;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, DeviceLatency, ::testing::Values(1, 2, 3, 4, 8, 16));

class DeviceLatencyAtFullSize : public ::testing::TestWithParam<Layout> {
 protected:
  void SetUp() override { MOEBUS_NEEDS_GPU(); }
};

ExchangeCase full_case(Layout layout, ScaleFormat scales) {
  ExchangeCase one;
  one.config.num_experts = 256;
  one.config.num_topk = 8;
  one.config.hidden = 7168;
  one.config.max_tokens_per_rank = 128;
  one.config.layout = layout;
  one.config.cast = scales == ScaleFormat::none ? Cast::none : Cast::fp8;
  one.config.scale_format = scales;
  one.num_tokens = {128, 117};
  one.weighting = layout == Layout::rank_major ? Weighting::none : Weighting::dispatched;
  return one;
}

TEST_P(DeviceLatencyAtFullSize, EqualsTheOracleWithEveryCast) {
  for (const ScaleFormat scales : {ScaleFormat::none, ScaleFormat::f32, ScaleFormat::ue8m0}) {
    const ExchangeCase one = full_case(GetParam(), scales);
    DeviceGroup group(one);
    for (int call = 0; call < 2; ++call) {
      const DispatchTruth sent = make_dispatch_truth(one, call);
      const CombineTruth back = make_combine_truth(one, sent, call);
      for (const int blocks : {1, 7, 32, 60}) {
        ASSERT_TRUE(group.exchange(sent, back, blocks)) << describe(one) << " blocks " << blocks;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, DeviceLatencyAtFullSize, ::testing::ValuesIn(kLayouts));

class DeviceLatencyFailure : public ::testing::Test {
 protected:
  void SetUp() override { MOEBUS_NEEDS_GPU(); }
};

TEST_F(DeviceLatencyFailure, TellsEveryRankOfARefusalAndGoesOn) {
  const ExchangeCase one = small_case(3);
  DeviceGroup group(one);
  const DispatchTruth sent = make_dispatch_truth(one, 0);
  const CombineTruth back = make_combine_truth(one, sent, 0);
  // The rank that refuses sends nothing, and takes what comes.
  ExchangeCase without = one;
  without.num_tokens = {5, 0, 5};
  const DispatchTruth refused = make_dispatch_truth(without, 0);
  for (auto& rank : group.ranks()) rank->load(refused);
  for (std::size_t r = 0; r < 3; ++r) group.ranks()[r]->enqueue_dispatch(4, r == 1 ? 1 : 0);
  for (auto& rank : group.ranks()) ASSERT_TRUE(rank->synchronize());
  for (auto& rank : group.ranks()) {
    EXPECT_EQ(rank->report().refused_epoch, 1U);
    EXPECT_EQ(rank->report().refused_by, 1U);
    EXPECT_EQ(rank->report().refused_code, 1U);
    EXPECT_EQ(rank->report().failure_epoch, 0U);
    EXPECT_TRUE(rank->is_armed());
  }
  EXPECT_TRUE(group.exchange(sent, back, 4));
}

TEST_F(DeviceLatencyFailure, NamesThePeerThatDoesNotCome) {
  const ExchangeCase one = small_case(3);
  DeviceGroup group(one);
  const DispatchTruth sent = make_dispatch_truth(one, 0);
  for (auto& rank : group.ranks()) {
    rank->load(sent);
    rank->set_limits(100'000'000, 100'000'000);
  }
  for (const std::size_t r : {0U, 1U}) group.ranks()[r]->enqueue_dispatch(4);
  for (const std::size_t r : {0U, 1U}) {
    ASSERT_TRUE(group.ranks()[r]->synchronize());
    const sync::DeviceReport& report = group.ranks()[r]->report();
    EXPECT_EQ(report.failure_epoch, 1U);
    EXPECT_EQ(report.failure_code, static_cast<std::uint32_t>(ErrorCode::timeout));
    EXPECT_EQ(report.culprit, 2U);
    EXPECT_EQ(report.waited_for, static_cast<std::uint32_t>(sync::DeviceWait::header));
  }
  // Whoever comes later hears of it, and does not wait for its own limit.
  group.ranks()[2]->set_limits(20'000'000'000, 20'000'000'000);
  group.ranks()[2]->enqueue_dispatch(4);
  ASSERT_TRUE(group.ranks()[2]->synchronize());
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_F(DeviceLatencyFailure, ReportsAnIdThatIsNoExpert) {
  ExchangeCase one = small_case(2);
  DeviceGroup group(one);
  DispatchTruth sent = make_dispatch_truth(one, 0);
  auto inputs = std::make_shared<std::vector<oracle::RankInput>>(*sent.inputs);
  (*inputs)[1].topk_idx[6] = 16;  // token 1, choice 2; experts are 0 to 15
  sent.inputs = inputs;
  for (auto& rank : group.ranks()) rank->load(sent);
  for (auto& rank : group.ranks()) rank->enqueue_dispatch(4);
  for (auto& rank : group.ranks()) ASSERT_TRUE(rank->synchronize());
  const sync::DeviceReport& report = group.ranks()[1]->report();
  EXPECT_EQ(report.num_bad_ids, 1U);
  EXPECT_EQ(report.bad_id_value, 16);
  EXPECT_EQ(report.bad_id_token, 1U);
  EXPECT_EQ(report.bad_id_choice, 2U);
  EXPECT_EQ(group.ranks()[0]->report().num_bad_ids, 0U);
  EXPECT_EQ(report.failure_epoch, 0U);
}

TEST_F(DeviceLatencyFailure, FindsRanksThatMakeDifferentCalls) {
  const ExchangeCase one = small_case(2);
  DeviceGroup group(one);
  const DispatchTruth sent = make_dispatch_truth(one, 0);
  const CombineTruth back = make_combine_truth(one, sent, 0);
  ASSERT_TRUE(group.exchange(sent, back, 4));
  for (auto& rank : group.ranks()) rank->load(sent);
  for (auto& rank : group.ranks()) rank->load(sent, back);
  group.ranks()[0]->enqueue_dispatch(4);
  group.ranks()[1]->enqueue_combine(4);
  for (auto& rank : group.ranks()) ASSERT_TRUE(rank->synchronize());
  for (auto& rank : group.ranks()) {
    EXPECT_EQ(rank->report().failure_epoch, 3U);
    EXPECT_EQ(rank->report().failure_code, static_cast<std::uint32_t>(ErrorCode::invalid_argument));
  }
}

TEST_F(DeviceLatencyFailure, ReplaysFromGraphsAsOftenAsWanted) {
  const ExchangeCase one = full_case(Layout::expert_major, ScaleFormat::f32);
  DeviceGroup group(one);
  const DispatchTruth sent = make_dispatch_truth(one, 0);
  const CombineTruth back = make_combine_truth(one, sent, 0);
  ASSERT_TRUE(group.exchange(sent, back, 32));
  std::vector<cudaGraphExec_t> graphs;
  for (auto& rank : group.ranks()) {
    auto* const stream = static_cast<cudaStream_t>(rank->stream().value);
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    for (int i = 0; i < 3; ++i) {
      rank->enqueue_dispatch(32);
      rank->enqueue_combine(32);
    }
    ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    cudaGraphDestroy(graph);
    graphs.push_back(exec);
  }
  for (int replay = 0; replay < 20; ++replay) {
    for (std::size_t r = 0; r < graphs.size(); ++r) {
      ASSERT_EQ(cudaGraphLaunch(graphs[r], static_cast<cudaStream_t>(group.ranks()[r]->stream().value)), cudaSuccess);
    }
  }
  EXPECT_EQ(group.differences(sent), std::nullopt);
  EXPECT_EQ(group.differences(back), std::nullopt);
  for (cudaGraphExec_t graph : graphs) cudaGraphExecDestroy(graph);
}

}  // namespace
}  // namespace moebus::tests
