// Dispatch and combine allocate nothing: every way into the heap is counted while they run.

#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>
#include <vector>

#include "tests/support/exchange_run.hpp"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define MOEBUS_TEST_OWN_HEAP 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define MOEBUS_TEST_OWN_HEAP 0
#endif
#endif
#ifndef MOEBUS_TEST_OWN_HEAP
#define MOEBUS_TEST_OWN_HEAP 1
#endif

namespace {

std::atomic<bool> is_counting{false};
std::atomic<long> num_allocations{0};

[[maybe_unused]] void count() noexcept {
  if (is_counting.load(std::memory_order_relaxed)) num_allocations.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

#if MOEBUS_TEST_OWN_HEAP
// The C library's own entries, under which it keeps its heap; operator new ends in malloc. A sanitizer has a heap of
// its own, and there the test has nothing to count with.
extern "C" {
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);
void __libc_free(void*);

void* malloc(std::size_t size) {
  count();
  return __libc_malloc(size);
}

void* calloc(std::size_t num, std::size_t size) {
  count();
  return __libc_calloc(num, size);
}

void* realloc(void* memory, std::size_t size) {
  count();
  return __libc_realloc(memory, size);
}

void* aligned_alloc(std::size_t alignment, std::size_t size) {
  count();
  return __libc_memalign(alignment, size);
}

void free(void* memory) {
  if (memory != nullptr) count();
  __libc_free(memory);
}
}
#endif

namespace moebus::tests {
namespace {

struct Kind {
  Route route;
  Layout layout;
  CombineRows rows;
  Cast cast;
};

class Allocation : public ::testing::TestWithParam<Kind> {
 protected:
  static ExchangeCase make_case(int num_ranks) {
    const Kind& kind = GetParam();
    ExchangeCase one;
    one.num_ranks = num_ranks;
    one.config = small_config(kind.route, num_ranks);
    one.config.layout = kind.layout;
    one.config.combine_rows = kind.rows;
    one.config.cast = kind.cast;
    one.config.scale_format = kind.cast == Cast::fp8 ? ScaleFormat::ue8m0 : ScaleFormat::none;
    one.config.hidden = 300;
    one.config.combine_lane = true;
    one.config.zero_padding = true;
    one.config.capacity_rows = 20;
    set_route(one.config, kind.route, num_ranks);
    one.num_bias = 2;
    one.weighting = kind.layout == Layout::rank_major ? Weighting::none : Weighting::given;
    return one;
  }

  /// The same for gradients; a cast has none.
  static void count_backward(ExchangeRun& run, const DispatchInput& input, const CombineInput& given) {
    const bool has_experts = run.exchange().config().layout != Layout::rank_major;
    is_counting = true;
    CombineGradInput down{.grad_tokens = input.tokens, .handle = given.handle};
    if (has_experts) down.rows = given.rows;
    CombineGradients arrived = run.exchange().combine_backward(down);
    const DispatchGradients home = run.exchange().dispatch_backward(
        {.grad_rows = arrived.grad_rows, .handle = given.handle, .lane = arrived.lane});
    arrived.release();
    is_counting = false;
    EXPECT_EQ(home.grad_tokens.shape[0], input.tokens.shape[0]);
    EXPECT_EQ(home.grad_weights.is_given(), has_experts);
  }

  /// Counts what the library's calls allocate; inputs are made, and results compared, outside.
  static void count_calls(Group& group, const ExchangeCase& one, const DispatchTruth& sent, const CombineTruth& back) {
    ExchangeRun run(group, one);
    run.exchange().warm_up();
    DispatchBuffers buffers;
    CombineBuffers answers;
    const DispatchInput input = run.input(sent, buffers);
    for (int call = 0; call < 20; ++call) {
      is_counting = true;
      DispatchResult result = run.exchange().dispatch(input);
      is_counting = false;
      const CombineInput given = run.answers(sent, back, result.handle, answers);
      is_counting = true;
      const CombineResult combined = run.exchange().combine(given);
      const ExchangeStats stats = run.exchange().stats();
      result.release();
      is_counting = false;
      if (one.config.cast == Cast::none) count_backward(run, input, given);
      EXPECT_EQ(combined.tokens.shape[0], input.tokens.shape[0]);
      const std::uint64_t calls_each = one.config.cast == Cast::none ? 2 : 1;
      EXPECT_EQ(stats.dispatch.calls, static_cast<std::uint64_t>(call) * calls_each + 1);
    }
    EXPECT_EQ(num_allocations.load(), 0);
  }
};

TEST(AllocationCounter, SeesWhatItShouldSee) {
  if (MOEBUS_TEST_OWN_HEAP == 0) GTEST_SKIP() << "a sanitizer has its own heap";
  num_allocations = 0;
  is_counting = true;
  // Through a volatile pointer, or the compiler would leave the pair away.
  void* volatile memory = ::operator new(100);
  ::operator delete(memory);
  void* volatile cleared = std::calloc(4, 8);
  std::free(cleared);
  is_counting = false;
  EXPECT_EQ(num_allocations.exchange(0), 4);
}

TEST_P(Allocation, IsAbsentFromTheCallsOfOneRank) {
  const ExchangeCase one = make_case(1);
  const DispatchTruth sent = make_dispatch_truth(one, 0);
  const CombineTruth back = make_combine_truth(one, sent, 0);
  Group group = Group::join(unique_uri(false), 0, 1, quiet_options());
  count_calls(group, one, sent, back);
}

TEST_P(Allocation, IsAbsentFromTheCallsOfTwoProcesses) {
  const ExchangeCase one = make_case(2);
  const DispatchTruth sent = make_dispatch_truth(one, 0);
  const CombineTruth back = make_combine_truth(one, sent, 0);
  expect_ok(run_group(2, true, [&](Group& group) { count_calls(group, one, sent, back); }));
}

std::vector<Kind> all_kinds() {
  std::vector<Kind> kinds;
  for (const Route route : kRoutes) {
    for (const Layout layout : kLayouts) {
      kinds.push_back({route, layout, CombineRows::per_rank, Cast::fp8});
      if (layout != Layout::rank_major) kinds.push_back({route, layout, CombineRows::per_expert, Cast::none});
    }
  }
  return kinds;
}

INSTANTIATE_TEST_SUITE_P(Every, Allocation, ::testing::ValuesIn(all_kinds()));

}  // namespace
}  // namespace moebus::tests
