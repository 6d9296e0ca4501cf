// TemporaryFile: a private file with given text, gone at the end of its scope.
// Room: tests · host.

#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <string_view>

namespace moebus::workload {

class TemporaryFile {
 public:
  explicit TemporaryFile(std::string_view text) : path_(testing::TempDir() + "moebus-XXXXXX") {
    const int fd = mkstemp(path_.data());
    EXPECT_GE(fd, 0) << path_;
    if (fd >= 0) close(fd);
    std::ofstream(path_) << text;
  }

  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  ~TemporaryFile() { unlink(path_.c_str()); }

  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace moebus::workload
