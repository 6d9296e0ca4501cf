#include "cli/launch.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <map>
#include <stdexcept>

#include "moebus/error.hpp"

namespace moebus::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

Lookup variables(const std::map<std::string, std::string>& values) {
  return [values](const char* name) -> std::optional<std::string> {
    const auto found = values.find(name);
    return found == values.end() ? std::nullopt : std::optional(found->second);
  };
}

template <class Call>
Error error_of(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error;
  }
  throw std::logic_error("no Error was thrown");
}

bool has_children() { return ::waitpid(-1, nullptr, WNOHANG) != -1 || errno != ECHILD; }

TEST(OuterSeat, IsEmptyWithoutALauncher) {
  EXPECT_FALSE(outer_seat(variables({}), "").has_value());
  EXPECT_FALSE(outer_seat(variables({}), "tcp://host:1").has_value());
}

TEST(OuterSeat, TakesMpirunsRankAndDerivesALocalMeetingFromItsJob) {
  const auto seat = outer_seat(variables({{"OMPI_COMM_WORLD_RANK", "3"},
                                          {"OMPI_COMM_WORLD_SIZE", "4"},
                                          {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                                          {"PMIX_NAMESPACE", "prterun-a@1/../x"}}),
                               "");
  ASSERT_TRUE(seat.has_value());
  EXPECT_EQ(seat->launcher, "mpirun");
  EXPECT_EQ(seat->seat.rank, 3);
  EXPECT_EQ(seat->seat.num_ranks, 4);
  EXPECT_EQ(seat->seat.uri, "local://moebus-mpirun-prterun-a-1----x");
}

TEST(OuterSeat, PrefersTheGivenStoreOverTheEnvironmentOverTheJob) {
  std::map<std::string, std::string> values{{"OMPI_COMM_WORLD_RANK", "0"},
                                            {"OMPI_COMM_WORLD_SIZE", "2"},
                                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                                            {"OMPI_MCA_ess_base_jobid", "17"},
                                            {"MOEBUS_STORE", "tcp://head:7"}};
  EXPECT_EQ(outer_seat(variables(values), "tcp://other:9")->seat.uri, "tcp://other:9");
  EXPECT_EQ(outer_seat(variables(values), "")->seat.uri, "tcp://head:7");
  values.erase("MOEBUS_STORE");
  EXPECT_EQ(outer_seat(variables(values), "")->seat.uri, "local://moebus-mpirun-17");
}

TEST(OuterSeat, ExplainsWhatIsMissingWhenRanksAreOnSeveralMachines) {
  const Error error = error_of([] {
    (void)outer_seat(variables({{"OMPI_COMM_WORLD_RANK", "1"},
                                {"OMPI_COMM_WORLD_SIZE", "8"},
                                {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                                {"PMIX_NAMESPACE", "job"}}),
                     "");
  });
  EXPECT_EQ(error.code(), ErrorCode::not_found);
  EXPECT_THAT(error.what(), AllOf(HasSubstr("rank 1 of 8"), HasSubstr("--store"), HasSubstr("MOEBUS_STORE")));
}

TEST(OuterSeat, TakesTorchrunsAddressAcrossMachinesAndALocalMeetingOnOne) {
  std::map<std::string, std::string> values{{"RANK", "1"},
                                            {"WORLD_SIZE", "2"},
                                            {"LOCAL_WORLD_SIZE", "1"},
                                            {"MASTER_ADDR", "10.0.0.1"},
                                            {"MASTER_PORT", "29500"}};
  EXPECT_EQ(outer_seat(variables(values), "")->seat.uri, "tcp://10.0.0.1:29500");
  values["LOCAL_WORLD_SIZE"] = "2";
  const auto seat = outer_seat(variables(values), "");
  EXPECT_EQ(seat->launcher, "torchrun");
  EXPECT_THAT(seat->seat.uri, StartsWith("local://moebus-torchrun-"));
}

TEST(OuterSeat, TakesSrunsStepButNotABatchScript) {
  std::map<std::string, std::string> values{
      {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}, {"SLURM_NNODES", "1"}, {"SLURM_JOB_ID", "88"}};
  EXPECT_FALSE(outer_seat(variables(values), "").has_value());
  values["SLURM_STEP_ID"] = "4";
  const auto seat = outer_seat(variables(values), "");
  ASSERT_TRUE(seat.has_value());
  EXPECT_EQ(seat->seat.uri, "local://moebus-srun-88-4");
}

TEST(OuterSeat, StartsItsOwnRanksWhenTheLauncherStartedOne) {
  EXPECT_FALSE(outer_seat(variables({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}}), "").has_value());
}

TEST(OuterSeat, NamesAVariableThatIsNoNumber) {
  const Error error =
      error_of([] { (void)outer_seat(variables({{"RANK", "two"}, {"WORLD_SIZE", "4"}}), "tcp://host:1"); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  EXPECT_THAT(error.what(), AllOf(HasSubstr("RANK"), HasSubstr("'two'")));
}

TEST(OuterSeat, RefusesARankBeyondTheGroup) {
  const Error error =
      error_of([] { (void)outer_seat(variables({{"RANK", "4"}, {"WORLD_SIZE", "4"}}), "tcp://host:1"); });
  EXPECT_THAT(error.what(), HasSubstr("rank 4 of 4"));
}

TEST(Processes, ReturnTheirTextsInRankOrder) {
  const auto texts = run_as_processes(4, [](const Seat& seat) {
    return std::to_string(seat.rank) + "/" + std::to_string(seat.num_ranks) + std::string(200'000, 'x');
  });
  ASSERT_EQ(texts.size(), 4U);
  EXPECT_EQ(texts[2], "2/4" + std::string(200'000, 'x'));
  EXPECT_FALSE(has_children());
}

TEST(Processes, ShareOneLocalMeetingPlaceThatDiffersFromRunToRun) {
  const RankBody uri = [](const Seat& seat) { return seat.uri; };
  const auto first = run_as_processes(2, uri);
  const auto second = run_as_processes(2, uri);
  EXPECT_THAT(first[0], StartsWith("local://moebus-"));
  EXPECT_EQ(first[0], first[1]);
  EXPECT_NE(first[0], second[0]);
}

TEST(Processes, PassOnTheErrorOfTheRankThatCausedIt) {
  const Error error = error_of([] {
    (void)run_as_processes(3, [](const Seat& seat) -> std::string {
      if (seat.rank == 2) throw Error(ErrorCode::invalid_argument, "hidden is 0");
      throw Error(ErrorCode::peer_lost, "rank 2 went away");
    });
  });
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  EXPECT_EQ(error.origin_rank(), 2);
  EXPECT_THAT(error.what(), HasSubstr("hidden is 0"));
  EXPECT_FALSE(has_children());
}

TEST(Processes, NameARankThatWasKilled) {
  const Error error = error_of([] {
    (void)run_as_processes(3, [](const Seat& seat) -> std::string {
      if (seat.rank == 1) ::raise(SIGKILL);
      return "done";
    });
  });
  EXPECT_EQ(error.code(), ErrorCode::peer_lost);
  EXPECT_EQ(error.origin_rank(), 1);
  EXPECT_THAT(error.what(), AllOf(HasSubstr("rank 1 (process "), HasSubstr("SIGKILL")));
  EXPECT_FALSE(has_children());
}

TEST(Processes, NameARankThatEndedWithoutAReport) {
  const Error error = error_of([] {
    (void)run_as_processes(2, [](const Seat& seat) -> std::string {
      if (seat.rank == 0) ::_exit(5);
      return "done";
    });
  });
  EXPECT_THAT(error.what(), AllOf(HasSubstr("rank 0"), HasSubstr("status 5")));
}

// A process between the test and the ranks is killed; the ranks hold the write end of a pipe, which ends with the last
// of them.
TEST(Processes, DieWithTheProcessThatStartedThem) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t parent = ::fork();
  if (parent == 0) {
    ::close(ends[0]);
    run_as_processes(2, [&](const Seat&) -> std::string {
      const char ready = 'r';
      if (::write(ends[1], &ready, 1) != 1) ::_exit(1);
      for (;;) ::pause();
    });
    ::_exit(0);
  }
  ::close(ends[1]);
  char ready = 0;
  ASSERT_EQ(::read(ends[0], &ready, 1), 1);
  ASSERT_EQ(::read(ends[0], &ready, 1), 1);
  ::kill(parent, SIGKILL);
  EXPECT_EQ(::read(ends[0], &ready, 1), 0);  // the test's own time limit stands behind this wait
  ::waitpid(parent, nullptr, 0);
  ::close(ends[0]);
}

TEST(Threads, ReturnTheirTextsInRankOrder) {
  std::atomic<int> running = 0;
  const auto texts = run_as_threads(3, [&](const Seat& seat) {
    ++running;
    return std::to_string(seat.rank) + seat.uri;
  });
  EXPECT_EQ(running, 3);
  EXPECT_THAT(texts[1], StartsWith("1inproc://moebus-"));
}

TEST(Threads, PassOnAnError) {
  EXPECT_THROW(run_as_threads(2,
                              [](const Seat& seat) -> std::string {
                                if (seat.rank == 1) throw Error(ErrorCode::unsupported, "no");
                                return "";
                              }),
               Error);
}

}  // namespace
}  // namespace moebus::cli
