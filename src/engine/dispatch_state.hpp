// What the steps of one dispatch share; only dispatch.cpp and dispatch_paths.cpp include it.
// Room: engine · host.

#pragma once

#include "engine/exchange_core.hpp"

namespace moebus::engine {

/// What one dispatch needs from step to step.
struct ExchangeCore::DispatchState {
  const DispatchInput& input;
  HandleSlot& handle;
  ResultHold* hold;        ///< library memory that the result will hold, or null
  DispatchOutput tensors;  ///< of the result
  backend::ConstRowArrays source;
  backend::RowArrays sink;
  CallPart part;
  backend::Stores stores;  ///< for rows of this call
  std::array<model::TableView, kMaxRanks> tables{};
};

[[nodiscard]] inline bool is_throughput(const model::Shape& shape) noexcept {
  return shape.config.path == Path::throughput;
}

[[nodiscard]] inline bool is_direct(const model::Shape& shape) noexcept {
  return is_throughput(shape) && shape.config.delivery == Delivery::direct;
}

}  // namespace moebus::engine
