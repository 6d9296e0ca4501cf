// Region: a stretch of memory and the kind it is of; what transports register and backends write.
// Room: base · host.

#pragma once

#include <cstddef>

#include "moebus/types.hpp"

namespace moebus::base {

struct Region {
  std::byte* data = nullptr;
  std::size_t size_bytes = 0;
  MemoryKind kind = MemoryKind::host;
};

}  // namespace moebus::base
