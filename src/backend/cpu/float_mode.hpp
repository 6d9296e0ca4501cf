// Float mode: round to nearest even, subnormals kept, no traps, whatever the caller's thread has set.
// Room: backend/cpu · host.

#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace moebus::backend {

/// The register that rules a thread's float arithmetic, and those of its bits that are spoken of here.
struct FloatControl {
#if defined(__x86_64__)
  static constexpr std::uint64_t kDefault = 0x1F80;    // all exceptions masked, nearest even, neither FTZ nor DAZ
  static constexpr std::uint64_t kStatusFlags = 0x3F;  // say what happened; no part of the mode
  static constexpr std::uint64_t kFlushes = 0x8040;    // results and operands that are subnormal become zero
  static constexpr std::uint64_t kRoundsDown = 0x2000;

  static std::uint64_t get() noexcept { return _mm_getcsr(); }

  static void set(std::uint64_t bits) noexcept { _mm_setcsr(static_cast<unsigned>(bits)); }
#elif defined(__aarch64__)
  static constexpr std::uint64_t kDefault = 0;  // no traps, nearest even, no flushing
  static constexpr std::uint64_t kStatusFlags = 0;
  static constexpr std::uint64_t kFlushes = std::uint64_t{1} << 24;
  static constexpr std::uint64_t kRoundsDown = std::uint64_t{1} << 23;

  static std::uint64_t get() noexcept {
    std::uint64_t bits = 0;
    asm volatile("mrs %0, fpcr" : "=r"(bits));
    return bits;
  }

  // The memory clobber keeps loads and stores, and with them the arithmetic between, on their side of the change.
  static void set(std::uint64_t bits) noexcept { asm volatile("msr fpcr, %0" : : "r"(bits) : "memory"); }
#else
#error "float mode: say here how this processor's rounding and flushing are read and set"
#endif
};

/// Sets the thread's arithmetic to the contract's rules while it lives, and puts back what was there.
class DefaultFloatMode {
 public:
  DefaultFloatMode() noexcept : saved_(FloatControl::get()) {
    if (!is_default()) FloatControl::set(FloatControl::kDefault);
  }

  ~DefaultFloatMode() {
    if (!is_default()) FloatControl::set(saved_);
  }

  DefaultFloatMode(const DefaultFloatMode&) = delete;
  DefaultFloatMode& operator=(const DefaultFloatMode&) = delete;

 private:
  [[nodiscard]] bool is_default() const noexcept {
    return (saved_ & ~FloatControl::kStatusFlags) == FloatControl::kDefault;
  }

  std::uint64_t saved_;
};

}  // namespace moebus::backend
