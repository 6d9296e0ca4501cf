#include "engine/faults.hpp"

#include <gtest/gtest.h>

#include "moebus/error.hpp"

namespace moebus::engine {
namespace {

TEST(Faults, AreNoneUnlessAsked) {
  Faults faults;
  EXPECT_FALSE(faults.is_any());
  EXPECT_FALSE(faults.is_epoch_stale());
  EXPECT_FALSE(faults.is_fence_skipped());
}

TEST(Faults, PlantTheBugThatIsNamedAndNoOther) {
  EXPECT_TRUE(Faults("stale-epoch", 0).is_epoch_stale());
  EXPECT_FALSE(Faults("stale-epoch", 0).is_fence_skipped());
  EXPECT_TRUE(Faults("skipped-fence", 0).is_fence_skipped());
  EXPECT_FALSE(Faults("skipped-fence", 0).is_epoch_stale());
}

TEST(Faults, TakeASeedForDelays) {
  for (const char* spec : {"delay:0", "delay:1", "delay:18446744073709551615"}) {
    Faults faults(spec, 3);
    EXPECT_TRUE(faults.is_any()) << spec;
    EXPECT_FALSE(faults.is_epoch_stale()) << spec;
    EXPECT_FALSE(faults.is_fence_skipped()) << spec;
  }
}

class FaultSpecError : public testing::TestWithParam<const char*> {};

TEST_P(FaultSpecError, ListsWhatIsAllowed) {
  const std::string spec = GetParam();
  try {
    const Faults faults(spec, 5);
    FAIL() << "'" << spec << "' was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_EQ(error.origin_rank(), 5);
    EXPECT_EQ(error.what(), "MOEBUS_FAULT is '" + spec + "'; allowed are delay:SEED, stale-epoch and skipped-fence");
  }
}

INSTANTIATE_TEST_SUITE_P(Specs,
                         FaultSpecError,
                         testing::Values("",
                                         "delay",
                                         "delay:",
                                         "delay:x",
                                         "delay:7x",
                                         "delay:-1",
                                         "delay: 1",
                                         "delay:18446744073709551616",
                                         "stale-epoch ",
                                         "Stale-Epoch",
                                         "skipped"));

}  // namespace
}  // namespace moebus::engine
