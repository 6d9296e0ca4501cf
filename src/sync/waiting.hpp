// Waiting: how a rank stands still: spin with pauses for a bounded time, then yield, then sleep on the doorbell.
// Room: sync · host.
// Source: [engines-note] section 8 (one-way latency 0.22 us spinning, 5.7 us by futex), [perf-note] 7.3.

#pragma once

#include <chrono>
#include <cstdint>

#include "sync/control_block.hpp"

namespace moebus::sync {

/// Pauses between two looks at a word. Chosen once per group: a rank that spins where there are more ranks than cores
/// keeps the one it waits for from running.
struct WaitPolicy {
  int num_spins = 4000;                       ///< looks with a pause between them (about 100 us) before the slow side
  int num_yields = 64;                        ///< looks with sched_yield between them
  std::chrono::microseconds max_sleep{1000};  ///< longest sleep between two looks at deadlines and peers
};

/// Returns the policy for `num_local_ranks` ranks on the cores this process may use.
[[nodiscard]] WaitPolicy wait_policy(int num_local_ranks) noexcept;

/// Tells the processor that this is a waiting loop.
inline void pause() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Gives the core to another thread.
void yield() noexcept;

/// Sleeps until the bell rings or `limit` passed. `is_ready` is asked once more after the sleeper is announced, so no
/// ring is lost.
template <class Ready>
void sleep_on(Doorbell& doorbell, std::chrono::microseconds limit, const Ready& is_ready) noexcept;

/// Wakes the owner of `doorbell` if it sleeps; called after a store that it may wait for. No system call if it is
/// awake.
void ring(Doorbell& doorbell) noexcept;

namespace detail {
std::uint32_t announce_sleep(Doorbell& doorbell) noexcept;
void sleep_until_rung(Doorbell& doorbell, std::uint32_t seen, std::chrono::microseconds limit) noexcept;
void end_sleep(Doorbell& doorbell) noexcept;
}  // namespace detail

template <class Ready>
void sleep_on(Doorbell& doorbell, std::chrono::microseconds limit, const Ready& is_ready) noexcept {
  const std::uint32_t seen = detail::announce_sleep(doorbell);
  if (!is_ready()) detail::sleep_until_rung(doorbell, seen, limit);
  detail::end_sleep(doorbell);
}

}  // namespace moebus::sync
