// Facts: what the driver tells of devices without a context on them. Room: backend/cuda · host.

#pragma once

#include <vector>

#include "backend/device.hpp"

namespace moebus::backend::cuda {

/// Errors:  Error{unsupported} no driver or no device; Error{invalid_argument} no such device.
DeviceFacts device_facts(int ordinal);

/// All devices of this process, in the driver's order.
/// Errors:  Error{unsupported} with the reason why there is none.
std::vector<DeviceFacts> list_devices();

}  // namespace moebus::backend::cuda
