#include "transport/shm/memory.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "moebus/error.hpp"

namespace moebus::transport {
namespace {

using ::testing::HasSubstr;

TEST(SharedMemory, IsZeroedAndEveryPageIsThere) {
  const SharedMemory memory = make_shared_memory(3 * page_bytes() + 1);
  ASSERT_EQ(memory.mapping.size_bytes(), 4 * page_bytes());
  std::vector<unsigned char> present(4);
  ASSERT_EQ(::mincore(memory.mapping.data(), memory.mapping.size_bytes(), present.data()), 0);
  EXPECT_TRUE(std::all_of(present.begin(), present.end(), [](unsigned char page) { return (page & 1U) != 0; }));
  const std::byte* data = memory.mapping.data();
  EXPECT_TRUE(std::all_of(data, data + memory.mapping.size_bytes(), [](std::byte b) { return b == std::byte{0}; }));
}

TEST(SharedMemory, CannotChangeItsSizeAndIsNotInherited) {
  const SharedMemory memory = make_shared_memory(4096);
  EXPECT_EQ(::ftruncate(memory.descriptor.get(), 0), -1);
  EXPECT_EQ(::ftruncate(memory.descriptor.get(), 1 << 20), -1);
  EXPECT_NE(::fcntl(memory.descriptor.get(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST(SharedMemory, IsTheSameThroughASecondMapping) {
  const SharedMemory memory = make_shared_memory(5000);
  const Mapping second = map_peer_memory(memory.descriptor.get(), memory.mapping.size_bytes(), 5000);
  memory.mapping.data()[4999] = std::byte{7};
  EXPECT_EQ(second.data()[4999], std::byte{7});
}

TEST(SharedMemory, IsRefusedInOtherSizesAndUnsealed) {
  const auto refusal = [](int descriptor, std::size_t mapped_bytes, std::size_t size_bytes) -> std::string {
    try {
      map_peer_memory(descriptor, mapped_bytes, size_bytes);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::transport_failure);
      return error.what();
    }
    return {};
  };
  const SharedMemory memory = make_shared_memory(4096);
  EXPECT_EQ(refusal(memory.descriptor.get(), 4096, 4096), "");
  EXPECT_THAT(refusal(memory.descriptor.get(), 8192, 4096), HasSubstr("expected 8192"));
  EXPECT_THAT(refusal(memory.descriptor.get(), 4096, 4097), HasSubstr("at least 4097"));
  EXPECT_THAT(refusal(memory.descriptor.get(), 0, 0), HasSubstr("not what was agreed"));
  const base::UniqueFd unsealed(::memfd_create("moebus-test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(unsealed.get(), 4096), 0);
  EXPECT_THAT(refusal(unsealed.get(), 4096, 4096), HasSubstr("sealed: no"));
}

TEST(SharedMemory, RefusesASizeBeyondEveryMachineBeforeItTakesAnything) {
  try {
    make_shared_memory(~std::size_t{0});
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::resource_exhausted);
    EXPECT_THAT(error.what(), HasSubstr("18446744073709551615 bytes"));
  }
}

}  // namespace
}  // namespace moebus::transport
