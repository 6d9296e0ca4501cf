#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>

#include "cli/launch.hpp"
#include "cli/launch_detail.hpp"
#include "moebus/error.hpp"

namespace moebus::cli {

namespace {

using Clock = std::chrono::steady_clock;

// Survivors of a death learn of it from the library within its limits; after this long they are ended from here.
constexpr auto kGrace = std::chrono::seconds(10);
constexpr std::size_t kMaxTextBytes = std::size_t{64} << 20;
constexpr char kOk = 'R';
constexpr char kFailed = 'E';

struct Child {
  pid_t pid = -1;
  int fd = -1;  // read end of its pipe
  std::string received;
  bool is_over = false;
  int wait_status = 0;
};

// Owns the rank processes: whatever way it goes out of scope, none of them is left, not even as a zombie.
class Children {
 public:
  Children() = default;
  Children(const Children&) = delete;
  Children& operator=(const Children&) = delete;

  ~Children() {
    kill_all();
    for (Child& child : list) {
      if (child.fd >= 0) ::close(child.fd);
      if (child.pid > 0 && !child.is_over) reap(child, 0);
    }
  }

  void kill_all() noexcept {
    for (const Child& child : list) {
      if (child.pid > 0 && !child.is_over) ::kill(child.pid, SIGKILL);
    }
  }

  static void reap(Child& child, int options) noexcept {
    pid_t result = 0;
    do {
      result = ::waitpid(child.pid, &child.wait_status, options);
    } while (result < 0 && errno == EINTR);
    if (result == child.pid || result < 0) child.is_over = true;
  }

  std::vector<Child> list;
};

void write_all(int fd, const char* bytes, std::size_t size) noexcept {
  while (size > 0) {
    const ssize_t written = ::write(fd, bytes, size);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;  // nobody reads any more; the exit status still tells
    bytes += written;
    size -= static_cast<std::size_t>(written);
  }
}

void send_frame(int fd, char kind, char code, const std::string& text) noexcept {
  const std::array<char, 2> head{kind, code};
  write_all(fd, head.data(), head.size());
  write_all(fd, text.data(), text.size());
}

[[noreturn]] void be_child(int fd, pid_t parent, const Seat& seat, const RankBody& body) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);  // the parent died before the line above
  int status = 0;
  try {
    send_frame(fd, kOk, 0, body(seat));
  } catch (const Error& error) {
    send_frame(fd, kFailed, static_cast<char>(error.code()), error.what());
    status = 1;
  } catch (const std::exception& error) {
    send_frame(fd, kFailed, static_cast<char>(ErrorCode::internal), error.what());
    status = 1;
  }
  std::fflush(nullptr);
  ::close(fd);
  ::_exit(status);
}

void start(Children& children, const Seat& seat, const RankBody& body) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    throw Error(ErrorCode::resource_exhausted, std::string("pipe for a rank process: ") + std::strerror(errno));
  }
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) {
    const int cause = errno;
    ::close(ends[0]);
    ::close(ends[1]);
    throw Error(ErrorCode::resource_exhausted, std::string("fork of a rank process: ") + std::strerror(cause));
  }
  if (pid == 0) {
    ::close(ends[0]);
    for (const Child& other : children.list) ::close(other.fd);
    be_child(ends[1], parent, seat, body);
  }
  ::close(ends[1]);
  children.list.push_back({pid, ends[0], {}, false, 0});
}

// Reads what is there; false at the end of the stream.
bool receive(Child& child) {
  std::array<char, 65536> buffer{};
  const ssize_t got = ::read(child.fd, buffer.data(), buffer.size());
  if (got < 0) return errno == EINTR || errno == EAGAIN;
  if (got == 0) return false;
  if (child.received.size() + static_cast<std::size_t>(got) > kMaxTextBytes) {
    throw Error(ErrorCode::internal, "a rank process sent more than 64 MiB of report");
  }
  child.received.append(buffer.data(), static_cast<std::size_t>(got));
  return true;
}

