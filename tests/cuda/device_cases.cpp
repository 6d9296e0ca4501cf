#include "tests/cuda/device_cases.hpp"

#include <algorithm>

#include "base/math.hpp"
#include "model/device_shape.hpp"

namespace moebus::tests {

using base::idx;

Streams::Streams(int num) {
  for (int i = 0; i < num; ++i) {
    cudaStream_t stream = nullptr;
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    streams_.push_back(stream);
  }
}

Streams::~Streams() {
  for (cudaStream_t stream : streams_) cudaStreamDestroy(stream);
}

StreamHandle Streams::operator[](int i) const { return {streams_[idx(i)]}; }

std::optional<ExchangeCase> device_case(std::uint64_t seed, int num_ranks) {
  ExchangeCase one = random_case(seed, num_ranks, Route::latency);
  one.config.combine_rows = CombineRows::per_rank;
  one.config.combine_lane = false;
  one.config.seats_per_rank = 0;
  one.config.caller_results = false;
  one.has_output = false;
  one.placement = {};
  if (one.weighting == Weighting::given) one.weighting = Weighting::none;
  if (model::find_device_config_error(one.config, model::GroupFacts::one_node(num_ranks))) return std::nullopt;
  return one;
}

ExchangeCase small_case(int num_ranks) {
  ExchangeCase one;
  one.num_ranks = num_ranks;
  one.config = small_config(Route::latency, num_ranks);
  one.num_tokens.assign(idx(num_ranks), 5);
  return one;
}

int blocks_for(std::uint64_t seed, int num_ranks) {
  const int most = std::max(1, 120 / num_ranks - 1);
  const int wanted[] = {1, 2, 5, 16, 1000};
  return std::min(wanted[seed % 5], most);
}

std::optional<std::string> failure_text(const sync::DeviceReport& report) {
  if (report.failure_epoch == 0) return std::nullopt;
  return "call " + std::to_string(report.failure_epoch) + " failed with code " + std::to_string(report.failure_code) +
         ": rank " + std::to_string(report.culprit) + ", wait " + std::to_string(report.waited_for) + ", token " +
         std::to_string(report.token) + ", seen " + std::to_string(report.seen[0]) + " " +
         std::to_string(report.seen[3]);
}

}  // namespace moebus::tests
