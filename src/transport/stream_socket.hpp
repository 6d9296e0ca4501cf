// Stream sockets: where a store's ranks listen and connect, over TCP or Unix sockets in the abstract namespace.
// Room: transport · host.

#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/deadline.hpp"
#include "base/unique_fd.hpp"

namespace moebus::transport {

/// Where a hub is found: host and port, or the name of a Unix socket that has no file.
struct StreamAddress {
  std::string host;
  int port = 0;
  std::string local_name;  ///< not empty = Unix socket

  [[nodiscard]] bool is_local() const noexcept { return !local_name.empty(); }
};

/// Returns the address for a message.
std::string to_string(const StreamAddress& address);

/// Sockets that a hub accepts from; several where a host name has several addresses.
struct StreamListener {
  std::vector<base::UniqueFd> sockets;
  std::string where;
  bool is_local = false;
};

/// Listens, or throws and leaves nothing behind.
///
/// Errors:  Error{invalid_argument} the address is not loopback and `has_token` is false, the host does not resolve,
///          or a Unix name is in use; Error{transport_failure} the port is taken.
StreamListener listen_stream(const StreamAddress& address, bool has_token);

/// What came of one attempt to connect.
struct Connection {
  base::UniqueFd socket;  ///< closed = nobody listens there yet
  std::string problem;    ///< then why
};

/// Tries once. Errors: as listen_stream; Error{invalid_argument} a Unix socket belongs to another user.
Connection connect_stream(const StreamAddress& address, bool has_token, const base::Deadline& deadline);

/// Accepts one connection; closed if there is none, or if the other end of a Unix socket is another user.
base::UniqueFd accept_stream(int listener, bool is_local);

/// Returns the user at the other end of a connected Unix socket.
unsigned peer_user(int socket);

}  // namespace moebus::transport
