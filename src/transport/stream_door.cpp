#include "transport/stream_door.hpp"

#include <fmt/format.h>

#include <deque>
#include <utility>

#include "base/log.hpp"

namespace moebus::transport {
namespace {

constexpr std::size_t kMaxVisitors = 128;                  // a flood pushes its own oldest out
constexpr std::chrono::milliseconds kVisitLimit{5'000};    // for a visitor to prove itself
constexpr std::chrono::milliseconds kLeavingLimit{1'000};  // to read why it was turned away
constexpr int kMaxAcceptsAtOnce = 32;                      // so that a crowd does not fill the queue of the system
constexpr std::chrono::milliseconds kAcceptPause{50};      // after a failed accept, e.g. no descriptors left

}  // namespace

/// One listening socket. Shared with its handlers, which may outlive the door.
struct StreamDoor::Listening : std::enable_shared_from_this<StreamDoor::Listening> {
  Listening(asio::io_context& io, base::UniqueFd listener, bool local)
      : socket(io, listener.release()), pause(io), is_local(local) {}

  void wait() {
    socket.async_wait(asio::posix::stream_descriptor::wait_read, [self = shared_from_this()](asio::error_code error) {
      if (error || !self->socket.is_open()) return;
      for (int i = 0; i < kMaxAcceptsAtOnce; ++i) {
        base::UniqueFd newcomer = accept_stream(self->socket.native_handle(), self->is_local);
        if (!newcomer.is_open()) return i == 0 ? self->wait_a_little() : self->wait();
        self->accepted.push_back(std::move(newcomer));
      }
      self->wait();
    });
  }

  void wait_a_little() {
    pause.expires_after(kAcceptPause);
    pause.async_wait([self = shared_from_this()](asio::error_code error) {
      if (!error && self->socket.is_open()) self->wait();
    });
  }

  void close() noexcept {
    asio::error_code ignored;
    socket.close(ignored);
    pause.cancel();
  }

  asio::posix::stream_descriptor socket;
  asio::steady_timer pause;
  std::deque<base::UniqueFd> accepted;
  bool is_local;
};

StreamDoor::StreamDoor(asio::io_context& io, StreamListener listener, int num_ranks, std::string token)
    : io_(io), num_ranks_(num_ranks), token_(std::move(token)) {
  for (base::UniqueFd& socket : listener.sockets) {
    listening_.push_back(std::make_shared<Listening>(io, std::move(socket), listener.is_local));
    listening_.back()->wait();
  }
}

StreamDoor::~StreamDoor() {
  for (const auto& listening : listening_) listening->close();
  for (const Visitor& visitor : visitors_) visitor.channel->close();
}

std::vector<Guest> StreamDoor::let_in(const std::function<bool(int rank)>& is_taken) {
  admit_new_visitors();
  std::vector<Guest> guests;
  const auto now = base::Clock::now();
  for (auto visitor = visitors_.begin(); visitor != visitors_.end();) {
    const auto taken = [&](int rank) {
      for (const Guest& guest : guests) {
        if (guest.rank == rank) return true;
      }
      return is_taken(rank);
    };
    if (go_on(*visitor, taken)) {
      guests.push_back({visitor->hello.rank, std::move(visitor->channel)});
      visitor = visitors_.erase(visitor);
    } else if (!visitor->channel->is_open() || now >= visitor->leaves_at) {
      visitor->channel->close();
      visitor = visitors_.erase(visitor);
    } else {
      ++visitor;
    }
  }
  return guests;
}

bool StreamDoor::has_unsent() const noexcept {
  for (const Visitor& visitor : visitors_) {
    if (visitor.channel->has_unsent()) return true;
  }
  return false;
}

void StreamDoor::admit_new_visitors() {
  for (const auto& listening : listening_) {
    while (!listening->accepted.empty()) {
      if (visitors_.size() >= kMaxVisitors) {
        visitors_.front().channel->close();
        visitors_.pop_front();
      }
      Visitor visitor;
      visitor.channel = std::make_shared<StreamChannel>(io_, std::move(listening->accepted.front()));
      visitor.leaves_at = base::Clock::now() + kVisitLimit;
      visitor.channel->start();
      visitors_.push_back(std::move(visitor));
      listening->accepted.pop_front();
    }
  }
}

bool StreamDoor::go_on(Visitor& visitor, const std::function<bool(int rank)>& is_taken) {
  if (visitor.stage == Stage::leaving) return false;
  if (visitor.channel->is_broken()) {
    turn_away(visitor, visitor.channel->reason());
    return false;
  }
  std::optional<Frame> frame = visitor.channel->take();
  if (!frame) return false;
  if (visitor.stage == Stage::hello) {
    challenge(visitor, std::move(*frame), is_taken);
    return false;
  }
  return check_proof(visitor, *frame, is_taken);
}

void StreamDoor::challenge(Visitor& visitor, Frame frame, const std::function<bool(int rank)>& is_taken) {
  const std::optional<Hello> hello = parse_hello(frame.payload);
  if (frame.type != FrameType::hello || !hello) return turn_away(visitor, "the first message is not a greeting");
  if (hello->version != library_version()) {
    return turn_away(visitor,
                     fmt::format("it has moebus {}, rank 0 has {}; use one version on all ranks",
                                 printable(hello->version),
                                 library_version()));
  }
  if (hello->num_ranks != num_ranks_) {
    return turn_away(visitor,
                     fmt::format("it was given num_ranks {}, rank 0 was given {}", hello->num_ranks, num_ranks_));
  }
  if (hello->rank < 0 || hello->rank >= num_ranks_) {
    return turn_away(visitor, fmt::format("rank {} is not in 0 to {}", hello->rank, num_ranks_ - 1));
  }
  if (is_taken(hello->rank)) {
    return turn_away(visitor, fmt::format("rank {} is here already; give each process its own rank", hello->rank));
  }
  visitor.hello = *hello;
  visitor.hello_payload = std::move(frame.payload);
  visitor.hub_nonce = random_nonce();
  visitor.stage = Stage::proof;
  visitor.channel->send(FrameType::challenge, std::string(as_bytes(visitor.hub_nonce)));
}

bool StreamDoor::check_proof(Visitor& visitor, const Frame& frame, const std::function<bool(int rank)>& is_taken) {
  const ProofContext context{visitor.hello_payload, visitor.hello.nonce, visitor.hub_nonce};
  const Proof expected = make_proof(token_, Prover::client, context);
  if (frame.type != FrameType::proof || !is_same_secret(frame.payload, as_bytes(expected))) {
    turn_away(visitor, "its token is not that of rank 0; give all ranks the same GroupOptions::token");
    return false;
  }
  if (is_taken(visitor.hello.rank)) {
    turn_away(visitor, fmt::format("rank {} is here already; give each process its own rank", visitor.hello.rank));
    return false;
  }
  visitor.channel->set_max_payload(kMaxValueBytes);
  visitor.channel->send(FrameType::welcome, std::string(as_bytes(make_proof(token_, Prover::hub, context))));
  return true;
}

void StreamDoor::turn_away(Visitor& visitor, const std::string& reason) {
  base::log().warn("turned a connection away: {}", reason);
  last_reason_ = reason;
  visitor.channel->send_last(FrameType::turned_away, reason);
  visitor.stage = Stage::leaving;
  visitor.leaves_at = base::Clock::now() + kLeavingLimit;
}

}  // namespace moebus::transport
