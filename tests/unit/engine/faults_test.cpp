#include "engine/faults.hpp"

#include <gtest/gtest.h>

#include "moebus/error.hpp"

namespace moebus::engine {
namespace {

TEST(Faults, AreNoneUnlessAsked) { EXPECT_EQ(Faults::from_environment(0), nullptr); }

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
    EXPECT_EQ(std::string(error.what()).find("MOEBUS_FAULT is '" + spec + "'; allowed are delay:SEED, ACTION:rank=R"),
              0U)
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
                                         "kill:rank=1,call=2,step=3,at=call_begins",
                                         "kill:rank=64,call=2,step=3",
                                         "kill:rank=-1,call=2,step=3",
                                         "kill:rank=1,call=2,at=",
                                         "kill:rank=1,call=2,at=call_begins:arrived:0:0",
                                         "kill:rank=1,call=2,at=signal_made",
                                         "kill:rank=1,call=2,at=signal_made:arrived:0",
                                         "kill:rank=1,call=2,at=signal_made:arrived:0:0:0",
                                         "kill:rank=1,call=2,at=signal_made:gone:0:0",
                                         "kill:rank=1,call=2,at=signal_made:arrived:64:0",
                                         "kill:rank=1,call=2,at=wait:arrived:0:0",
                                         "delay:1;",
                                         ";delay:1",
                                         "delay:1;;delay:2",
                                         "delay:1;burn",
                                         "cut:rank=1,call=2,step=3",
                                         "cut:rank=1,call=2,step=3,peer=64",
                                         "burn:rank=1,call=2,step=3"));

TEST(Faults, TakeAPlannedOneWithItsPlace) {
  const Faults faults("cut:rank=3,call=7,step=12,peer=2", 3);
  ASSERT_EQ(faults.planned().size(), 1U);
  const PlannedFault& fault = faults.planned()[0];
  EXPECT_EQ(fault.action, PlannedFault::Action::cut);
  EXPECT_EQ(fault.rank, 3);
  EXPECT_EQ(fault.call, 7U);
  EXPECT_EQ(fault.step, 12U);
  EXPECT_FALSE(fault.at.has_value());
  EXPECT_EQ(fault.peer, 2);
}

TEST(Faults, TakeSeveralAtOnce) {
  const Faults faults("delay:3;delay:rank=1,call=0,at=signal_ahead:rounds:2:4,ms=30;kill:rank=2,call=1,step=9", 1);
  ASSERT_EQ(faults.planned().size(), 2U);
  EXPECT_EQ(faults.planned()[0].action, PlannedFault::Action::delay);
  EXPECT_EQ(faults.planned()[0].at, (StepName{sync::StepKind::signal_ahead, sync::Field::rounds, 2, 4}));
  EXPECT_EQ(faults.planned()[0].milliseconds, 30U);
  EXPECT_EQ(faults.planned()[1].action, PlannedFault::Action::kill);
  const std::string kill = "kill:rank=0,call=0,step=0";
  EXPECT_NO_THROW(Faults(kill + ";" + kill + ";" + kill + ";" + kill, 0));
  EXPECT_THROW(Faults(kill + ";" + kill + ";" + kill + ";" + kill + ";" + kill, 0), Error);
}

TEST(AStepName, ComesBackFromItsText) {
  for (const auto kind : {sync::StepKind::signal_ahead,
                          sync::StepKind::signal_made,
                          sync::StepKind::wait_begins,
                          sync::StepKind::wait_ends}) {
    for (const auto field : {sync::Field::arrived, sync::Field::finished, sync::Field::rounds, sync::Field::taken}) {
      const StepName name{kind, field, 5, 12};
      EXPECT_EQ(parse_step_name(to_text(name)), name) << to_text(name);
    }
  }
  EXPECT_EQ(parse_step_name(to_text(StepName{})), StepName{});
  EXPECT_EQ(to_text({sync::StepKind::wait_ends, sync::Field::taken, 5, 12}), "wait_ends:taken:5:12");
}

TEST(Faults, FireAtTheStepOfThatNameAndReportWhatTheySaw) {
  const auto report = std::make_unique<FaultReport>();
  report_faults_to(report.get());
  Faults faults("cut:rank=4,call=1,at=signal_made:rounds:1:1,peer=1;cut:rank=4,call=1,step=0,peer=9", 4);
  report_faults_to(nullptr);
  std::vector<bool> is_cut;
  for (std::uint32_t call = 1; call < 3; ++call) {
    faults.at(call, {sync::StepKind::call_begins, 4, {}});
    for (const int peer : {0, 1, 0, 1, 1}) {
      faults.at(call, {sync::StepKind::signal_made, peer, sync::Field::rounds});
      is_cut.push_back(faults.is_cut_off(1));
    }
  }
  EXPECT_EQ(is_cut, (std::vector{false, false, false, false, false, false, false, false, true, true}));
  EXPECT_TRUE(faults.is_cut_off(9));
  EXPECT_EQ(report->num_fired[0], 1U);
  EXPECT_EQ(report->num_fired[1], 1U);
  const std::vector<SeenStep> seen = report->steps_of(4);
  ASSERT_EQ(seen.size(), 12U);
  EXPECT_EQ(seen[0], (SeenStep{0, {}}));
  EXPECT_EQ(seen[6], (SeenStep{1, {}}));
  EXPECT_EQ(seen[11], (SeenStep{1, {sync::StepKind::signal_made, sync::Field::rounds, 1, 2}}));
  EXPECT_TRUE(report->steps_of(0).empty());
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
