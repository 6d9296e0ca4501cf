#include "sync/waiting.hpp"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <ctime>

namespace moebus::sync {

namespace {

int num_usable_cores() noexcept {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return CPU_COUNT(&set);
}

std::atomic_ref<std::uint32_t> atomic(std::uint32_t& value) noexcept { return std::atomic_ref<std::uint32_t>(value); }

}  // namespace

WaitPolicy wait_policy(int num_local_ranks) noexcept {
  WaitPolicy policy;
  // A pinned rank sees one core only; the machine's count is what the ranks share then.
  const int cores = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  const int usable = num_usable_cores() == 1 ? cores : num_usable_cores();
  if (num_local_ranks > usable) policy.num_spins = 0;
  return policy;
}

void yield() noexcept { sched_yield(); }

void ring(Doorbell& doorbell) noexcept {
  // The store before this call and the load below must not change places (Dekker with announce_sleep). Only a wake-up
  // hangs on it, never data: a sleeper looks again after max_sleep anyway.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (atomic(doorbell.sleepers).load(std::memory_order_relaxed) == 0) return;
  atomic(doorbell.bell).fetch_add(1, std::memory_order_release);
  syscall(SYS_futex, &doorbell.bell, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

namespace detail {

std::uint32_t announce_sleep(Doorbell& doorbell) noexcept {
  atomic(doorbell.sleepers).fetch_add(1, std::memory_order_seq_cst);
  const std::uint32_t seen = atomic(doorbell.bell).load(std::memory_order_acquire);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return seen;
}

void sleep_until_rung(Doorbell& doorbell, std::uint32_t seen, std::chrono::microseconds limit) noexcept {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(limit);
  const timespec time{seconds.count(), std::chrono::nanoseconds(limit - seconds).count()};
  // Shared futex (no PRIVATE flag): the poster may be another process. Any return is a reason to look again.
  syscall(SYS_futex, &doorbell.bell, FUTEX_WAIT, seen, &time, nullptr, 0);
}

void end_sleep(Doorbell& doorbell) noexcept { atomic(doorbell.sleepers).fetch_sub(1, std::memory_order_relaxed); }

}  // namespace detail

}  // namespace moebus::sync
