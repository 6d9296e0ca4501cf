#include "base/unique_fd.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <cerrno>

namespace moebus::base {
namespace {

int open_null() { return ::open("/dev/null", O_RDONLY | O_CLOEXEC); }

bool is_open_in_process(int fd) { return ::fcntl(fd, F_GETFD) != -1 || errno != EBADF; }

TEST(UniqueFd, OwnsNothingByDefault) { EXPECT_FALSE(UniqueFd().is_open()); }

TEST(UniqueFd, ClosesItsDescriptorWhenItDies) {
  const int fd = open_null();
  ASSERT_GE(fd, 0);
  {
    const UniqueFd owner(fd);
    EXPECT_TRUE(is_open_in_process(fd));
  }
  EXPECT_FALSE(is_open_in_process(fd));
}

TEST(UniqueFd, HandsItsDescriptorOverWhenMoved) {
  UniqueFd source(open_null());
  const int fd = source.get();
  const UniqueFd target(std::move(source));
  EXPECT_FALSE(source.is_open());  // NOLINT(bugprone-use-after-move): the moved-from state is what is tested
  EXPECT_EQ(target.get(), fd);
  EXPECT_TRUE(is_open_in_process(fd));
}

TEST(UniqueFd, ClosesTheOldDescriptorWhenAnotherIsAssigned) {
  UniqueFd target(open_null());
  UniqueFd source(open_null());
  const int old_fd = target.get();
  const int new_fd = source.get();
  target = std::move(source);
  EXPECT_FALSE(is_open_in_process(old_fd));
  EXPECT_EQ(target.get(), new_fd);
}

TEST(UniqueFd, KeepsItsDescriptorWhenAssignedToItself) {
  UniqueFd owner(open_null());
  UniqueFd& same = owner;
  const int fd = owner.get();
  owner = std::move(same);
  EXPECT_EQ(owner.get(), fd);
  EXPECT_TRUE(is_open_in_process(fd));
}

TEST(UniqueFd, LeavesTheDescriptorOpenWhenReleased) {
  UniqueFd owner(open_null());
  const int fd = owner.release();
  EXPECT_FALSE(owner.is_open());
  EXPECT_TRUE(is_open_in_process(fd));
  EXPECT_EQ(::close(fd), 0);
}

}  // namespace
}  // namespace moebus::base
