#include "transport/stream_socket.hpp"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <memory>
#include <system_error>

#include "base/log.hpp"
#include "moebus/error.hpp"
#include "transport/system_call.hpp"

namespace moebus::transport {
namespace {

constexpr int kBacklog = 128;

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;

  // The socket interface takes every family through a pointer to sockaddr.
  [[nodiscard]] const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&storage); }

  [[nodiscard]] int family() const noexcept { return storage.ss_family; }
};

SocketAddress local_address(const std::string& name) {
  sockaddr_un un{};
  if (name.size() + 1 > sizeof un.sun_path) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("the name \"{}\" has {} bytes; at most {} are allowed", name, name.size(), sizeof un.sun_path - 1));
  }
  un.sun_family = AF_UNIX;
  std::memcpy(un.sun_path + 1, name.data(), name.size());  // a leading zero byte: the abstract namespace
  SocketAddress address;
  std::memcpy(&address.storage, &un, sizeof un);
  address.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

bool is_loopback(const SocketAddress& address) noexcept {
  if (address.family() == AF_INET) {
    sockaddr_in in{};
    std::memcpy(&in, &address.storage, sizeof in);
    return (ntohl(in.sin_addr.s_addr) >> 24) == 127;
  }
  sockaddr_in6 in6{};
  std::memcpy(&in6, &address.storage, sizeof in6);
  if (IN6_IS_ADDR_V4MAPPED(&in6.sin6_addr)) return in6.sin6_addr.s6_addr[12] == 127;
  return IN6_IS_ADDR_LOOPBACK(&in6.sin6_addr);
}

/// Resolves a host to its addresses, all families. The system's resolver has limits of its own, not ours.
std::vector<SocketAddress> resolve(const StreamAddress& where) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const std::string port = std::to_string(where.port);
  const int status = ::getaddrinfo(where.host.c_str(), port.c_str(), &hints, &found);
  if (status != 0) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format(
            "the host \"{}\" of {} does not resolve: {}", where.host, to_string(where), ::gai_strerror(status)));
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);
  std::vector<SocketAddress> addresses;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    if (each->ai_family != AF_INET && each->ai_family != AF_INET6) continue;
    SocketAddress address;
    std::memcpy(&address.storage, each->ai_addr, each->ai_addrlen);
    address.size = each->ai_addrlen;
    addresses.push_back(address);
  }
  return addresses;
}

std::vector<SocketAddress> find_addresses(const StreamAddress& where, bool has_token) {
  if (where.is_local()) return {local_address(where.local_name)};
  std::vector<SocketAddress> addresses = resolve(where);
  for (const SocketAddress& address : addresses) {
    if (!has_token && !is_loopback(address)) {
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format(
              "{} is reachable from other machines and no token is given, so anybody could join; set "
              "GroupOptions::token to the same secret on all ranks, or use a loopback address such as 127.0.0.1",
              to_string(where)));
    }
  }
  return addresses;
}

base::UniqueFd open_socket(const SocketAddress& address) {
  base::UniqueFd socket(MOEBUS_SYSTEM_CALL(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)));
  return socket;
}

void set_flag(int socket, int level, int option) {
  const int on = 1;
  MOEBUS_SYSTEM_CALL(::setsockopt(socket, level, option, &on, sizeof on));
}

void tune(int socket, bool is_local) {
  if (is_local) return;
  set_flag(socket, IPPROTO_TCP, TCP_NODELAY);
  set_flag(socket, SOL_SOCKET, SO_KEEPALIVE);
}

std::string error_text(int error) { return std::generic_category().message(error); }

[[noreturn]] void throw_taken(const StreamAddress& where) {
  if (where.is_local()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("another group is meeting at {} just now; use another name", to_string(where)));
  }
  throw Error(ErrorCode::transport_failure,
              fmt::format("rank 0 cannot listen at {}: the port is taken; choose another", to_string(where)));
}