bool has_failed(const Child& child) noexcept {
  return child.is_over && (!WIFEXITED(child.wait_status) || WEXITSTATUS(child.wait_status) != 0 ||
                           child.received.empty() || child.received[0] != kOk);
}

std::string describe_death(std::size_t rank, const Child& child) {
  const std::string who = "rank " + std::to_string(rank) + " (process " + std::to_string(child.pid) + ")";
  if (WIFSIGNALED(child.wait_status)) {
    const int number = WTERMSIG(child.wait_status);
    const char* const name = ::sigabbrev_np(number);
    return who + " was killed by signal " + std::to_string(number) + " (SIG" + (name == nullptr ? "?" : name) + ")";
  }
  return who + " ended with status " + std::to_string(WEXITSTATUS(child.wait_status)) + " and without a report";
}

// The cause first: a process that died, then an error that names a cause, then errors that only follow from others.
int weight_of(const Child& child) noexcept {
  if (child.received.size() < 2 || child.received[0] != kFailed) return 3;
  const auto code = static_cast<ErrorCode>(child.received[1]);
  const bool follows = code == ErrorCode::peer_lost || code == ErrorCode::timeout || code == ErrorCode::group_poisoned;
  return follows ? 1 : 2;
}

void throw_first_cause(const Children& children, const std::vector<std::size_t>& order_of_end) {
  const Child* cause = nullptr;
  std::size_t cause_rank = 0;
  for (const std::size_t rank : order_of_end) {
    const Child& child = children.list[rank];
    if (!has_failed(child) || (cause != nullptr && weight_of(child) <= weight_of(*cause))) continue;
    cause = &child;
    cause_rank = rank;
  }
  if (cause == nullptr) return;
  const int rank = static_cast<int>(cause_rank);
  if (weight_of(*cause) == 3) throw Error(ErrorCode::peer_lost, describe_death(cause_rank, *cause), rank);
  throw Error(static_cast<ErrorCode>(cause->received[1]), cause->received.substr(2), rank);
}

// One round of waiting: takes what came through pipes, reaps who ended, notes the order of ends.
void watch(Children& children, std::vector<std::size_t>& order_of_end) {
  std::vector<pollfd> polled;
  std::vector<std::size_t> owner;
  for (std::size_t rank = 0; rank < children.list.size(); ++rank) {
    if (children.list[rank].fd < 0) continue;
    polled.push_back({children.list[rank].fd, POLLIN, 0});
    owner.push_back(rank);
  }
  ::poll(polled.data(), polled.size(), polled.empty() ? 1 : 200);
  for (std::size_t i = 0; i < polled.size(); ++i) {
    Child& child = children.list[owner[i]];
    if (polled[i].revents == 0 || receive(child)) continue;
    ::close(child.fd);
    child.fd = -1;
  }
  for (std::size_t rank = 0; rank < children.list.size(); ++rank) {
    Child& child = children.list[rank];
    if (child.is_over || child.fd >= 0) continue;
    Children::reap(child, WNOHANG);
    if (child.is_over) order_of_end.push_back(rank);
  }
}

}  // namespace

std::vector<std::string> run_as_processes(int num_ranks, const RankBody& body) {
  const std::string uri = "local://" + random_name();
  std::fflush(nullptr);  // or children would print the parent's buffered text again
  Children children;
  for (int rank = 0; rank < num_ranks; ++rank) start(children, {rank, num_ranks, uri}, body);
  std::vector<std::size_t> order_of_end;
  Clock::time_point end_of_grace = Clock::time_point::max();
  while (order_of_end.size() < children.list.size()) {
    watch(children, order_of_end);
    for (const Child& child : children.list) {
      if (has_failed(child) && end_of_grace == Clock::time_point::max()) end_of_grace = Clock::now() + kGrace;
    }
    if (Clock::now() > end_of_grace) {
      throw_first_cause(children, order_of_end);  // the destructor ends the others
    }
  }
  throw_first_cause(children, order_of_end);
  std::vector<std::string> texts;
  for (Child& child : children.list) texts.push_back(child.received.substr(2));
  return texts;
}

}  // namespace moebus::cli
