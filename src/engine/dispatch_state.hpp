// What the steps of one dispatch share, from post to wait; only the dispatch*.cpp and exchange_core.cpp include it.
// Room: engine · host.

#pragma once

#include "engine/exchange_core.hpp"

namespace moebus::engine {

/// What one dispatch needs from step to step.
struct ExchangeCore::DispatchState {
  Call call;
  DispatchInput input;
  HandleSlot* handle = nullptr;  ///< held, until it goes into the result
  bool is_cached = false;        ///< the handle's plan is used again
  bool is_gradient = false;      ///< of combine: not the same call as a cached dispatch
  std::optional<Refusal> refusal;
  ResultHold* hold = nullptr;  ///< library memory that the result will hold, or null
  DispatchOutput tensors;      ///< of the result
  backend::ConstRowArrays source;
  backend::RowArrays sink;
  backend::Stores stores = backend::Stores::cached;  ///< for rows of this call
  std::array<model::TableView, kMaxRanks> tables{};
  std::array<std::size_t, kMaxRanks> next{};  ///< what of each hop's list was sent
  bool is_planned = false;
  std::int64_t first_placed = 0;  ///< own rows of tokens before it are not placed yet (latency path)
  FlowList flows;
};

/// The exchange's one dispatch that may be in flight.
class ExchangeCore::DispatchCall final : public OpenCall {
 public:
  explicit DispatchCall(ExchangeCore& core) noexcept : core_(core) {}

  DispatchState state;
  std::optional<DispatchResult> result;

  /// Makes it ready for the next one.
  void renew() noexcept {
    OpenCall::renew();
    result.reset();
  }

 private:
  void finish() override { result = core_.end_dispatch(state); }

  ExchangeCore& core_;
};

[[nodiscard]] inline bool is_throughput(const model::Shape& shape) noexcept {
  return shape.config.path == Path::throughput;
}

[[nodiscard]] inline bool is_direct(const model::Shape& shape) noexcept {
  return is_throughput(shape) && shape.config.delivery == Delivery::direct;
}

}  // namespace moebus::engine
