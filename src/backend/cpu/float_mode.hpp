// Float mode: round to nearest even, subnormals kept, no traps, whatever the caller's thread has set.
// Room: backend/cpu · host.

#pragma once

#include <xmmintrin.h>

namespace moebus::backend {

/// Sets the thread's SSE and AVX arithmetic to the contract's rules while it lives, and puts back what was there.
class DefaultFloatMode {
 public:
  DefaultFloatMode() noexcept : saved_(_mm_getcsr()) {
    if ((saved_ & ~kStatusFlags) != kDefault) _mm_setcsr(kDefault);
  }

  ~DefaultFloatMode() {
    if ((saved_ & ~kStatusFlags) != kDefault) _mm_setcsr(saved_);
  }

  DefaultFloatMode(const DefaultFloatMode&) = delete;
  DefaultFloatMode& operator=(const DefaultFloatMode&) = delete;

 private:
  static constexpr unsigned kStatusFlags = 0x3F;
  static constexpr unsigned kDefault = 0x1F80;  // all exceptions masked, nearest even, neither FTZ nor DAZ

  unsigned saved_;
};

}  // namespace moebus::backend
