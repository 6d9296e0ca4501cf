// The latency path on one GPU whose ranks are processes, or threads of one process each with a thread of its own,
// against the oracle; and what the others see of a process that is killed between two calls. This process never uses
// CUDA, so that it can fork.

#include <cuda_runtime.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <functional>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "backend/cuda/device_cuda.hpp"
#include "base/deadline.hpp"
#include "base/math.hpp"
#include "moebus/error.hpp"
#include "tests/cuda/descriptor_mesh.hpp"
#include "tests/cuda/device_cases.hpp"
#include "tests/cuda/device_rank.hpp"
#include "tests/cuda/gpu_probe.hpp"
#include "tests/cuda/window_ranks.hpp"
#include "tests/fault/victim.hpp"

namespace moebus::tests {
namespace {

using base::idx;

constexpr int kNumCases = 6;
constexpr int kNumCalls = 3;
constexpr std::uint64_t kSecondNs = 1'000'000'000;
// Without MPS kernels of processes take turns, and a kernel that waits uses up its turn: slow, but far below these.
// Ranks wait for each other half a minute at their meeting place; calls must have failed before.
constexpr std::uint64_t kUsualLimitNs = 10 * kSecondNs;
constexpr std::uint64_t kShortLimitNs = 2 * kSecondNs;
constexpr std::chrono::milliseconds kProcessesLimit{140'000};
constexpr std::chrono::milliseconds kThreadsLimit{120'000};

/// A case and what its calls bring.
struct Calls {
  ExchangeCase one;
  int num_blocks = 1;
  std::vector<DispatchTruth> sent;
  std::vector<CombineTruth> back;
};

Calls make_calls(const ExchangeCase& one, int num_calls, int num_blocks) {
  Calls calls{one, num_blocks, {}, {}};
  for (int call = 0; call < num_calls; ++call) {
    calls.sent.push_back(make_dispatch_truth(one, call));
    calls.back.push_back(make_combine_truth(one, calls.sent.back(), call));
  }
  return calls;
}

std::vector<Calls> random_calls(int num_ranks) {
  std::vector<Calls> all;
  for (std::uint64_t seed = first_seed(); all.size() < idx(kNumCases); ++seed) {
    if (const auto one = device_case(seed, num_ranks)) {
      all.push_back(make_calls(*one, kNumCalls, blocks_for(seed, num_ranks)));
    }
  }
  return all;
}

/// One rank of a case, with a thread of its own. All ranks begin a call together, after all have loaded, and go on when
/// all have ended it: what allocates or frees memory may wait for every kernel of the device, and a window is armed
/// only while no peer is in the next call.
class Member {
 public:
  Member(const WindowMeeting& meeting, int rank, const Calls& calls)
      : meeting_(meeting),
        calls_(calls),
        number_(rank),
        streams_(1),
        rank_(backend::cuda::make_device(0), streams_[0], calls.one, rank) {
    for (int peer = 0; peer < meeting.num_ranks; ++peer) {
      if (peer != rank) meeting.give(rank, peer, rank_.descriptor());
    }
    meeting.meet();
    for (int peer = 0; peer < meeting.num_ranks; ++peer) {
      if (peer != rank) rank_.map_peer(peer, meeting.take(rank, peer));
    }
    rank_.set_limits(kUsualLimitNs, kUsualLimitNs);
  }

  [[nodiscard]] DeviceRank& device_rank() { return rank_; }

  void dispatch(std::size_t call) {
    rank_.load(calls_.sent[call]);
    run(meeting_.meet, [&] { rank_.enqueue_dispatch(calls_.num_blocks); });
    compare("dispatch", call, calls_.sent[call]);
  }

  void combine(std::size_t call) {
    rank_.load(calls_.sent[call], calls_.back[call]);
    run(meeting_.meet, [&] { rank_.enqueue_combine(calls_.num_blocks); });
    compare("combine", call, calls_.back[call]);
  }

  /// Makes one call together with those that meet.
  void run(const std::function<void()>& meet, const std::function<void()>& enqueue) {
    meet();
    enqueue();
    if (!rank_.synchronize()) {
      throw std::runtime_error("rank " + std::to_string(number_) + ": its kernel did not end, whatever its limits are");
    }
    meet();
  }

 private:
  /// Goes on after a difference: the others would wait.
  template <class Truth>
  void compare(const char* operation, std::size_t call, const Truth& truth) const {
    const std::string where = "rank " + std::to_string(number_) + ", " + operation + " of call " + std::to_string(call);
    if (const auto failure = failure_text(rank_.report())) {
      ADD_FAILURE() << where << ": " << *failure;
      return;
    }
    if (const auto difference = rank_.difference(truth)) ADD_FAILURE() << where << ": " << *difference;
    if (!rank_.is_armed()) ADD_FAILURE() << where << ": a word of its window for rows is not armed afterwards";
  }

  const WindowMeeting& meeting_;
  const Calls& calls_;
  int number_;
  Streams streams_;
  DeviceRank rank_;
};

/// One rank's part of all cases.
void equal_the_oracle(const WindowMeeting& meeting, int rank, const std::vector<Calls>& all) {
  for (const Calls& calls : all) {
    const std::string what = describe(calls.one) + ", " + std::to_string(calls.num_blocks) + " blocks";
    SCOPED_TRACE(what);
    try {
      Member member(meeting, rank, calls);
      for (std::size_t call = 0; call < calls.sent.size(); ++call) {
        member.dispatch(call);
        member.combine(call);
      }
    } catch (const std::exception& error) {
      throw std::runtime_error("rank " + std::to_string(rank) + ", " + what + ": " + error.what());
    }
  }
}

WindowMeeting meeting_of_processes(int num_ranks, MeetingPlace& place, DescriptorMesh& mesh) {
  WindowMeeting meeting;
  meeting.num_ranks = num_ranks;
  meeting.meet = [&place] { place.meet(); };
  meeting.give = [&mesh](int rank, int peer, int descriptor) { mesh.give(rank, peer, descriptor); };
  meeting.take = [&mesh](int rank, int peer) { return mesh.take(rank, peer); };
  return meeting;
}

class ThreadsOnOneDevice : public ::testing::TestWithParam<int> {};

TEST_P(ThreadsOnOneDevice, EqualTheOracleOnRandomCases) {
  MOEBUS_NEEDS_GPU();
  const int num_ranks = GetParam();
  const std::vector<Calls> all = random_calls(num_ranks);
  MeetingPlace place(num_ranks);
  // The process of the threads is a child, for this one must fork again.
  const auto live = [&](int) {
    std::vector<int> given(idx(num_ranks), -1);
    WindowMeeting meeting;
    meeting.num_ranks = num_ranks;
    meeting.meet = [&] { place.meet(); };
    meeting.give = [&](int rank, int /*peer*/, int descriptor) { given[idx(rank)] = descriptor; };
    meeting.take = [&](int /*rank*/, int peer) {
      return base::UniqueFd(::fcntl(given[idx(peer)], F_DUPFD_CLOEXEC, 0));
    };
    const auto threads =
        run_as_threads(num_ranks, [&](int rank) { equal_the_oracle(meeting, rank, all); }, kThreadsLimit);
    EXPECT_TRUE(all_ok(threads));
  };
  const auto process = run_as_processes(1, live, kProcessesLimit);
  EXPECT_TRUE(all_ok(process));
}

INSTANTIATE_TEST_SUITE_P(Ranks, ThreadsOnOneDevice, ::testing::Values(2, 4, 8), ::testing::PrintToStringParamName());

class ProcessesOnOneDevice : public ::testing::TestWithParam<int> {};

TEST_P(ProcessesOnOneDevice, EqualTheOracleOnRandomCases) {
  MOEBUS_NEEDS_GPU();
  const int num_ranks = GetParam();
  const std::vector<Calls> all = random_calls(num_ranks);
  MeetingPlace place(num_ranks);
  DescriptorMesh mesh(num_ranks);
  const WindowMeeting meeting = meeting_of_processes(num_ranks, place, mesh);
  const auto outcomes =
      run_as_processes(num_ranks, [&](int rank) { equal_the_oracle(meeting, rank, all); }, kProcessesLimit);
  EXPECT_TRUE(all_ok(outcomes));
}

/// The id of a process, in memory that processes forked later share.
class SharedId {
 public:
  SharedId() {
    void* const page = ::mmap(nullptr, sizeof(Id), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) throw std::runtime_error("mmap");
    id_ = new (page) Id(0);
  }

  ~SharedId() { ::munmap(id_, sizeof(Id)); }

  SharedId(const SharedId&) = delete;
  SharedId& operator=(const SharedId&) = delete;

  void set_own() { id_->store(::getpid()); }

  /// Waits until the process has left the system: its parent has seen it end, and the driver has closed its files.
  void wait_until_gone() const {
    const base::Deadline deadline{std::chrono::seconds{20}};
    while (::kill(id_->load(), 0) == 0) {
      if (deadline.is_over()) throw std::runtime_error("the killed process is still there after 20 s");
      std::this_thread::sleep_for(std::chrono::milliseconds{1});
    }
  }

 private:
  using Id = std::atomic<pid_t>;
  Id* id_;
};

enum class Operation : std::uint8_t { dispatch, combine };

/// A group that loses the rank `victim` before an operation, and the group that the others make afterwards.
class Loss {
 public:
  Loss(int num_ranks, int victim, Operation operation)
      : num_ranks_(num_ranks),
        victim_(victim),
        operation_(operation),
        calls_(make_calls(small_case(num_ranks), 2, kNumBlocks)),
        later_calls_(make_calls(small_case(num_ranks - 1), 1, kNumBlocks)),
        place_(num_ranks),
        later_place_(num_ranks - 1),
        mesh_(num_ranks),
        meeting_(meeting_of_processes(num_ranks, place_, mesh_)) {
    later_.num_ranks = num_ranks - 1;
    later_.meet = [this] { later_place_.meet(); };
    later_.give = [this](int rank, int peer, int descriptor) { mesh_.give(first(rank), first(peer), descriptor); };
    later_.take = [this](int rank, int peer) { return mesh_.take(first(rank), first(peer)); };
  }

  Loss(const Loss&) = delete;
  Loss& operator=(const Loss&) = delete;

  void expect_named() {
    const auto outcomes = run_as_processes(num_ranks_, [this](int rank) { live_through(rank); }, kProcessesLimit);
    EXPECT_TRUE(all_but_victim_ok(outcomes, victim_, SIGKILL));
  }

 private:
  static constexpr int kNumBlocks = 4;

  /// Rank in the first group of a rank of the later one; and back.
  [[nodiscard]] int first(int later_rank) const { return later_rank < victim_ ? later_rank : later_rank + 1; }

  [[nodiscard]] int later(int rank) const { return rank < victim_ ? rank : rank - 1; }

  void live_through(int rank) {
    SCOPED_TRACE("rank " + std::to_string(rank) + ", killed is rank " + std::to_string(victim_));
    const char* stage = "in the calls before the kill";
    try {
      {
        if (rank == victim_) victim_id_.set_own();
        Member member(meeting_, rank, calls_);
        member.dispatch(0);
        member.combine(0);
        if (operation_ == Operation::combine) member.dispatch(1);
        if (::testing::Test::HasFailure()) throw std::runtime_error("the calls before the kill went wrong");
        // Nothing of any rank is on the device now: the last of what ran has met.
        if (rank == victim_) ::raise(SIGKILL);
        stage = "in the call after the kill";
        victim_id_.wait_until_gone();
        expect_timeout(member);
        stage = "when it gave back what it had of the group";
      }
      stage = "in the group of those that are left";
      Member member(later_, later(rank), later_calls_);
      member.dispatch(0);
      member.combine(0);
    } catch (const std::exception& error) {
      throw std::runtime_error("rank " + std::to_string(rank) + ", " + stage + ": " + error.what());
    }
  }

  void expect_timeout(Member& member) {
    DeviceRank& rank = member.device_rank();
    rank.set_limits(kShortLimitNs, kShortLimitNs);
    if (operation_ == Operation::dispatch) {
      rank.load(calls_.sent[1]);
    } else {
      rank.load(calls_.sent[1], calls_.back[1]);
    }
    const auto enqueue = [&] {
      if (operation_ == Operation::dispatch) {
        rank.enqueue_dispatch(kNumBlocks);
      } else {
        rank.enqueue_combine(kNumBlocks);
      }
    };
    member.run(later_.meet, enqueue);
    const std::uint64_t epoch = operation_ == Operation::dispatch ? 3 : 4;
    const sync::DeviceReport& report = rank.report();
    const std::string said = failure_text(report).value_or("no failure");
    EXPECT_EQ(report.failure_epoch, epoch) << said;
    EXPECT_EQ(report.failure_code, static_cast<std::uint32_t>(ErrorCode::timeout)) << said;
    EXPECT_EQ(report.culprit, static_cast<std::uint32_t>(victim_)) << said;
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
    // The group stays ended and keeps its first cause, the device does what it is told.
    member.run(later_.meet, enqueue);
    EXPECT_EQ(failure_text(report).value_or("no failure"), said) << "after one more call";
    DeviceArray<std::uint8_t> bytes(rank.device(), 1000);
    bytes.fill(0x5A);
    EXPECT_EQ(bytes.get(), std::vector<std::uint8_t>(1000, 0x5A));
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  }

  int num_ranks_;
  int victim_;
  Operation operation_;
  Calls calls_;
  Calls later_calls_;
  MeetingPlace place_;
  MeetingPlace later_place_;
  DescriptorMesh mesh_;
  SharedId victim_id_;
  WindowMeeting meeting_;
  WindowMeeting later_;
};

TEST_P(ProcessesOnOneDevice, NameTheOneThatIsKilledBeforeADispatch) {
  MOEBUS_NEEDS_GPU();
  Loss(GetParam(), GetParam() / 2, Operation::dispatch).expect_named();
}

TEST_P(ProcessesOnOneDevice, NameTheOneThatIsKilledBeforeACombine) {
  MOEBUS_NEEDS_GPU();
  Loss(GetParam(), 0, Operation::combine).expect_named();
}

INSTANTIATE_TEST_SUITE_P(Ranks, ProcessesOnOneDevice, ::testing::Values(2, 4, 8), ::testing::PrintToStringParamName());

}  // namespace
}  // namespace moebus::tests
