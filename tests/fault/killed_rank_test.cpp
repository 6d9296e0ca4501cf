// A process that is killed (SIGKILL) at any moment: all others name it, nobody hangs, and nothing stays behind.

#include <csignal>
#include <cstdlib>
#include <thread>

#include "tests/fault/victim.hpp"
#include "tests/support/process_state.hpp"
#include "workload/random.hpp"

namespace moebus::tests {
namespace {

using ::testing::HasSubstr;

class KilledRank : public ::testing::TestWithParam<Route> {};

void expect_lost(const Error& error, int victim) {
  EXPECT_EQ(error.code(), ErrorCode::peer_lost) << error.what();
  EXPECT_EQ(error.origin_rank(), victim) << error.what();
  EXPECT_THAT(error.what(), HasSubstr("rank " + std::to_string(victim)));
}

TEST_P(KilledRank, IsNamedByAllOthersWhenItDiesBeforeADispatch) {
  const Round round(4, GetParam());
  for (int victim = 0; victim < 4; ++victim) {
    EXPECT_TRUE(all_but_victim_ok(run_group(4,
                                            true,
                                            [&](Group& group) {
                                              ExchangeRun run(group, round.one);
                                              run.exchange_once(round.sent, round.back);
                                              if (group.rank() == victim) ::raise(SIGKILL);
                                              const Error error = exchange_until_error(run, round);
                                              expect_lost(error, victim);
                                              expect_poisoned(group, run, round, error);
                                            }),
                                  victim,
                                  SIGKILL));
  }
}

TEST_P(KilledRank, IsNamedByAllOthersWhenItDiesBeforeACombine) {
  const Round round(4, GetParam());
  for (int victim = 0; victim < 4; ++victim) {
    EXPECT_TRUE(all_but_victim_ok(run_group(4,
                                            true,
                                            [&](Group& group) {
                                              ExchangeRun run(group, round.one);
                                              DispatchBuffers buffers;
                                              const DispatchResult result = run.dispatch(round.sent, buffers);
                                              if (group.rank() == victim) {
                                                group.barrier();
                                                ::raise(SIGKILL);
                                              }
                                              group.barrier();  // everybody has its rows
                                              try {
                                                run.combine(round.sent, round.back, result.handle);
                                                ADD_FAILURE() << "nothing was thrown";
                                              } catch (const Error& error) {
                                                expect_lost(error, victim);
                                                expect_poisoned(group, run, round, error);
                                              }
                                            }),
                                  victim,
                                  SIGKILL));
  }
}

TEST_P(KilledRank, IsNamedByAllOthersWheneverItDies) {
  const auto before = process_state().named_things;
  for (std::uint64_t seed = first_seed(); seed < first_seed() + 25; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Round round(4, GetParam());
    workload::Random random(seed);
    const auto victim = static_cast<int>(random.below(4));
    const auto life = std::chrono::microseconds(random.below(15'000));
    ::setenv("MOEBUS_FAULT", ("delay:" + std::to_string(seed)).c_str(), 1);
    const auto outcomes = run_group(4, true, [&](Group& group) {
      ExchangeRun run(group, round.one);
      if (group.rank() == victim) {
        std::thread([life] {
          std::this_thread::sleep_for(life);
          ::raise(SIGKILL);
        }).detach();
      }
      const Error error = exchange_until_error(run, round);
      expect_lost(error, victim);
      expect_poisoned(group, run, round, error);
    });
    ::unsetenv("MOEBUS_FAULT");
    ASSERT_TRUE(all_but_victim_ok(outcomes, victim, SIGKILL));
  }
  EXPECT_EQ(process_state().named_things, before);
}

TEST_P(KilledRank, LeavesTheOthersAbleToJoinAnew) {
  const Round round(3, GetParam());
  const std::string uri = unique_uri(true);
  const std::string next = unique_uri(true);
  EXPECT_TRUE(all_but_victim_ok(run_as_processes(3,
                                                 [&](int rank) {
                                                   {
                                                     Group group = Group::join(uri, rank, 3, quiet_options());
                                                     ExchangeRun run(group, round.one);
                                                     if (rank == 2) ::raise(SIGKILL);
                                                     expect_lost(exchange_until_error(run, round), 2);
                                                   }
                                                   const Round smaller(2, GetParam());
                                                   Group group = Group::join(next, rank, 2, quiet_options());
                                                   ExchangeRun run(group, smaller.one);
                                                   run.exchange_once(smaller.sent, smaller.back);
                                                 }),
                                2,
                                SIGKILL));
}

INSTANTIATE_TEST_SUITE_P(Every, KilledRank, ::testing::ValuesIn(kRoutes), name_of_route_case);

TEST(KilledRankAtSetUp, IsNamedByBarrierAndPrepare) {
  for (int victim = 0; victim < 3; ++victim) {
    EXPECT_TRUE(all_but_victim_ok(run_group(3,
                                            true,
                                            [&](Group& group) {
                                              group.barrier();
                                              if (group.rank() == victim) ::raise(SIGKILL);
                                              try {
                                                if (group.rank() == (victim + 1) % 3) group.barrier();
                                                Exchange exchange(group, small_config(Route::latency, 3));
                                                exchange.prepare();
                                                ADD_FAILURE() << "nothing was thrown";
                                              } catch (const Error& error) {
                                                EXPECT_EQ(error.code(), ErrorCode::peer_lost) << error.what();
                                                EXPECT_THAT(error.what(), HasSubstr("rank " + std::to_string(victim)));
                                              }
                                            }),
                                  victim,
                                  SIGKILL));
  }
}

}  // namespace
}  // namespace moebus::tests
