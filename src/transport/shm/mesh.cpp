#include "transport/shm/mesh.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <list>

#include "base/assert.hpp"
#include "base/log.hpp"
#include "base/math.hpp"
#include "moebus/error.hpp"
#include "transport/rank_text.hpp"
#include "transport/shm/message.hpp"
#include "transport/system_call.hpp"

namespace moebus::transport {
namespace {

using base::idx;

constexpr std::chrono::milliseconds kPollLimit{20};  // a missed event costs this much, never a hang
constexpr std::chrono::milliseconds kRetryPause{1};  // while a peer's queue is full
constexpr std::size_t kMaxStrangers = 128;           // connections that have not said hello
constexpr int kSocketType = SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK;

struct LocalAddress {
  sockaddr_un un{};
  socklen_t size = 0;

  explicit LocalAddress(const std::string& name) {
    MOEBUS_ASSERT(name.size() < sizeof un.sun_path);
    un.sun_family = AF_UNIX;
    std::memcpy(un.sun_path + 1, name.data(), name.size());  // a leading zero byte: no file
    size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  }

  // The socket interface takes every family through a pointer to sockaddr.
  [[nodiscard]] const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&un); }
};

ucred credentials(int socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  MOEBUS_SYSTEM_CALL(::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size));
  return peer;
}

MeshMessage greeting(MessageKind kind, int rank, const Nonce& nonce) {
  MeshMessage message;
  message.kind = kind;
  message.rank = rank;
  message.nonce = nonce;
  return message;
}

int poll_limit_ms(const base::Deadline& deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.left());
  return static_cast<int>(std::min(left, kPollLimit).count());
}

}  // namespace

/// The state of a rank that connects: to whom it still has to, and who has connected without saying hello yet.
struct Mesh::Connecting {
  const std::vector<MeshAddress>& addresses;
  std::vector<int> to_connect;  ///< lower ranks, not connected
  std::vector<int> to_answer;   ///< lower ranks, connected, not heard of
  std::vector<int> to_accept;   ///< higher ranks, not heard of
  std::list<base::UniqueFd> strangers;

  [[nodiscard]] bool is_done() const noexcept { return to_connect.empty() && to_answer.empty() && to_accept.empty(); }

  [[nodiscard]] std::vector<int> missing() const {
    std::vector<int> ranks = to_connect;
    ranks.insert(ranks.end(), to_answer.begin(), to_answer.end());
    ranks.insert(ranks.end(), to_accept.begin(), to_accept.end());
    std::sort(ranks.begin(), ranks.end());
    return ranks;
  }
};

Mesh::Mesh(int rank, int num_ranks) : rank_(rank), num_ranks_(num_ranks), peers_(idx(num_ranks)) {
  address_ = {"moebus-" + random_name(16), random_nonce()};
  listener_ = base::UniqueFd(MOEBUS_SYSTEM_CALL(::socket(AF_UNIX, kSocketType, 0)));
  const LocalAddress local(address_.socket_name);
  MOEBUS_SYSTEM_CALL(::bind(listener_.get(), local.get(), local.size));
  MOEBUS_SYSTEM_CALL(::listen(listener_.get(), kMaxRanks));
}

Mesh::~Mesh() = default;

void Mesh::connect(const std::vector<MeshAddress>& addresses, const base::Deadline& deadline) {
  Connecting connecting{addresses, {}, {}, {}, {}};
  for (int peer = 0; peer < num_ranks_; ++peer) {
    if (peer < rank_) connecting.to_connect.push_back(peer);
    if (peer > rank_) connecting.to_accept.push_back(peer);
  }
  for (;;) {
    connect_to_lower(connecting);
    accept_higher(connecting);
    read_answers(connecting);
    if (connecting.is_done()) break;
    if (deadline.is_over()) {
      throw Error(ErrorCode::timeout,
                  fmt::format("rank {} waited {} for a socket with {} on this machine",
                              rank_,
                              show_seconds(deadline.waited()),
                              list_ranks(connecting.missing())),
                  rank_);
    }
    wait_for_news(connecting, deadline);
  }
  listener_.reset();
}

void Mesh::connect_to_lower(Connecting& connecting) {
  std::erase_if(connecting.to_connect, [&](int peer) {
    const MeshAddress& address = connecting.addresses[idx(peer)];
    base::UniqueFd socket(MOEBUS_SYSTEM_CALL(::socket(AF_UNIX, kSocketType, 0)));
    const LocalAddress local(address.socket_name);
    if (::connect(socket.get(), local.get(), local.size) != 0) {
      if (errno == EAGAIN || errno == EINTR) return false;  // its queue is full just now
      if (errno == ECONNREFUSED) throw_lost(peer);
      throw_system_error("connect", errno);
    }
    if (send_message(socket.get(), greeting(MessageKind::hello, rank_, address.nonce), -1) != Sent::yes)
      throw_lost(peer);
    adopt(peer, std::move(socket));
    connecting.to_answer.push_back(peer);
    return true;
  });
}

