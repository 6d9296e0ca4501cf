#include "transport/rendezvous.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <string>
#include <utility>

#include "moebus/error.hpp"
#include "transport/inproc_store.hpp"
#include "transport/rendezvous_file.hpp"
#include "transport/store_checks.hpp"
#include "transport/stream_frame.hpp"
#include "transport/token_proof.hpp"

namespace moebus::transport {
namespace {

constexpr std::size_t kMaxNameBytes = 64;

[[noreturn]] void throw_bad_uri(std::string_view uri, std::string_view why) {
  throw Error(ErrorCode::invalid_argument,
              fmt::format("the address \"{}\" {}; allowed are inproc://NAME (threads of one process), local://NAME and "
                          "file://PATH (processes of one machine), tcp://HOST:PORT ([..] around an IPv6 host)",
                          printable(uri),
                          why));
}

void check_name(std::string_view uri, std::string_view name) {
  const auto is_allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
           c == '-';
  };
  if (name.empty()) throw_bad_uri(uri, "has no name");
  if (name.size() > kMaxNameBytes) {
    throw_bad_uri(uri, fmt::format("has a name of {} bytes, at most {} are allowed", name.size(), kMaxNameBytes));
  }
  if (!std::all_of(name.begin(), name.end(), is_allowed)) {
    throw_bad_uri(uri, "has a name with characters other than letters, digits, '.', '_' and '-'");
  }
}

RendezvousAddress parse_tcp(std::string_view uri, std::string_view rest) {
  std::string_view host;
  std::string_view port;
  if (rest.starts_with('[')) {
    const std::size_t end = rest.find(']');
    if (end == std::string_view::npos || !rest.substr(end + 1).starts_with(':')) {
      throw_bad_uri(uri, "lacks \"]:PORT\" after the IPv6 host");
    }
    host = rest.substr(1, end - 1);
    port = rest.substr(end + 2);
  } else {
    const std::size_t colon = rest.rfind(':');
    if (colon == std::string_view::npos) throw_bad_uri(uri, "has no port");
    host = rest.substr(0, colon);
    port = rest.substr(colon + 1);
    if (host.find(':') != std::string_view::npos)
      throw_bad_uri(uri, "has several ':'; an IPv6 host needs [..] around it");
  }
  RendezvousAddress address{RendezvousKind::tcp, std::string(host), 0};
  if (host.empty()) throw_bad_uri(uri, "has no host");
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), address.port);
  if (error != std::errc() || end != port.data() + port.size() || address.port < 1 || address.port > 65535) {
    throw_bad_uri(uri, fmt::format("has the port \"{}\", which is not a number from 1 to 65535", printable(port)));
  }
  return address;
}

std::unique_ptr<Store> join_fixed(const StreamAddress& address,
                                  std::string_view uri,
                                  int rank,
                                  int num_ranks,
                                  const JoinOptions& options,
                                  const base::Deadline& deadline) {
  if (rank != 0) return join_stream([&] { return address; }, uri, rank, num_ranks, options, deadline);
  StreamListener listener = listen_stream(address, !options.token.empty());
  listener.where = uri;
  return host_stream(std::move(listener), num_ranks, options, deadline);
}

std::unique_ptr<Store> join_file(const std::string& path,
                                 std::string_view uri,
                                 int rank,
                                 int num_ranks,
                                 const JoinOptions& options,
                                 const base::Deadline& deadline) {
  const auto at = [](const std::string& name) {
    StreamAddress address;
    address.local_name = name;
    return address;
  };
  if (rank != 0) {
    const auto locate = [&]() -> std::optional<StreamAddress> {
      const auto name = read_rendezvous_file(path);
      if (!name) return std::nullopt;
      return at(*name);
    };
    return join_stream(locate, uri, rank, num_ranks, options, deadline);
  }
  const std::string name = "moebus-" + random_name(16);
  // Listening comes first, so that a file that can be seen always leads somewhere.
  StreamListener listener = listen_stream(at(name), false);
  listener.where = uri;
  const RendezvousFile file(path, name);
  return host_stream(std::move(listener), num_ranks, options, deadline);
}

}  // namespace

RendezvousAddress parse_rendezvous(std::string_view uri) {
  const std::size_t colon = uri.find("://");
  if (colon == std::string_view::npos) throw_bad_uri(uri, "has no \"://\"");
  const std::string_view scheme = uri.substr(0, colon);
  const std::string_view rest = uri.substr(colon + 3);
  if (scheme == "tcp") return parse_tcp(uri, rest);
  if (scheme == "file") {
    if (!rest.starts_with('/')) throw_bad_uri(uri, "needs an absolute path, as in file:///tmp/meeting");
    if (rest.ends_with('/')) throw_bad_uri(uri, "names a folder; it must name a file that does not exist yet");
    if (rest.find('\0') != std::string_view::npos) throw_bad_uri(uri, "has a zero byte in its path");
    return {RendezvousKind::file, std::string(rest), 0};
  }
  if (scheme != "inproc" && scheme != "local") throw_bad_uri(uri, "begins with an unknown word");
  check_name(uri, rest);
  return {scheme == "inproc" ? RendezvousKind::inproc : RendezvousKind::local, std::string(rest), 0};
}

std::unique_ptr<Store> join_rendezvous(
    std::string_view uri, int rank, int num_ranks, const JoinOptions& options, const base::Deadline& deadline) {
  const RendezvousAddress address = parse_rendezvous(uri);
  check_rank(rank, num_ranks);
  switch (address.kind) {
    case RendezvousKind::inproc:
      return join_inproc(address.name, rank, num_ranks, deadline);
    case RendezvousKind::file:
      return join_file(address.name, uri, rank, num_ranks, options, deadline);
    case RendezvousKind::local: {
      StreamAddress local;
      local.local_name = fmt::format("moebus-{}-{}", ::geteuid(), address.name);
      return join_fixed(local, uri, rank, num_ranks, options, deadline);
    }
    case RendezvousKind::tcp: {
      StreamAddress tcp;
      tcp.host = address.name;
      tcp.port = address.port;
      return join_fixed(tcp, uri, rank, num_ranks, options, deadline);
    }
  }
  throw Error(ErrorCode::internal, "a kind of rendezvous without a way to join");
}

}  // namespace moebus::transport
