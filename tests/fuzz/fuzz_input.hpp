// Fuzz input: takes values from the bytes that a target is fed, and hands whole inputs on as files.
// Room: tests · host.

#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "base/assert.hpp"
#include "base/unique_fd.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t num_bytes);

namespace moebus::fuzz {

class FuzzInput {
 public:
  FuzzInput(const std::uint8_t* bytes, std::size_t num_bytes) noexcept : left_(bytes, num_bytes) {}

  [[nodiscard]] bool is_empty() const noexcept { return left_.empty(); }

  /// Returns the next value; missing bytes are zero.
  template <class Value>
  Value take() noexcept {
    Value value{};
    const std::size_t size = std::min(sizeof value, left_.size());
    if (size > 0) std::memcpy(&value, left_.data(), size);
    left_ = left_.subspan(size);
    return value;
  }

  /// Returns a number from `least` to `most`, made from one byte.
  int pick(int least, int most) noexcept { return least + take<std::uint8_t>() % (most - least + 1); }

  bool flip() noexcept { return take<std::uint8_t>() % 2 != 0; }

  /// Fills `target` with what is left, again and again; zeros if nothing is.
  void fill(std::span<std::byte> target) const noexcept {
    for (std::size_t i = 0; i < target.size(); ++i) {
      target[i] = left_.empty() ? std::byte{0} : std::byte{left_[i % left_.size()]};
    }
  }

  /// Returns up to `num_bytes` of what is left as text.
  std::string_view text(std::size_t num_bytes) noexcept {
    const std::size_t size = std::min(num_bytes, left_.size());
    const auto taken = left_.first(size);
    left_ = left_.subspan(size);
    return {reinterpret_cast<const char*>(taken.data()), size};  // chars may look at any bytes
  }

  std::string_view rest() noexcept { return text(left_.size()); }

 private:
  std::span<const std::uint8_t> left_;
};

/// A private file that holds one input after another.
class InputFile {
 public:
  InputFile() {
    std::string folder = std::filesystem::temp_directory_path() / "moebus-fuzz-XXXXXX";
    MOEBUS_ASSERT(::mkdtemp(folder.data()) != nullptr);
    folder_ = folder;
    path_ = folder + "/input";
    file_ = base::UniqueFd(::open(path_.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, S_IRUSR | S_IWUSR));
    MOEBUS_ASSERT(file_.is_open());
  }

  ~InputFile() {
    ::unlink(path_.c_str());
    ::rmdir(folder_.c_str());
  }

  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  [[nodiscard]] const std::string& path() const noexcept { return path_; }

  void hold(std::string_view content) const {
    MOEBUS_ASSERT(::ftruncate(file_.get(), 0) == 0);
    MOEBUS_ASSERT(::pwrite(file_.get(), content.data(), content.size(), 0) == static_cast<ssize_t>(content.size()));
  }

 private:
  std::string folder_;
  std::string path_;
  base::UniqueFd file_;
};

}  // namespace moebus::fuzz
