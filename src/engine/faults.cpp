#include "engine/faults.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <thread>

#include "moebus/error.hpp"

namespace moebus::engine {

namespace {

constexpr std::string_view kDelay = "delay:";
constexpr std::chrono::microseconds kMaxDelay{300};
constexpr std::chrono::milliseconds kMutantDelay{2};
constexpr int kMaxMutantDelays = 4;

}  // namespace

Faults::Faults(const std::string& spec, int rank) : is_any_(true), rank_(rank) {
  if (spec == "stale-epoch") {
    is_epoch_stale_ = true;
    return;
  }
  if (spec == "skipped-fence") {
    is_fence_skipped_ = true;
    return;
  }
  if (spec.starts_with(kDelay)) {
    const char* begin = spec.data() + kDelay.size();
    const char* end = spec.data() + spec.size();
    const auto [at, error] = std::from_chars(begin, end, state_);
    if (error == std::errc() && at == end) {
      has_delays_ = true;
      state_ += 0x9E3779B97F4A7C15ULL * (static_cast<std::uint64_t>(rank) + 1);
      return;
    }
  }
  throw Error(ErrorCode::invalid_argument,
              fmt::format("MOEBUS_FAULT is '{}'; allowed are delay:SEED, stale-epoch and skipped-fence", spec),
              rank);
}

void Faults::at(Step step) noexcept {
  if (has_delays_) {
    // splitmix64: a pause at every step, different for every rank, the same for the same seed.
    state_ += 0x9E3779B97F4A7C15ULL;
    std::uint64_t mixed = (state_ ^ (state_ >> 30)) * 0xBF58476D1CE4E5B9ULL;
    mixed ^= mixed >> 27;
    std::this_thread::sleep_for(std::chrono::microseconds(mixed % static_cast<std::uint64_t>(kMaxDelay.count())));
  } else if ((is_epoch_stale_ && step == Step::arrived) || (is_fence_skipped_ && step == Step::finished)) {
    // A planted bug is only seen if the rows come late to a rank that is not late itself.
    std::this_thread::sleep_for(kMutantDelay * std::min(rank_, kMaxMutantDelays));
  }
}

}  // namespace moebus::engine
