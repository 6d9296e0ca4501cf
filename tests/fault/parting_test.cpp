// A rank that closes its group while others still call: they get an error that names it, and close too.

#include <unistd.h>

#include "tests/fault/victim.hpp"

namespace moebus::tests {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class Parting : public ::testing::TestWithParam<Route> {
 protected:
  static void run(bool as_processes) {
    for (int leaver = 0; leaver < 3; ++leaver) {
      const Round round(3, GetParam());
      expect_ok(run_group(3, as_processes, [&](Group& group) {
        ExchangeRun run(group, round.one);
        run.exchange_once(round.sent, round.back);
        if (group.rank() == leaver) {
          group.close();
          error_of(ErrorCode::group_poisoned, leaver, [&] { run.exchange().dispatch({}); });
          return;
        }
        const Error error = exchange_until_error(run, round);
        EXPECT_EQ(error.code(), ErrorCode::peer_lost) << error.what();
        EXPECT_EQ(error.origin_rank(), leaver) << error.what();
        EXPECT_THAT(error.what(), AllOf(HasSubstr("rank " + std::to_string(leaver)), HasSubstr("left the group")));
        expect_poisoned(group, run, round, error);
      }));
    }
  }
};

TEST_P(Parting, IsSeenByThreads) { run(false); }

TEST_P(Parting, IsSeenByProcesses) { run(true); }

TEST_P(Parting, DoesNotDisturbThoseWhoFinishTheSameCall) {
  const Round round(4, GetParam());
  for (const bool as_processes : {false, true}) {
    for (int turn = 0; turn < 10; ++turn) {
      // Whoever has its result may go at once; slower ranks still find all they need.
      expect_ok(run_group(4, as_processes, [&](Group& group) {
        ExchangeRun run(group, round.one);
        run.exchange_once(round.sent, round.back);
        group.close();
      }));
    }
  }
}

TEST_P(Parting, OfARankThatExitsWithoutClosingIsADeath) {
  const Round round(3, GetParam());
  const auto outcomes = run_group(3, true, [&](Group& group) {
    ExchangeRun run(group, round.one);
    if (group.rank() == 0) ::_exit(0);
    const Error error = exchange_until_error(run, round);
    EXPECT_EQ(error.code(), ErrorCode::peer_lost) << error.what();
    EXPECT_EQ(error.origin_rank(), 0) << error.what();
  });
  expect_ok(outcomes);
}

INSTANTIATE_TEST_SUITE_P(Every, Parting, ::testing::ValuesIn(kRoutes), name_of_route_case);

}  // namespace
}  // namespace moebus::tests
