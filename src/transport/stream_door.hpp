// Stream door: where a hub lets its ranks in and turns strangers away. Nobody who stands in it can hold up the others.
// Room: transport · host. One thread.

#pragma once

#include <asio.hpp>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "base/deadline.hpp"
#include "transport/stream_channel.hpp"
#include "transport/stream_socket.hpp"
#include "transport/token_proof.hpp"

namespace moebus::transport {

/// A rank that has proved itself.
struct Guest {
  int rank = -1;
  std::shared_ptr<StreamChannel> channel;
};

class StreamDoor {
 public:
  StreamDoor(asio::io_context& io, StreamListener listener, int num_ranks, std::string token);
  ~StreamDoor();
  StreamDoor(const StreamDoor&) = delete;
  StreamDoor& operator=(const StreamDoor&) = delete;

  /// Goes on with everybody in the door and returns those who may come in. `is_taken` tells whether a rank is in
  /// already.
  std::vector<Guest> let_in(const std::function<bool(int rank)>& is_taken);

  /// True while somebody who is turned away has not been told yet.
  [[nodiscard]] bool has_unsent() const noexcept;

  /// Why the last visitor was turned away; empty if nobody was.
  [[nodiscard]] const std::string& last_reason() const noexcept { return last_reason_; }

 private:
  struct Listening;

  enum class Stage { hello, proof, leaving };

  struct Visitor {
    std::shared_ptr<StreamChannel> channel;
    base::Clock::time_point leaves_at;
    Stage stage = Stage::hello;
    Hello hello;
    std::string hello_payload;
    Nonce hub_nonce{};
  };

  /// Returns true if the visitor is through.
  bool go_on(Visitor& visitor, const std::function<bool(int rank)>& is_taken);
  void challenge(Visitor& visitor, Frame frame, const std::function<bool(int rank)>& is_taken);
  bool check_proof(Visitor& visitor, const Frame& frame, const std::function<bool(int rank)>& is_taken);
  void turn_away(Visitor& visitor, const std::string& reason);
  void admit_new_visitors();

  asio::io_context& io_;
  std::vector<std::shared_ptr<Listening>> listening_;
  std::list<Visitor> visitors_;  ///< oldest first
  int num_ranks_;
  std::string token_;
  std::string last_reason_;
};

}  // namespace moebus::transport
