#include "tests/support/ranks.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <mutex>
#include <system_error>
#include <thread>

#include "base/assert.hpp"
#include "base/deadline.hpp"
#include "base/math.hpp"
#include "base/unique_fd.hpp"
#include "moebus/error.hpp"

namespace moebus::tests {
namespace {

using base::idx;

constexpr std::chrono::milliseconds kPollInterval{2};

/// Collects failed expectations of a child, whose printer would mix its lines with the parent's.
class FailureCollector : public ::testing::EmptyTestEventListener {
 public:
  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (!result.failed()) return;
    const std::lock_guard lock(mutex_);
    if (result.file_name() != nullptr) text_ += result.file_name();
    text_.append(":").append(std::to_string(result.line_number())).append(": ").append(result.message()).append("\n");
  }

  std::string take() {
    const std::lock_guard lock(mutex_);
    return text_;
  }

 private:
  std::mutex mutex_;
  std::string text_;
};

/// Runs the body and turns what it throws into text; empty = it returned.
std::string run_body(const RankBody& body, int rank) {
  base::assert_context().rank = rank;
  try {
    body(rank);
    return {};
  } catch (const Error& error) {
    return "Error{" + std::string(to_string(error.code())) + "}: " + error.what();
  } catch (const std::exception& error) {
    return std::string("exception: ") + error.what();
  } catch (...) {
    return "exception of unknown type";
  }
}

void write_all(int fd, const std::string& text) {
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = ::write(fd, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    done += static_cast<std::size_t>(n);
  }
}

[[noreturn]] void run_child(const RankBody& body, int rank, int report_fd, pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);  // the parent died before the line above
  auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
  delete listeners.Release(listeners.default_result_printer());
  auto* collector = new FailureCollector;  // owned by gtest
  listeners.Append(collector);
  const std::string thrown = run_body(body, rank);
  const std::string text = collector->take() + thrown;
  write_all(report_fd, text);
  std::fflush(nullptr);
#ifdef MOEBUS_COVERAGE
  std::exit(text.empty() ? 0 : 1);  // the counts are written on the way out
#else
  ::_exit(text.empty() ? 0 : 1);
#endif
}

struct Child {
  pid_t pid = -1;
  base::UniqueFd report;
  bool is_running = true;
  bool is_stopped = false;
  RankOutcome outcome;
};

Child start_child(const RankBody& body, int rank) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw std::system_error(errno, std::generic_category(), "pipe2");
  base::UniqueFd read_end(ends[0]);
  base::UniqueFd write_end(ends[1]);
  const pid_t parent = ::getpid();
  std::fflush(nullptr);
  const pid_t pid = ::fork();
  if (pid < 0) throw std::system_error(errno, std::generic_category(), "fork");
  if (pid == 0) {
    read_end.reset();
    run_child(body, rank, write_end.get(), parent);
  }
  ::fcntl(read_end.get(), F_SETFL, O_NONBLOCK);
  Child child;
  child.pid = pid;
  child.report = std::move(read_end);
  return child;
}

void read_report(Child& child) {
  char buffer[4096];
  for (;;) {
    const ssize_t n = ::read(child.report.get(), buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    child.outcome.message.append(buffer, static_cast<std::size_t>(n));
  }
}

void observe(Child& child) {
  int status = 0;
  read_report(child);
  // Every change that has come: a child that was stopped and woken must not pass for stopped until the next look.
  while (child.is_running && ::waitpid(child.pid, &status, WNOHANG | WUNTRACED | WCONTINUED) == child.pid) {
    child.is_stopped = WIFSTOPPED(status);
    if (WIFEXITED(status)) child.outcome.exit_code = WEXITSTATUS(status);
    if (WIFSIGNALED(status)) child.outcome.signal = WTERMSIG(status);
    if (WIFEXITED(status) || WIFSIGNALED(status)) {
      child.is_running = false;
      read_report(child);
    }
  }
}

/// True if the process stands still. That it was woken is not always told: a process that ends at once forgets it, and
/// is there for as long as its memory takes to be given back.
bool stands_still(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text);
  // The state follows the name, which may hold anything, brackets too.
  const std::size_t name_end = text.rfind(')');
  return name_end != std::string::npos && name_end + 2 < text.size() && text[name_end + 2] == 'T';
}

