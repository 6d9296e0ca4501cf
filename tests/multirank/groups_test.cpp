// Several groups alive in one process, on overlapping ranks: each has its own calls, windows and end.

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/math.hpp"
#include "tests/support/exchange_run.hpp"
#include "workload/random.hpp"

namespace moebus::tests {
namespace {

using base::idx;

constexpr int kNumRanks = 4;

/// A case of a group and its truths.
struct Prepared {
  ExchangeCase one;
  std::vector<DispatchTruth> dispatched;
  std::vector<CombineTruth> combined;

  Prepared(std::uint64_t seed, int num_ranks, Route route) : one(random_group_case(seed, num_ranks, route)) {
    for (int call = 0; call < 2; ++call) {
      dispatched.push_back(make_dispatch_truth(one, call));
      combined.push_back(make_combine_truth(one, dispatched.back(), call));
    }
  }
};

/// Where the ranks meet: all four; neighbours; those two apart; and all four again, in the opposite order.
struct Meeting {
  std::vector<std::string> uris;
  std::vector<int> ranks;
  std::vector<int> sizes;
};

/// Made before ranks start; index = rank.
std::vector<Meeting> make_meetings(bool as_processes) {
  std::vector<std::string> uris;
  for (int i = 0; i < 6; ++i) uris.push_back(unique_uri(as_processes));
  std::vector<Meeting> meetings;
  for (int rank = 0; rank < kNumRanks; ++rank) {
    meetings.push_back({{uris[0], uris[idx(1 + rank / 2)], uris[idx(3 + rank % 2)], uris[5]},
                        {rank, rank % 2, rank / 2, kNumRanks - 1 - rank},
                        {kNumRanks, 2, 2, kNumRanks}});
  }
  return meetings;
}

std::vector<Prepared> make_cases(std::uint64_t seed) {
  std::vector<Prepared> cases;
  const std::vector<int> sizes = make_meetings(false)[0].sizes;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    cases.emplace_back(workload::seed_from(seed, i), sizes[i], kRoutes[(seed + i) % 3]);
  }
  return cases;
}

/// One rank's groups, each with an exchange.
class Member {
 public:
  Member(const Meeting& meeting, const std::vector<Prepared>& cases) : cases_(cases) {
    for (std::size_t i = 0; i < cases.size(); ++i) {
      GroupOptions options = quiet_options();
      const ExchangeCase& one = cases[i].one;
      if (!one.nodes.empty()) options.host_id = "node-" + std::to_string(one.nodes[idx(meeting.ranks[i])]);
      options.levels = one.levels;
      options.map_peers = one.map_peers;
      groups_.push_back(Group::join(meeting.uris[i], meeting.ranks[i], meeting.sizes[i], options));
      runs_.push_back(std::make_unique<ExchangeRun>(groups_.back(), one));
    }
  }

  void exchange(std::size_t group, std::size_t call) {
    runs_[group]->exchange_once(cases_[group].dispatched[call], cases_[group].combined[call]);
  }

  [[nodiscard]] ExchangeRun& run(std::size_t group) { return *runs_[group]; }

  void close(std::size_t group) { groups_[group].close(); }

 private:
  const std::vector<Prepared>& cases_;
  std::vector<Group> groups_;
  std::vector<std::unique_ptr<ExchangeRun>> runs_;
};

class SeveralGroups : public ::testing::TestWithParam<bool> {
 protected:
  static std::vector<RankOutcome> run(const std::function<void(int)>& body) {
    return GetParam() ? run_as_processes(kNumRanks, body) : run_as_threads(kNumRanks, body);
  }
};

TEST_P(SeveralGroups, OfOverlappingRanksExchangeInAnyOrder) {
  for (const std::uint64_t seed : {1U, 2U, 3U}) {
    const std::vector<Prepared> cases = make_cases(seed);
    const std::vector<Meeting> meetings = make_meetings(GetParam());
    expect_ok(run([&](int rank) {
      Member member(meetings[idx(rank)], cases);
      workload::Random random(seed);  // the same order on all ranks
      for (int turn = 0; turn < 40; ++turn) {
        const std::size_t group = random.below(cases.size());
        member.exchange(group, random.below(2));
      }
    }));
  }
}

TEST_P(SeveralGroups, WorkWhileACallOfAnotherIsPosted) {
  const std::vector<Prepared> cases = make_cases(4);
  const std::vector<Meeting> meetings = make_meetings(GetParam());
  expect_ok(run([&](int rank) {
    Member member(meetings[idx(rank)], cases);
    for (int turn = 0; turn < 5; ++turn) {
      DispatchBuffers buffers;
      PendingDispatch pending =
          member.run(0).exchange().post_dispatch(member.run(0).input(cases[0].dispatched[0], buffers));
      for (const std::size_t group : {1U, 2U, 3U}) member.exchange(group, 0);
      const DispatchHandle handle = pending.wait().handle;
      member.run(0).combine(cases[0].dispatched[0], cases[0].combined[0], handle);
    }
  }));
}

TEST_P(SeveralGroups, OutliveEachOther) {
  const std::vector<Prepared> cases = make_cases(5);
  const std::vector<Meeting> meetings = make_meetings(GetParam());
  expect_ok(run([&](int rank) {
    Member member(meetings[idx(rank)], cases);
    for (std::size_t first = 0; first < cases.size(); ++first) {
      for (std::size_t group = first; group < cases.size(); ++group) member.exchange(group, 0);
      member.close(first);
    }
  }));
}

INSTANTIATE_TEST_SUITE_P(Every, SeveralGroups, ::testing::Bool(), [](const auto& instance) {
  return instance.param ? std::string("Processes") : std::string("Threads");
});

}  // namespace
}  // namespace moebus::tests