void Mesh::accept_higher(Connecting& connecting) {
  while (!connecting.to_accept.empty()) {
    base::UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.is_open()) {
      if (errno == EMFILE || errno == ENFILE) throw_system_error("accept4", errno, "raise the limit with `ulimit -n`");
      break;
    }
    if (credentials(socket.get()).uid != ::geteuid()) continue;
    if (connecting.strangers.size() >= kMaxStrangers) connecting.strangers.pop_front();
    connecting.strangers.push_back(std::move(socket));
  }
  std::erase_if(connecting.strangers, [&](base::UniqueFd& stranger) {
    MeshMessage hello;
    base::UniqueFd unexpected;
    const Came came = receive_message(stranger.get(), hello, unexpected);
    if (came == Came::nothing) return false;
    const auto place = std::find(connecting.to_accept.begin(), connecting.to_accept.end(), hello.rank);
    const bool is_known = came == Came::message && hello.kind == MessageKind::hello &&
                          is_same_secret(as_bytes(hello.nonce), as_bytes(address_.nonce));
    if (!is_known || place == connecting.to_accept.end()) {
      base::log().warn("rank {}: turned a connection away that does not belong to the group", rank_);
      return true;
    }
    const Nonce& its_nonce = connecting.addresses[idx(hello.rank)].nonce;
    connecting.to_accept.erase(place);
    if (send_message(stranger.get(), greeting(MessageKind::answer, rank_, its_nonce), -1) != Sent::yes)
      throw_lost(hello.rank);
    adopt(hello.rank, std::move(stranger));
    return true;
  });
}

void Mesh::read_answers(Connecting& connecting) {
  std::erase_if(connecting.to_answer, [&](int peer) {
    MeshMessage answer;
    base::UniqueFd unexpected;
    const Came came = receive_message(peers_[idx(peer)].socket.get(), answer, unexpected);
    if (came == Came::nothing) return false;
    if (came == Came::end) throw_lost(peer);
    if (came == Came::wrong || answer.kind != MessageKind::answer || answer.rank != peer ||
        !is_same_secret(as_bytes(answer.nonce), as_bytes(address_.nonce))) {
      throw Error(
          ErrorCode::transport_failure,
          fmt::format("rank {}: what listens in the place of rank {} does not belong to the group", rank_, peer),
          rank_);
    }
    return true;
  });
}

void Mesh::adopt(int peer, base::UniqueFd socket) {
  const ucred other = credentials(socket.get());
  if (other.uid != ::geteuid()) {
    throw Error(ErrorCode::transport_failure,
                fmt::format("rank {} runs as user {}, rank {} as user {}; all ranks must be of one user",
                            peer,
                            other.uid,
                            rank_,
                            ::geteuid()),
                rank_);
  }
  Peer& adopted = peers_[idx(peer)];
  adopted.socket = std::move(socket);
  // 0: a process that cannot be seen from here (another PID namespace). Then the socket alone tells of its end.
  if (other.pid <= 0 || other.pid == ::getpid()) return;
  const long process = ::syscall(SYS_pidfd_open, other.pid, 0);
  if (process < 0 && (errno == EMFILE || errno == ENFILE)) {
    throw_system_error("pidfd_open", errno, "raise the limit with `ulimit -n`");
  }
  adopted.process = base::UniqueFd(static_cast<int>(process));
  // Should the peer have ended before, its number may be another process's by now; then the socket has ended too.
  MeshMessage ignored;
  if (peek_message(adopted.socket.get(), ignored) == Came::end) throw_lost(peer);
}

void Mesh::wait_for_news(const Connecting& connecting, const base::Deadline& deadline) const {
  std::vector<pollfd> polls{{listener_.get(), POLLIN, 0}};
  for (const base::UniqueFd& stranger : connecting.strangers) polls.push_back({stranger.get(), POLLIN, 0});
  for (const int peer : connecting.to_answer) polls.push_back({peers_[idx(peer)].socket.get(), POLLIN, 0});
  const int limit = connecting.to_connect.empty() ? poll_limit_ms(deadline) : static_cast<int>(kRetryPause.count());
  ::poll(polls.data(), polls.size(), limit);
}

