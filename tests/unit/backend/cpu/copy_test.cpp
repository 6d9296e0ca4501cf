#include "backend/cpu/copy.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "backend/cpu/processor.hpp"

namespace moebus::backend {
namespace {

constexpr std::byte kGuard{0xA5};
constexpr std::size_t kGuardBytes = 128;

std::vector<std::byte> counting_bytes(std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 7 + i / 251);
  return bytes;
}

bool is_guard(const std::byte* from, const std::byte* to) {
  return std::all_of(from, to, [](std::byte b) { return b == kGuard; });
}

/// Kernels that can copy lines, if only in name.
Kernels with_line_copy() {
  Kernels kernels{};
  kernels.copy_lines = [](std::byte*, const std::byte*, std::size_t, const std::byte*) noexcept {};
  return kernels;
}

TEST(CopyStreamed, WritesExactlyTheBytesAskedForAtEveryAlignment) {
  for (const NamedKernels& level : runnable_kernels()) {
    for (const std::size_t size : {0UL, 1UL, 511UL, 512UL, 513UL, 575UL, 576UL, 2048UL, 4096UL, 5000UL}) {
      for (std::size_t shift = 0; shift < kLineBytes; shift += 3) {
        const std::vector<std::byte> source = counting_bytes(size + 1);
        std::vector<std::byte> sink(size + 2 * kGuardBytes, kGuard);
        std::byte* const first = sink.data() + shift;
        copy_streamed(level.kernels, first, source.data() + 1, size, source.data());
        fence_streams();
        ASSERT_EQ(std::memcmp(first, source.data() + 1, size), 0) << size << " bytes, shift " << shift;
        ASSERT_TRUE(is_guard(sink.data(), first)) << size << " bytes, shift " << shift;
        ASSERT_TRUE(is_guard(first + size, sink.data() + sink.size())) << size << " bytes, shift " << shift;
      }
    }
  }
}

TEST(Streaming, IsForLargeBatchesWhereALevelHasIt) {
  EXPECT_FALSE(is_worth_streaming(Kernels{}, kStreamMinBytes));
  EXPECT_FALSE(is_worth_streaming(with_line_copy(), kStreamMinBytes - 1));
  EXPECT_EQ(is_worth_streaming(with_line_copy(), kStreamMinBytes), kCanStream);
}

TEST(CopyCached, TakesNullForNoBytes) {
  copy_cached(nullptr, nullptr, 0);
  zero_bytes(nullptr, 0);
  std::byte one{1};
  const std::byte two{2};
  copy_cached(&one, &two, 1);
  EXPECT_EQ(one, two);
}

}  // namespace
}  // namespace moebus::backend
