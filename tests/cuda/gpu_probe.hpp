// GPU probe: is there a GPU that this build has code for, and if not, why?
// Room: tests/cuda · host.

#pragma once

#include <gtest/gtest.h>

#include <string>

namespace moebus::tests {

/// Empty if there is one, else the reason. Asked in a child process, once: this one can still fork afterwards.
const std::string& why_no_gpu();

}  // namespace moebus::tests

/// First line of a test, or of a fixture's SetUp.
#define MOEBUS_NEEDS_GPU() \
  if (!::moebus::tests::why_no_gpu().empty()) GTEST_SKIP() << "no GPU: " << ::moebus::tests::why_no_gpu()
