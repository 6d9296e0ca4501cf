#include "transport/rendezvous_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>
#include <utility>

#include "base/log.hpp"
#include "base/unique_fd.hpp"
#include "moebus/error.hpp"
#include "transport/stream_socket.hpp"
#include "transport/system_call.hpp"
#include "transport/token_proof.hpp"

namespace moebus::transport {
namespace {

constexpr std::string_view kFirstLine = "moebus rendezvous 1\n";
constexpr std::size_t kMaxFileBytes = 256;
constexpr int kMaxAttempts = 8;  // to replace a stale file while others do the same

[[noreturn]] void throw_not_ours(const std::string& path, std::string_view why) {
  throw Error(ErrorCode::invalid_argument, fmt::format("{} {}; remove it or use another path for file://", path, why));
}

/// Writes a new file that nobody can have opened before.
void write_new_file(const std::string& path, std::string_view content) {
  constexpr int kFlags = O_CREAT | O_EXCL | O_NOFOLLOW | O_WRONLY | O_CLOEXEC;
  const base::UniqueFd file(::open(path.c_str(), kFlags, S_IRUSR | S_IWUSR));
  if (!file.is_open()) throw_system_error("open", errno, "rank 0 must be able to write beside the path of file://");
  MOEBUS_SYSTEM_CALL(::fchmod(file.get(), S_IRUSR | S_IWUSR));  // whatever the umask says
  const ssize_t written = MOEBUS_SYSTEM_CALL(::write(file.get(), content.data(), content.size()));
  if (static_cast<std::size_t>(written) != content.size()) {
    ::unlink(path.c_str());
    throw_system_error("write", ENOSPC);
  }
}

bool has_listener(const std::string& local_name) {
  StreamAddress address;
  address.local_name = local_name;
  return connect_stream(address, false, base::Deadline(std::chrono::milliseconds(100))).socket.is_open();
}

}  // namespace

RendezvousFile::RendezvousFile(std::string path, const std::string& local_name)
    : path_(std::move(path)), content_(std::string(kFirstLine) + local_name + "\n") {
  const std::string temporary = path_ + "." + random_name(8);
  write_new_file(temporary, content_);
  int error = 0;
  for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
    // A link, unlike a rename, never replaces what is there.
    error = ::link(temporary.c_str(), path_.c_str()) == 0 ? 0 : errno;
    if (error != EEXIST) break;
    try {
      const std::optional<std::string> other = read_rendezvous_file(path_);
      if (other && has_listener(*other)) throw_not_ours(path_, "is in use: another group is meeting there just now");
      if (other && ::unlink(path_.c_str()) == 0)
        base::log().info("replaced {}, which an earlier group left behind", path_);
    } catch (...) {
      ::unlink(temporary.c_str());
      throw;
    }
  }
  ::unlink(temporary.c_str());
  if (error != 0) throw_system_error("link", error, "use a path for file:// on a local file system");
}

RendezvousFile::~RendezvousFile() {
  try {
    // Only our own: another rank 0 may have replaced it if this one was taken for dead.
    const auto name = read_rendezvous_file(path_);
    if (name && content_ == std::string(kFirstLine) + *name + "\n") ::unlink(path_.c_str());
  } catch (const std::exception& error) {
    base::log().warn("{} was not removed: {}", path_, error.what());
  }
}

std::optional<std::string> read_rendezvous_file(const std::string& path) {
  const base::UniqueFd file(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!file.is_open()) {
    if (errno == ENOENT) return std::nullopt;
    if (errno == ELOOP) throw_not_ours(path, "is a symbolic link");
    if (errno == EACCES) throw_not_ours(path, "may not be read by this user");
    throw_system_error("open", errno, "see that the path of file:// is right");
  }
  struct stat status{};
  MOEBUS_SYSTEM_CALL(::fstat(file.get(), &status));
  if (!S_ISREG(status.st_mode)) throw_not_ours(path, "is not a regular file");
  if (status.st_uid != ::geteuid()) throw_not_ours(path, fmt::format("belongs to user {}", status.st_uid));
  if ((status.st_mode & (S_IRWXG | S_IRWXO)) != 0) throw_not_ours(path, "can be opened by other users");
  std::string content(kMaxFileBytes, '\0');
  const ssize_t size = MOEBUS_SYSTEM_CALL(::read(file.get(), content.data(), content.size()));
  content.resize(static_cast<std::size_t>(size));
  if (!content.starts_with(kFirstLine) || !content.ends_with('\n') || content.size() == kMaxFileBytes) {
    throw_not_ours(path, "is there already and was not made by moebus");
  }
  content.pop_back();
  content.erase(0, kFirstLine.size());
  if (content.empty()) throw_not_ours(path, "is there already and names no socket");
  return content;
}

}  // namespace moebus::transport
