#include "engine/faults.hpp"

#include <gtest/gtest.h>

#include "moebus/error.hpp"

namespace moebus::engine {
namespace {

TEST(Faults, AreNoneUnlessAsked) {
  EXPECT_EQ(Faults::from_environment(0), nullptr);
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
    EXPECT_EQ(std::string(error.what()).find("MOEBUS_FAULT is '" + spec + "'; allowed are delay:SEED, ACTION:rank=R"), 0U)
        << error.what();
  }
}

INSTANTIATE_TEST_SUITE_P(Specs,
                         FaultSpecError,
                         testing::Values("delay",
                                         "delay:",
                                         "delay:x",
                                         "delay:7x",
                                         "delay:-1",
                                         "delay: 1",
                                         "delay:18446744073709551616",
                                         "stale-epoch ",
                                         "Stale-Epoch",
                                         "skipped",
                                         "kill:",
                                         "kill:rank=1,call=2",
                                         "kill:rank=1,call=2,step=x",
                                         "kill:rank=1,call=2,step=3,why=4",
                                         "cut:rank=1,call=2,step=3",
                                         "burn:rank=1,call=2,step=3"));

TEST(Faults, TakeAPlannedOneWithItsPlace) {
  const Faults faults("cut:rank=3,call=7,step=12,peer=2", 3);
  EXPECT_EQ(faults.planned().action, PlannedFault::Action::cut);
  EXPECT_EQ(faults.planned().rank, 3);
  EXPECT_EQ(faults.planned().call, 7U);
  EXPECT_EQ(faults.planned().step, 12U);
  EXPECT_EQ(faults.planned().peer, 2);
}

TEST(Faults, CutTheLinkAtTheirStepAndOnTheirRankOnly) {
  const auto take_steps = [](Faults& faults) {
    faults.at(1, {sync::StepKind::call_begins, 0, {}});
    faults.at(1, {sync::StepKind::signal_ahead, 1, sync::Field::arrived});
    const bool is_cut_before = faults.is_cut_off(1);
    faults.at(1, {sync::StepKind::signal_made, 1, sync::Field::arrived});
    return std::pair(is_cut_before, faults.is_cut_off(1));
  };
  Faults here("cut:rank=0,call=0,step=2,peer=1", 0);
  EXPECT_EQ(take_steps(here), std::pair(false, true));
  EXPECT_FALSE(here.is_cut_off(2));
  Faults elsewhere("cut:rank=2,call=0,step=2,peer=1", 0);
  EXPECT_EQ(take_steps(elsewhere), std::pair(false, false));
}

TEST(Faults, LoseOneSignal) {
  Faults faults("drop:rank=0,call=1,step=1", 0);
  for (std::uint32_t call = 0; call < 3; ++call) {
    faults.at(call, {sync::StepKind::call_begins, 0, {}});
    faults.at(call, {sync::StepKind::signal_ahead, 1, sync::Field::finished});
    EXPECT_EQ(faults.is_signal_lost(1), call == 1);
    EXPECT_FALSE(faults.is_signal_lost(1));
  }
}

}  // namespace
}  // namespace moebus::engine
