#include "base/assert.hpp"

#include <cstdio>
#include <cstdlib>

namespace moebus::base {

AssertContext& assert_context() noexcept {
  thread_local AssertContext context;
  return context;
}

void assert_failed(const char* expression, const char* file, int line) noexcept {
  const AssertContext& context = assert_context();
  std::fprintf(
      stderr,
      "moebus: assertion failed: %s (%s:%d, rank %d, epoch %llu). This is a bug in moebus; please report it.\n",
      expression,
      file,
      line,
      context.rank,
      static_cast<unsigned long long>(context.epoch));
  std::abort();
}

}  // namespace moebus::base
