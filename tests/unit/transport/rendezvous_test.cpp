#include "transport/rendezvous.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "moebus/error.hpp"

namespace moebus::transport {
namespace {

using ::testing::HasSubstr;

TEST(ParseRendezvous, TakesTheFourFormsApart) {
  EXPECT_EQ(parse_rendezvous("inproc://a-b_c.1").name, "a-b_c.1");
  EXPECT_EQ(parse_rendezvous("inproc://a").kind, RendezvousKind::inproc);
  EXPECT_EQ(parse_rendezvous("local://a").kind, RendezvousKind::local);
  EXPECT_EQ(parse_rendezvous("file:///tmp/a b").name, "/tmp/a b");
  EXPECT_EQ(parse_rendezvous("file:///tmp/a").kind, RendezvousKind::file);
  const RendezvousAddress tcp = parse_rendezvous("tcp://node7.example.org:29500");
  EXPECT_EQ(tcp.kind, RendezvousKind::tcp);
  EXPECT_EQ(tcp.name, "node7.example.org");
  EXPECT_EQ(tcp.port, 29500);
  EXPECT_EQ(parse_rendezvous("tcp://[fe80::1]:1").name, "fe80::1");
  EXPECT_EQ(parse_rendezvous("tcp://[fe80::1]:65535").port, 65535);
}

struct BadUri {
  std::string_view uri;
  const char* why;
};

TEST(ParseRendezvous, SaysWhatIsWrongAndWhatIsAllowed) {
  const BadUri bad[] = {
      {"", "no \"://\""},
      {"name", "no \"://\""},
      {"http://host:80", "unknown word"},
      {"inproc://", "no name"},
      {"local://a/b", "characters other than"},
      {"file://relative", "absolute path"},
      {"file:///folder/", "names a folder"},
      {"tcp://host", "no port"},
      {"tcp://:1", "no host"},
      {"tcp://host:", "the port \"\""},
      {"tcp://host:0", "from 1 to 65535"},
      {"tcp://host:65536", "from 1 to 65535"},
      {"tcp://host:12x", "the port \"12x\""},
      {"tcp://::1:5", "[..] around it"},
      {"tcp://[::1]5", "]:PORT"},
      {"tcp://[::1", "]:PORT"},
      {"inproc://\x1b[31m", "\"inproc://?[31m\""},
  };
  for (const BadUri& each : bad) {
    try {
      parse_rendezvous(each.uri);
      ADD_FAILURE() << each.uri << " was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_THAT(error.what(), HasSubstr(each.why));
      EXPECT_THAT(error.what(), HasSubstr("tcp://HOST:PORT"));
    }
  }
  const std::string long_name = "local://" + std::string(65, 'x');
  EXPECT_THROW(parse_rendezvous(long_name), Error);
  EXPECT_NO_THROW(parse_rendezvous(long_name.substr(0, long_name.size() - 1)));
}

}  // namespace
}  // namespace moebus::transport