void kill_child(Child& child) {
  ::kill(child.pid, SIGKILL);
  int status = 0;
  while (::waitpid(child.pid, &status, 0) < 0 && errno == EINTR) {
  }
  child.outcome.signal = SIGKILL;
  child.is_running = false;
  read_report(child);
}

/// Ends children that a failed start would otherwise leave behind.
struct ChildrenGuard {
  std::vector<Child>& children;

  ~ChildrenGuard() {
    for (Child& child : children) {
      if (child.is_running) kill_child(child);
    }
  }
};

}  // namespace

std::vector<RankOutcome> run_as_threads(int num_ranks, const RankBody& body, std::chrono::milliseconds limit) {
  std::vector<RankOutcome> outcomes(idx(num_ranks));
  std::vector<char> done(idx(num_ranks), 0);
  int num_done = 0;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::thread> threads;
  threads.reserve(idx(num_ranks));
  for (int rank = 0; rank < num_ranks; ++rank) {
    threads.emplace_back([&, rank] {
      std::string text = run_body(body, rank);
      const std::lock_guard lock(mutex);
      outcomes[idx(rank)].exit_code = text.empty() ? 0 : 1;
      outcomes[idx(rank)].message = std::move(text);
      done[idx(rank)] = 1;
      ++num_done;
      changed.notify_one();
    });
  }
  {
    std::unique_lock lock(mutex);
    const auto end = std::chrono::steady_clock::now() + limit;
    while (num_done < num_ranks && changed.wait_until(lock, end) != std::cv_status::timeout) {
    }
    if (num_done < num_ranks) {
      for (int rank = 0; rank < num_ranks; ++rank) {
        if (done[idx(rank)] == 0) std::fprintf(stderr, "rank %d still runs at the limit of the test\n", rank);
      }
      std::abort();
    }
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

std::vector<RankOutcome> run_as_processes(int num_ranks, const RankBody& body, std::chrono::milliseconds limit) {
  const base::Deadline deadline(limit);
  std::vector<Child> children;
  children.reserve(idx(num_ranks));
  const ChildrenGuard guard{children};
  for (int rank = 0; rank < num_ranks; ++rank) children.push_back(start_child(body, rank));

  for (;;) {
    int num_running = 0;
    int num_stopped = 0;
    for (Child& child : children) {
      if (child.is_running) observe(child);
      if (child.is_stopped) child.is_stopped = stands_still(child.pid);
      if (child.is_running) ++(child.is_stopped ? num_stopped : num_running);
    }
    if (num_running + num_stopped == 0) break;
    if (num_running == 0 || deadline.is_over()) {
      for (Child& child : children) {
        if (!child.is_running) continue;
        child.outcome.stopped = child.is_stopped;
        child.outcome.timed_out = !child.is_stopped;
        kill_child(child);
      }
      break;
    }
    std::this_thread::sleep_for(kPollInterval);
  }

  std::vector<RankOutcome> outcomes;
  outcomes.reserve(children.size());
  for (Child& child : children) outcomes.push_back(std::move(child.outcome));
  return outcomes;
}

::testing::AssertionResult all_ok(const std::vector<RankOutcome>& outcomes) {
  auto failure = ::testing::AssertionFailure();
  bool is_ok = true;
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    const RankOutcome& outcome = outcomes[rank];
    if (outcome.is_ok()) continue;
    is_ok = false;
    failure << "rank " << rank << ": exit code " << outcome.exit_code << ", signal " << outcome.signal
            << (outcome.timed_out ? ", killed at the limit" : "") << (outcome.stopped ? ", stopped" : "") << ": "
            << outcome.message << "\n";
  }
  if (is_ok) return ::testing::AssertionSuccess();
  return failure;
}

}  // namespace moebus::tests
