// Replays a target's corpus where there is no libFuzzer: each file, and what is left of it when it is cut short.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "tests/fuzz/fuzz_input.hpp"

namespace {

using Bytes = std::vector<std::uint8_t>;

Bytes read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// In memory of its own size, so that a sanitizer sees a read past its end.
void feed(const Bytes& bytes, std::size_t size) {
  const Bytes exact(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size));
  EXPECT_EQ(LLVMFuzzerTestOneInput(exact.data(), exact.size()), 0);
}

TEST(Corpus, IsTakenWithoutHarmWholeAndCutShort) {
  std::size_t num_files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(MOEBUS_FUZZ_CORPUS)) {
    const Bytes bytes = read_file(entry.path());
    SCOPED_TRACE(entry.path().string());
    ++num_files;
    for (const std::size_t cut : {std::size_t{0}, std::size_t{1}, bytes.size() / 3, bytes.size() / 2}) {
      feed(bytes, bytes.size() - std::min(cut, bytes.size()));
    }
  }
  EXPECT_GT(num_files, 0U) << "the corpus " << MOEBUS_FUZZ_CORPUS << " is empty";
}

}  // namespace
