#include "engine/flows.hpp"

#include <gtest/gtest.h>

#include <map>
#include <vector>

namespace moebus::engine {
namespace {

using sync::Field;
using sync::Line;

/// A rank that takes rounds, each of which needs the words of some writers.
class Taking : public ::testing::Test {
 protected:
  static sync::WordName word(Line line, std::uint8_t writer) { return {line, Field::rounds, writer, writer}; }

  [[nodiscard]] std::optional<Blocker> blocker(const Flow& flow) const {
    const auto count = static_cast<std::uint32_t>(flow.next + 1);
    for (const auto& [writer, line] : needs_.at(flow.peer)) {
      if (there_.at(writer) < count) return Blocker{word(line, writer), count};
    }
    return std::nullopt;
  }

  /// Runs the flows; each time the rank stands still, the next of `comes` comes, until it is told to go on.
  std::vector<int> run(FlowList& flows, std::vector<std::uint8_t> comes) {
    std::vector<int> stood_for;
    std::size_t num_come = 0;
    run_flows(
        flows,
        [&](const Flow& flow) { return blocker(flow); },
        [&](const Flow&) { ++num_steps_; },
        [&](const Blocker& first, const auto& is_over) {
          stood_for.push_back(first.word.writer);
          while (!is_over() && num_come < comes.size()) ++there_[comes[num_come++]];
          ASSERT_TRUE(is_over());
        });
    return stood_for;
  }

  std::map<std::uint8_t, std::uint32_t> there_{{1, 0}, {2, 0}, {3, 0}};
  std::map<int, std::vector<std::pair<std::uint8_t, Line>>> needs_;
  int num_steps_ = 0;
};

TEST_F(Taking, StandsStillForTheWordThatIsMissingOnceTheFirstHasCome) {
  needs_ = {{1, {{1, Line::direct}, {2, Line::direct}}}};
  FlowList flows;
  flows.add(Flow::Kind::take, 1, 1);
  EXPECT_EQ(run(flows, {1, 2}), (std::vector{1, 2}));
  EXPECT_EQ(num_steps_, 1);
}

TEST_F(Taking, StandsStillForTheWordThatIsMadeFirst) {
  needs_ = {{1, {{1, Line::relayed}}}, {2, {{2, Line::direct}}}};
  FlowList flows;
  flows.add(Flow::Kind::take, 1, 1);
  flows.add(Flow::Kind::take, 2, 1);
  EXPECT_EQ(run(flows, {2, 1}), (std::vector{2, 1}));
  EXPECT_EQ(num_steps_, 2);
}

TEST_F(Taking, GoesOnWithWhicheverFlowCan) {
  needs_ = {{1, {{1, Line::direct}}}, {2, {{2, Line::direct}}}};
  FlowList flows;
  flows.add(Flow::Kind::take, 1, 1);
  flows.add(Flow::Kind::take, 2, 2);
  EXPECT_EQ(run(flows, {2, 2, 1}), (std::vector{1, 1, 1}));
  EXPECT_EQ(num_steps_, 3);
}

}  // namespace
}  // namespace moebus::engine
