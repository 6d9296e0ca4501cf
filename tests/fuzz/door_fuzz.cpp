// Bytes on the socket where rank 0 waits: a visitor says anything, in two parts, and closes its side. Without the token
// nobody comes in, and the door is free again afterwards.

#include <asio.hpp>

#include "moebus/error.hpp"
#include "tests/fuzz/fuzz_input.hpp"
#include "transport/stream_door.hpp"

namespace moebus::transport {
namespace {

constexpr int kNumRanks = 3;
constexpr int kMaxRounds = 64;  // of handlers that one visitor can need

StreamAddress address() {
  StreamAddress local;
  local.local_name = "moebus-door-fuzz-" + std::to_string(::getpid());
  return local;
}

/// One listening socket for all inputs.
const base::UniqueFd& listening_socket() {
  static const StreamListener listener = listen_stream(address(), false);
  return listener.sockets[0];
}

StreamListener listener() {
  StreamListener copy;
  copy.sockets.emplace_back(::fcntl(listening_socket().get(), F_DUPFD_CLOEXEC, 0));
  copy.where = "here";
  copy.is_local = true;
  return copy;
}

void say(const base::UniqueFd& socket, std::string_view text) {
  // A visitor that was turned away may find its words refused.
  static_cast<void>(::send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT));
}

void visit(fuzz::FuzzInput& input) {
  asio::io_context io(1);
  StreamDoor door(io, listener(), kNumRanks, "secret");
  const auto go_on = [&](int num_rounds) {
    for (int i = 0; i < num_rounds; ++i) {
      io.restart();
      io.poll();
      const auto guests = door.let_in([](int rank) { return rank == 0; });
      MOEBUS_ASSERT(guests.empty());
    }
  };
  base::UniqueFd visitor = connect_stream(address(), false, base::Deadline(std::chrono::seconds(1))).socket;
  MOEBUS_ASSERT(visitor.is_open());
  const std::size_t first_bytes = input.take<std::uint8_t>();
  say(visitor, input.text(first_bytes));
  go_on(4);
  say(visitor, input.rest());
  ::shutdown(visitor.get(), SHUT_WR);
  go_on(kMaxRounds);
  MOEBUS_ASSERT(!door.has_unsent());
  // Its socket was closed on the other side: all that it was told can be read, and then the end.
  char scratch[2048];
  ssize_t num_read = 0;
  do {
    num_read = ::recv(visitor.get(), scratch, sizeof scratch, MSG_DONTWAIT);
  } while (num_read > 0);
  MOEBUS_ASSERT(num_read == 0 || errno == ECONNRESET);
}

}  // namespace
}  // namespace moebus::transport

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t num_bytes) {
  static const bool is_quiet = ::setenv("MOEBUS_LOG", "off", 0) == 0;
  MOEBUS_ASSERT(is_quiet);
  moebus::fuzz::FuzzInput input(bytes, std::min<std::size_t>(num_bytes, 4096));
  moebus::transport::visit(input);
  return 0;
}
