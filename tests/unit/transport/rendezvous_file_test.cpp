#include "transport/rendezvous_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "moebus/error.hpp"
#include "transport/stream_socket.hpp"

namespace moebus::transport {
namespace {

using ::testing::HasSubstr;

class RendezvousFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "moebus-rendezvous-XXXXXX";
    ASSERT_NE(::mkdtemp(folder_.data()), nullptr);
    path_ = folder_ + "/file";
  }

  void TearDown() override { std::filesystem::remove_all(folder_); }

  void expect_refusal(const char* why) {
    try {
      read_rendezvous_file(path_);
      ADD_FAILURE() << "the file was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument) << error.what();
      EXPECT_THAT(error.what(), HasSubstr(why));
    }
  }

  void write(const std::string& content, mode_t mode) {
    std::ofstream(path_) << content;
    ASSERT_EQ(::chmod(path_.c_str(), mode), 0);
  }

  std::string folder_;
  std::string path_;
};

TEST_F(RendezvousFileTest, IsPrivateWhileItLivesAndGoneAfterwards) {
  {
    const RendezvousFile file(path_, "the-name");
    struct stat status{};
    ASSERT_EQ(::stat(path_.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 07777U, 0600U);
    EXPECT_EQ(read_rendezvous_file(path_), "the-name");
    EXPECT_EQ(status.st_nlink, 1U) << "the temporary name is still there";
  }
  EXPECT_EQ(read_rendezvous_file(path_), std::nullopt);
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

TEST_F(RendezvousFileTest, DoesNotRemoveAFileThatReplacedIt) {
  {
    const RendezvousFile file(path_, "first");
    ASSERT_EQ(::unlink(path_.c_str()), 0);
    write("moebus rendezvous 1\nsecond\n", 0600);
  }
  EXPECT_EQ(read_rendezvous_file(path_), "second");
}

TEST_F(RendezvousFileTest, ReplacesAStaleFileButNotOneThatLeadsToALivingGroup) {
  write("moebus rendezvous 1\nmoebus-test-nobody\n", 0600);
  {
    const RendezvousFile file(path_, "fresh");
  }
  StreamAddress address;
  address.local_name = "moebus-test-" + std::to_string(::getpid());
  const StreamListener living = listen_stream(address, false);
  write("moebus rendezvous 1\n" + address.local_name + "\n", 0600);
  EXPECT_THROW(RendezvousFile(path_, "fresh"), Error);
  EXPECT_EQ(read_rendezvous_file(path_), address.local_name);
}

TEST_F(RendezvousFileTest, RefusesWhatOthersCanOpenWhatIsALinkAndWhatIsNoRendezvous) {
  write("moebus rendezvous 1\nname\n", 0644);
  expect_refusal("other users");
  write("something else\n", 0600);
  expect_refusal("not made by moebus");
  write("moebus rendezvous 1\n\n", 0600);
  expect_refusal("names no socket");
  write("moebus rendezvous 1\n" + std::string(300, 'x') + "\n", 0600);
  expect_refusal("not made by moebus");
  ASSERT_EQ(::unlink(path_.c_str()), 0);
  ASSERT_EQ(::symlink("/dev/null", path_.c_str()), 0);
  expect_refusal("symbolic link");
  ASSERT_EQ(::unlink(path_.c_str()), 0);
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  expect_refusal("not a regular file");
}

TEST_F(RendezvousFileTest, SaysWhatToDoWhereItCannotBeWritten) {
  try {
    const RendezvousFile file(folder_ + "/missing/file", "name");
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("must be able to write"));
  }
}

}  // namespace
}  // namespace moebus::transport
