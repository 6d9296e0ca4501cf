// Stream channel: frames over one connected socket, driven by whoever runs the io_context.
// Room: transport · host. One thread.

#pragma once

#include <asio.hpp>
#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "base/deadline.hpp"
#include "base/unique_fd.hpp"
#include "transport/stream_frame.hpp"

namespace moebus::transport {

class StreamChannel : public std::enable_shared_from_this<StreamChannel> {
 public:
  /// Takes a connected stream socket of any family.
  StreamChannel(asio::io_context& io, base::UniqueFd socket);

  /// Begins to read. At most one frame is read ahead; the next is read after take().
  void start() { read_header(); }

  /// Queues a frame. Does nothing on a closed channel: its end is seen by the reader.
  void send(FrameType type, std::string payload) {
    send(type, std::make_shared<const std::string>(std::move(payload)));
  }

  /// Queues a frame whose payload is shared by several channels.
  void send(FrameType type, std::shared_ptr<const std::string> payload);

  /// Queues a last frame; afterwards what still comes in is thrown away until the other side closes.
  void send_last(FrameType type, std::string payload);

  /// Returns the frame that came in, nothing if none is complete, and reads on.
  std::optional<Frame> take();

  void set_max_payload(std::size_t max_payload_bytes) noexcept { max_payload_bytes_ = max_payload_bytes; }

  [[nodiscard]] bool is_open() const noexcept { return is_open_; }

  [[nodiscard]] bool has_frame() const noexcept { return frame_.has_value(); }

  [[nodiscard]] bool has_unsent() const noexcept { return is_open_ && !unsent_.empty(); }

  /// Returns why the channel closed or what was wrong with what came.
  [[nodiscard]] const std::string& reason() const noexcept { return reason_; }

  /// True if the other side sent something that is not a frame. The channel can still send.
  [[nodiscard]] bool is_broken() const noexcept { return is_broken_; }

  void close() noexcept;

 private:
  struct Unsent {
    FrameHeader header;
    std::shared_ptr<const std::string> payload;
  };

  void read_header();
  void read_payload();
  void discard();
  void write_next();
  void end(const std::string& reason);

  asio::generic::stream_protocol::socket socket_;
  FrameHeader header_{};
  Frame incoming_;
  std::optional<Frame> frame_;
  std::deque<Unsent> unsent_;
  std::size_t max_payload_bytes_ = kMaxGreetingBytes;
  std::string reason_;
  std::array<char, 512> scratch_{};
  bool is_open_ = true;
  bool is_broken_ = false;
  bool is_leaving_ = false;
};

/// Runs handlers until `is_done()`; false if the deadline came first. `is_done` is asked after every event and every
/// `interval`.
template <class IsDone>
bool drive(asio::io_context& io, const base::Deadline& deadline, std::chrono::milliseconds interval, IsDone&& is_done) {
  const auto guard = asio::make_work_guard(io);
  for (;;) {
    if (is_done()) return true;
    if (deadline.is_over()) return false;
    io.restart();
    io.run_one_until(std::min(deadline.end(), base::Clock::now() + interval));
  }
}

}  // namespace moebus::transport
