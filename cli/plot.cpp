#include "cli/plot.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <vector>

#include "moebus/error.hpp"

namespace moebus::cli {

namespace {

constexpr const char* kPython = "/usr/bin/python3";  // Debian's, which Debian's matplotlib belongs to
constexpr int kNoMatplotlib = 4;                     // exit status of plot.py
constexpr int kCannotStart = 127;

std::string find_script() {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::vector<std::filesystem::path> places{program.parent_path() / "../share/moebus/plot.py",
                                                  MOEBUS_PLOT_SCRIPT};
  std::string looked;
  for (const std::filesystem::path& place : places) {
    if (std::filesystem::is_regular_file(place, error)) return place.string();
    looked += (looked.empty() ? "" : ", ") + place.string();
  }
  throw Error(ErrorCode::not_found, "the script that draws pictures is in none of: " + looked);
}

void feed(int fd, const std::string& text) {
  std::size_t sent = 0;
  while (sent < text.size()) {
    const ssize_t part = ::write(fd, text.data() + sent, text.size() - sent);
    if (part < 0 && errno == EINTR) continue;
    if (part <= 0) return;  // the script ended early; its status says why
    sent += static_cast<std::size_t>(part);
  }
}

// Runs python with arguments and a text on its standard input; no shell is involved. Returns its exit status.
int run_python(std::vector<std::string> arguments, const std::string& input) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    throw Error(ErrorCode::resource_exhausted, std::string("pipe to plot.py: ") + std::strerror(errno));
  }
  std::vector<char*> pointers{const_cast<char*>(kPython)};  // execv's parameter type; it does not write
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::dup2(ends[0], STDIN_FILENO);
    ::execv(kPython, pointers.data());
    ::_exit(kCannotStart);
  }
  ::close(ends[0]);
  if (pid > 0) {
    const auto old = ::signal(SIGPIPE, SIG_IGN);
    feed(ends[1], input);
    ::signal(SIGPIPE, old);
  }
  ::close(ends[1]);
  if (pid < 0) throw Error(ErrorCode::resource_exhausted, std::string("fork for plot.py: ") + std::strerror(errno));
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void check_status(int status) {
  if (status == 0) return;
  if (status == kCannotStart)
    throw Error(ErrorCode::not_found, std::string("no picture: ") + kPython + " cannot be started");
  if (status == kNoMatplotlib) {
    throw Error(ErrorCode::unsupported,
                "no picture: matplotlib is missing; on Debian or Ubuntu: apt-get install python3-matplotlib");
  }
  throw Error(ErrorCode::internal, "plot.py ended with status " + std::to_string(status) + "; its message is above");
}

}  // namespace

void check_can_plot() {
  find_script();
  const std::string probe = "import importlib.util as u, sys; sys.exit(0 if u.find_spec('matplotlib') else 4)";
  check_status(run_python({"-c", probe}, ""));
}

void plot(const std::string& report_json, const std::string& file) {
  check_status(run_python({find_script(), file, "-"}, report_json));
}

}  // namespace moebus::cli
