// What the steps of one combine share, from post to wait; only the combine*.cpp and exchange_core.cpp include it.
// Room: engine · host.

#pragma once

#include "engine/exchange_core.hpp"

namespace moebus::engine {

/// What one combine needs from step to step.
struct ExchangeCore::CombineState {
  Call call;
  CombineInput input;
  const HandleSlot* handle = nullptr;  ///< held by input.handle
  std::optional<Refusal> refusal;
  bool is_gradient = false;  ///< of dispatch: a row is added once, whoever names it
  model::RowsView rows{};
  model::LaneView lane{};
  std::byte* output = nullptr;
  std::int64_t output_stride = 0;
  TensorView tensor{};             ///< of the result
  bool have_weights_come = false;  ///< with the combine, from the homes to the owners
  std::int64_t num_incomplete = 0;
  backend::Stores push_stores = backend::Stores::cached;  ///< into slots of the homes
  backend::Stores home_stores = backend::Stores::cached;  ///< into the result
  FlowList flows;
};

/// The exchange's one combine that may be in flight.
class ExchangeCore::CombineCall final : public OpenCall {
 public:
  explicit CombineCall(ExchangeCore& core) noexcept : core_(core) {}

  CombineState state;
  std::optional<CombineResult> result;

  /// Makes it ready for the next one.
  void renew() noexcept {
    OpenCall::renew();
    result.reset();
  }

 private:
  void finish() override { result = core_.end_combine(state); }

  ExchangeCore& core_;
};

[[nodiscard]] inline bool is_per_expert(const model::Shape& shape) noexcept {
  return shape.config.combine_rows == CombineRows::per_expert;
}

/// True if rows travel as the caller gave them, and home reads its own where they lie.
[[nodiscard]] inline bool moves_rows(const model::Shape& shape) noexcept {
  return shape.config.layout == Layout::rank_major || is_per_expert(shape);
}

}  // namespace moebus::engine