/// Waits until a connection that was begun is there; returns 0 or the error number.
int finish_connect(int socket, const base::Deadline& deadline) {
  pollfd poll{socket, POLLOUT, 0};
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline.left()).count();
  const int status = ::poll(&poll, 1, static_cast<int>(std::min<long long>(left, 1000)));
  if (status <= 0) return ETIMEDOUT;
  int error = 0;
  socklen_t size = sizeof error;
  MOEBUS_SYSTEM_CALL(::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size));
  return error;
}

/// A TCP socket that connects to a free port of its own machine may meet itself.
bool is_connected_to_itself(int socket) {
  SocketAddress own;
  SocketAddress peer;
  socklen_t own_size = sizeof own.storage;
  socklen_t peer_size = sizeof peer.storage;
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&own.storage), &own_size) != 0) return false;
  if (::getpeername(socket, reinterpret_cast<sockaddr*>(&peer.storage), &peer_size) != 0) return false;
  return own_size == peer_size && std::memcmp(&own.storage, &peer.storage, own_size) == 0;
}

}  // namespace

std::string to_string(const StreamAddress& address) {
  if (address.is_local()) return "local socket " + address.local_name;
  const bool is_v6 = address.host.find(':') != std::string::npos;
  return fmt::format("tcp://{}{}{}:{}", is_v6 ? "[" : "", address.host, is_v6 ? "]" : "", address.port);
}

StreamListener listen_stream(const StreamAddress& where, bool has_token) {
  StreamListener listener;
  listener.where = to_string(where);
  listener.is_local = where.is_local();
  int last_error = 0;
  for (const SocketAddress& address : find_addresses(where, has_token)) {
    const int family = address.family();
    // A machine without IPv6 still resolves names to it.
    base::UniqueFd socket(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket.is_open()) {
      last_error = errno;
      continue;
    }
    if (!where.is_local()) set_flag(socket.get(), SOL_SOCKET, SO_REUSEADDR);
    if (family == AF_INET6) set_flag(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY);
    if (::bind(socket.get(), address.get(), address.size) != 0 || ::listen(socket.get(), kBacklog) != 0) {
      last_error = errno;
      if (last_error == EADDRINUSE) throw_taken(where);
      continue;
    }
    listener.sockets.push_back(std::move(socket));
  }
  if (listener.sockets.empty()) {
    throw Error(ErrorCode::transport_failure,
                fmt::format("rank 0 cannot listen at {}: {}; it must be an address of the machine that rank 0 runs on",
                            listener.where,
                            error_text(last_error)));
  }
  return listener;
}

Connection connect_stream(const StreamAddress& where, bool has_token, const base::Deadline& deadline) {
  Connection connection;
  for (const SocketAddress& address : find_addresses(where, has_token)) {
    base::UniqueFd socket = open_socket(address);
    int error = ::connect(socket.get(), address.get(), address.size) == 0 ? 0 : errno;
    if (error == EINPROGRESS) error = finish_connect(socket.get(), deadline);
    if (error == 0 && !where.is_local() && is_connected_to_itself(socket.get())) error = ECONNREFUSED;
    if (error != 0) {
      connection.problem = error_text(error);
      continue;
    }
    if (where.is_local() && peer_user(socket.get()) != ::geteuid()) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{} belongs to user {}, not to this one ({}); use another name",
                              to_string(where),
                              peer_user(socket.get()),
                              ::geteuid()));
    }
    tune(socket.get(), where.is_local());
    connection.socket = std::move(socket);
    break;
  }
  return connection;
}

base::UniqueFd accept_stream(int listener, bool is_local) {
  base::UniqueFd socket(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket.is_open()) return socket;
  if (is_local && peer_user(socket.get()) != ::geteuid()) {
    base::log().warn("turned a connection of user {} away", peer_user(socket.get()));
    return {};
  }
  tune(socket.get(), is_local);
  return socket;
}

unsigned peer_user(int socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  MOEBUS_SYSTEM_CALL(::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size));
  return peer.uid;
}

}  // namespace moebus::transport
