// RowMove: one row's way from a source index to a destination index; the unit that plans are written in.
// Room: model · host+device.

#pragma once

#include <cstdint>

namespace moebus::model {

struct RowMove {
  std::int32_t src;
  std::int32_t dst;
};

}  // namespace moebus::model
