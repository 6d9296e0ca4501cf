#include "transport/shm/card.hpp"

#include <gtest/gtest.h>

#include "moebus/error.hpp"
#include "transport/stream_frame.hpp"

namespace moebus::transport {
namespace {

std::string card_of(std::size_t boot_id_bytes, std::size_t namespace_bytes, std::size_t name_bytes) {
  Card card;
  card.host.boot_id.assign(boot_id_bytes, 'b');
  card.host.network_namespace.assign(namespace_bytes, 'n');
  card.address.socket_name.assign(name_bytes, 's');
  return to_payload(card);
}

TEST(Card, ComesBackAsItWasMade) {
  const Card card{{"boot", "net:[1]"}, {"socket", random_nonce()}};
  const Card parsed = parse_card(to_payload(card));
  EXPECT_EQ(parsed.host.boot_id, "boot");
  EXPECT_EQ(parsed.host.network_namespace, "net:[1]");
  EXPECT_EQ(parsed.address.socket_name, "socket");
  EXPECT_EQ(parsed.address.nonce, card.address.nonce);
  EXPECT_NO_THROW(parse_card(card_of(100, 100, 100)));
  EXPECT_NO_THROW(parse_card(card_of(0, 0, 1)));  // a system that tells neither
}

TEST(Card, IsRefusedWithATextThatNoRankMakes) {
  EXPECT_THROW(parse_card(card_of(101, 1, 1)), Error);
  EXPECT_THROW(parse_card(card_of(1, 101, 1)), Error);
  EXPECT_THROW(parse_card(card_of(1, 1, 101)), Error);
  EXPECT_THROW(parse_card(card_of(1, 1, 0)), Error);
}

TEST(Card, IsRefusedAtEveryOtherLength) {
  const std::string payload = card_of(3, 3, 3);
  for (std::size_t size = 0; size < payload.size(); ++size) EXPECT_THROW(parse_card(payload.substr(0, size)), Error);
  EXPECT_THROW(parse_card(payload + "x"), Error);
}

}  // namespace
}  // namespace moebus::transport
