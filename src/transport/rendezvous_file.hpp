// Rendezvous file: a small private file in which rank 0 leaves the name of its socket for the others.
// Room: transport · host.

#pragma once

#include <optional>
#include <string>

#include "base/deadline.hpp"

namespace moebus::transport {

/// The file while rank 0 waits; its destructor removes it.
class RendezvousFile {
 public:
  /// Makes `path` hold `local_name`, whole from its first moment. A file that a dead rank 0 left behind is replaced.
  ///
  /// Errors:  Error{invalid_argument} something else is at `path`, or another group is meeting there;
  ///          Error{transport_failure} it cannot be written.
  RendezvousFile(std::string path, const std::string& local_name);
  ~RendezvousFile();
  RendezvousFile(const RendezvousFile&) = delete;
  RendezvousFile& operator=(const RendezvousFile&) = delete;

 private:
  std::string path_;
  std::string content_;
};

/// Returns the socket name in the file, nothing if there is no file yet.
///
/// Errors:  Error{invalid_argument} the file is not a rendezvous, not this user's, or open to others.
std::optional<std::string> read_rendezvous_file(const std::string& path);

}  // namespace moebus::transport
