#include "transport/shm/card.hpp"

#include <algorithm>

#include "moebus/error.hpp"
#include "transport/stream_frame.hpp"

namespace moebus::transport {

namespace {

constexpr std::size_t kMaxTextBytes = 100;  // of a boot id, a namespace, a socket's name

}  // namespace

std::string to_payload(const Card& card) {
  return PayloadWriter()
      .bytes(card.host.boot_id)
      .bytes(card.host.network_namespace)
      .bytes(card.address.socket_name)
      .raw(as_bytes(card.address.nonce))
      .take();
}

Card parse_card(std::string_view payload) {
  PayloadReader reader(payload);
  Card card;
  bool is_short_enough = true;
  for (std::string* text : {&card.host.boot_id, &card.host.network_namespace, &card.address.socket_name}) {
    const std::string_view told = reader.bytes();
    is_short_enough = is_short_enough && told.size() <= kMaxTextBytes;
    if (is_short_enough) *text = told;
  }
  const std::string_view nonce = reader.raw(card.address.nonce.size());
  if (!reader.is_done() || !is_short_enough || card.address.socket_name.empty()) {
    throw Error(ErrorCode::transport_failure, "a rank told something that is not an address of shm");
  }
  std::copy(nonce.begin(), nonce.end(), card.address.nonce.begin());
  return card;
}

}  // namespace moebus::transport
