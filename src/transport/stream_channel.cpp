#include "transport/stream_channel.hpp"

#include <sys/socket.h>

#include <array>
#include <utility>

#include "transport/system_call.hpp"

namespace moebus::transport {
namespace {

asio::generic::stream_protocol protocol_of(int socket) {
  int family = 0;
  socklen_t size = sizeof family;
  MOEBUS_SYSTEM_CALL(::getsockopt(socket, SOL_SOCKET, SO_DOMAIN, &family, &size));
  return {family, 0};
}

}  // namespace

StreamChannel::StreamChannel(asio::io_context& io, base::UniqueFd socket) : socket_(io) {
  socket_.assign(protocol_of(socket.get()), socket.get());
  // The descriptor has two owners for the length of this line only.
  [[maybe_unused]] const int handed_over = socket.release();
}

void StreamChannel::send(FrameType type, std::shared_ptr<const std::string> payload) {
  if (!is_open_ || is_leaving_) return;
  unsent_.push_back({make_frame_header(type, payload->size()), std::move(payload)});
  if (unsent_.size() == 1) write_next();
}

void StreamChannel::send_last(FrameType type, std::string payload) {
  send(type, std::move(payload));
  is_leaving_ = true;
  const bool is_reading = !is_broken_ && !frame_;
  frame_.reset();
  if (!is_reading) discard();
}

std::optional<Frame> StreamChannel::take() {
  std::optional<Frame> taken = std::exchange(frame_, std::nullopt);
  if (taken) read_header();
  return taken;
}

void StreamChannel::read_header() {
  if (!is_open_) return;
  asio::async_read(socket_, asio::buffer(header_), [self = shared_from_this()](asio::error_code error, std::size_t) {
    if (error) return self->end(error.message());
    if (self->is_leaving_) return self->discard();
    ParsedHeader parsed = parse_frame_header(self->header_, self->max_payload_bytes_);
    if (!parsed.error.empty()) {
      self->reason_ = std::move(parsed.error);
      self->is_broken_ = true;
      return;
    }
    self->incoming_.type = parsed.type;
    self->incoming_.payload.assign(parsed.payload_bytes, '\0');
    self->read_payload();
  });
}

void StreamChannel::read_payload() {
  asio::async_read(
      socket_, asio::buffer(incoming_.payload), [self = shared_from_this()](asio::error_code error, std::size_t) {
        if (error) return self->end(error.message());
        if (self->is_leaving_) return self->discard();
        self->frame_ = std::move(self->incoming_);
        self->incoming_ = {};
      });
}

void StreamChannel::discard() {
  if (!is_open_) return;
  socket_.async_read_some(asio::buffer(scratch_), [self = shared_from_this()](asio::error_code error, std::size_t) {
    if (error) return self->end(error.message());
    self->discard();
  });
}

void StreamChannel::write_next() {
  const Unsent& next = unsent_.front();
  const std::array<asio::const_buffer, 2> buffers{asio::buffer(next.header), asio::buffer(*next.payload)};
  asio::async_write(socket_, buffers, [self = shared_from_this()](asio::error_code error, std::size_t) {
    if (!self->is_open_) return;
    // A failed write is left to the reader: the other side's last words may still be waiting there.
    if (error) return self->unsent_.clear();
    self->unsent_.pop_front();
    if (!self->unsent_.empty()) return self->write_next();
    if (self->is_leaving_) self->socket_.shutdown(asio::socket_base::shutdown_send, error);
  });
}

void StreamChannel::end(const std::string& reason) {
  if (!is_open_) return;
  if (reason_.empty()) reason_ = reason;
  close();
}

void StreamChannel::close() noexcept {
  is_open_ = false;
  asio::error_code ignored;
  socket_.close(ignored);
}

}  // namespace moebus::transport
