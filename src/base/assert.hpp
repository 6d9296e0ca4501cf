// Assertions: for our bugs only. MOEBUS_ASSERT is always on in host code; MOEBUS_DASSERT in debug builds, for hot
// paths. Room: base · host.

#pragma once

#include <cstdint>

namespace moebus::base {

/// What an assertion prints beside the expression; set by whoever knows (per thread).
struct AssertContext {
  int rank = -1;
  std::uint64_t epoch = 0;
};

AssertContext& assert_context() noexcept;

[[noreturn]] void assert_failed(const char* expression, const char* file, int line) noexcept;

}  // namespace moebus::base

#define MOEBUS_ASSERT(condition) \
  (static_cast<bool>(condition) ? void(0) : ::moebus::base::assert_failed(#condition, __FILE__, __LINE__))

#ifdef NDEBUG
#define MOEBUS_DASSERT(condition) void(0)
#else
#define MOEBUS_DASSERT(condition) MOEBUS_ASSERT(condition)
#endif