std::vector<PeerDescriptor> Mesh::exchange(int descriptor,
                                           std::size_t mapped_bytes,
                                           std::uint64_t exchange_id,
                                           const base::Deadline& deadline,
                                           const std::vector<bool>& peers) {
  MOEBUS_ASSERT(peers.empty() || peers.size() == idx(num_ranks_));
  std::vector<PeerDescriptor> received(idx(num_ranks_));
  std::vector<int> to_send;
  for (int peer = 0; peer < num_ranks_; ++peer) {
    if (peer != rank_ && (peers.empty() || peers[idx(peer)])) to_send.push_back(peer);
  }
  std::vector<int> to_receive = to_send;
  for (;;) {
    std::erase_if(to_send, [&](int peer) { return send_descriptor(peer, descriptor, mapped_bytes, exchange_id); });
    std::erase_if(to_receive, [&](int peer) { return receive_descriptor(peer, exchange_id, received[idx(peer)]); });
    if (to_send.empty() && to_receive.empty()) return received;
    if (deadline.is_over()) {
      throw Error(ErrorCode::timeout,
                  fmt::format("rank {} waited {} for the descriptor of {}",
                              rank_,
                              show_seconds(deadline.waited()),
                              list_ranks(to_receive.empty() ? to_send : to_receive)),
                  rank_);
    }
    std::vector<pollfd> polls;
    for (const int peer : to_receive) polls.push_back({peers_[idx(peer)].socket.get(), POLLIN, 0});
    const int limit = to_send.empty() ? poll_limit_ms(deadline) : static_cast<int>(kRetryPause.count());
    ::poll(polls.data(), polls.size(), limit);
  }
}

bool Mesh::send_descriptor(int peer, int descriptor, std::size_t mapped_bytes, std::uint64_t exchange_id) {
  MeshMessage message;
  message.kind = MessageKind::region;
  message.rank = rank_;
  message.exchange_id = exchange_id;
  message.mapped_bytes = mapped_bytes;
  const Sent sent = send_message(peers_[idx(peer)].socket.get(), message, descriptor);
  if (sent == Sent::peer_gone) throw_lost(peer);
  return sent == Sent::yes;
}

bool Mesh::receive_descriptor(int peer, std::uint64_t exchange_id, PeerDescriptor& received) {
  MeshMessage message;
  const Came came = receive_message(peers_[idx(peer)].socket.get(), message, received.descriptor);
  if (came == Came::nothing) {
    if (status(peer).state != PeerState::alive) throw_lost(peer);
    return false;
  }
  if (came == Came::message && message.kind == MessageKind::goodbye) remember(peer, PeerState::closed);
  if (came == Came::end || (came == Came::message && message.kind == MessageKind::goodbye)) throw_lost(peer);
  if (came == Came::wrong || message.kind != MessageKind::region || message.rank != peer ||
      message.exchange_id != exchange_id || !received.descriptor.is_open()) {
    throw Error(ErrorCode::transport_failure,
                fmt::format("rank {}: rank {} sent something else than its descriptor", rank_, peer),
                rank_);
  }
  received.mapped_bytes = message.mapped_bytes;
  return true;
}

void Mesh::throw_lost(int peer) const {
  const PeerStatus seen =
      peers_[idx(peer)].socket.is_open() ? status(peer) : PeerStatus{PeerState::dead, "no longer listens"};
  throw Error(ErrorCode::peer_lost, fmt::format("rank {} lost rank {}: {}", rank_, peer, seen.reason), rank_);
}

PeerStatus Mesh::status(int peer) const noexcept {
  MOEBUS_ASSERT(peer >= 0 && peer < num_ranks_);
  constexpr PeerStatus kClosed{PeerState::closed, "left in order"};
  constexpr PeerStatus kDead{PeerState::dead, "its process ended, or dropped the transport without closing it"};
  if (peer == rank_) return {};
  const PeerState last = last_seen_[idx(peer)].load(std::memory_order_relaxed);
  if (last != PeerState::alive) return last == PeerState::closed ? kClosed : kDead;

  const Peer& seen = peers_[idx(peer)];
  if (!seen.socket.is_open()) return {};
  // The process is asked first: what it said last is then in the socket for certain.
  pollfd process{seen.process.get(), POLLIN, 0};
  const bool has_exited = seen.process.is_open() && ::poll(&process, 1, 0) > 0;
  MeshMessage message;
  const Came came = peek_message(seen.socket.get(), message);
  PeerState state = PeerState::alive;
  if (came == Came::end || has_exited) state = PeerState::dead;
  if (came == Came::message && message.kind == MessageKind::goodbye) state = PeerState::closed;
  if (state == PeerState::alive) return {};
  remember(peer, state);
  return state == PeerState::closed ? kClosed : kDead;
}

void Mesh::remember(int peer, PeerState state) const noexcept {
  // Relaxed: the word itself is the message. The first finding stays, so that "left in order" is never overwritten by
  // the end after it.
  PeerState expected = PeerState::alive;
  last_seen_[idx(peer)].compare_exchange_strong(expected, state, std::memory_order_relaxed);
}

void Mesh::say_goodbye() noexcept {
  MeshMessage message;
  message.kind = MessageKind::goodbye;
  message.rank = rank_;
  for (const Peer& peer : peers_) {
    if (!peer.socket.is_open()) continue;
    try {
      send_message(peer.socket.get(), message, -1);
    } catch (const Error& error) {
      base::log().warn("rank {}: could not say goodbye: {}", rank_, error.what());
    }
  }
}

}  // namespace moebus::transport
