#include "transport/stream_frame.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "moebus/types.hpp"

namespace moebus::transport {
namespace {

using ::testing::HasSubstr;

TEST(FrameHeader, ComesBackAsItWasMade) {
  const ParsedHeader parsed = parse_frame_header(make_frame_header(FrameType::values, 0x01020304), kMaxAnswerBytes);
  EXPECT_EQ(parsed.error, "");
  EXPECT_EQ(parsed.type, FrameType::values);
  EXPECT_EQ(parsed.payload_bytes, 0x01020304U);
}

TEST(FrameHeader, IsRefusedWithWrongMagicVersionTypeOrSize) {
  const auto error_with = [](std::size_t at, char value) {
    FrameHeader header = make_frame_header(FrameType::hello, 100);
    header[at] = value;
    return parse_frame_header(header, 100).error;
  };
  EXPECT_EQ(error_with(8, 100), "");
  EXPECT_THAT(error_with(0, 'X'), HasSubstr("not of moebus"));
  EXPECT_THAT(error_with(4, 2), HasSubstr("store protocol 2"));
  EXPECT_THAT(error_with(6, 0), HasSubstr("type 0"));
  EXPECT_THAT(error_with(6, 12), HasSubstr("type 12"));
  EXPECT_THAT(error_with(8, 101), HasSubstr("101 bytes where at most 100"));
  EXPECT_THAT(error_with(11, '\x7F'), HasSubstr("at most 100"));
}

TEST(PayloadReader, ReadsWhatWasWrittenAndKnowsWhenAllIsRead) {
  const std::string payload = PayloadWriter().number(7).size(0x0102030405060708).bytes("ab").raw("c").take();
  PayloadReader reader(payload);
  EXPECT_EQ(reader.number(), 7U);
  EXPECT_EQ(reader.size(), 0x0102030405060708U);
  EXPECT_EQ(reader.bytes(), "ab");
  EXPECT_FALSE(reader.is_done());
  EXPECT_EQ(reader.raw(1), "c");
  EXPECT_TRUE(reader.is_done());
}

TEST(PayloadReader, GivesNothingBeyondTheEndAndStaysBad) {
  const std::string payload = PayloadWriter().number(1'000'000).raw("short").take();
  PayloadReader reader(payload);
  EXPECT_EQ(reader.bytes(), "");
  EXPECT_FALSE(reader.is_good());
  EXPECT_EQ(reader.raw(1), "");
  EXPECT_EQ(reader.number(), 0U);
  EXPECT_FALSE(reader.is_done());
}

TEST(Hello, ComesBackAndIsRefusedAtEveryOtherLength) {
  const Hello hello{"1.2.3", 5, 8, random_nonce()};
  const std::string payload = to_payload(hello);
  const auto parsed = parse_hello(payload);
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->version, "1.2.3");
  EXPECT_EQ(parsed->rank, 5);
  EXPECT_EQ(parsed->num_ranks, 8);
  EXPECT_EQ(parsed->nonce, hello.nonce);
  for (std::size_t size = 0; size < payload.size(); ++size) EXPECT_FALSE(parse_hello(payload.substr(0, size)));
  EXPECT_FALSE(parse_hello(payload + "x"));
}

TEST(StoreFailurePayload, ComesBackAndRefusesUnknownCodes) {
  const auto parsed = parse_failure(to_payload(StoreFailure{ErrorCode::peer_lost, -1, "text"}));
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->code, ErrorCode::peer_lost);
  EXPECT_EQ(parsed->origin_rank, -1);
  EXPECT_EQ(parsed->message, "text");
  EXPECT_FALSE(parse_failure(PayloadWriter().number(0).number(0).bytes("").take()));
  EXPECT_FALSE(parse_failure(PayloadWriter().number(99).number(0).bytes("").take()));
}

TEST(StoreFailurePayload, RefusesAnOriginThatIsNoRank) {
  for (const int rank : {-2, kMaxRanks, 1'000'000}) {
    EXPECT_FALSE(parse_failure(to_payload(StoreFailure{ErrorCode::peer_lost, rank, "text"}))) << rank;
  }
}

TEST(DepositPayload, ComesBackAndIsRefusedIfSomethingIsTooLong) {
  const auto payload = [](std::size_t step_bytes, std::size_t value_bytes) {
    return PayloadWriter().bytes(std::string(step_bytes, 's')).bytes(std::string(value_bytes, 'v')).take();
  };
  const auto parsed = parse_deposit(payload(256, 3));
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->step, std::string(256, 's'));
  EXPECT_EQ(parsed->value, "vvv");
  EXPECT_TRUE(parse_deposit(payload(0, Store::kMaxMessageBytes)));
  EXPECT_FALSE(parse_deposit(payload(257, 3)));
  EXPECT_FALSE(parse_deposit(payload(0, Store::kMaxMessageBytes + 1)));
  EXPECT_FALSE(parse_deposit(payload(1, 3) + "x"));
  EXPECT_FALSE(parse_deposit(payload(1, 3).substr(0, 8)));
}

TEST(ValuesPayload, ComesBackAndIsRefusedInAnotherNumberOrTooLong) {
  const std::vector<std::string> values{"", "a", std::string(1000, 'b')};
  const std::string payload = to_payload(values);
  EXPECT_EQ(parse_values(payload, 3), values);
  EXPECT_FALSE(parse_values(payload, 2));
  EXPECT_FALSE(parse_values(payload, 4));
  EXPECT_FALSE(parse_values(payload + "x", 3));
  EXPECT_FALSE(parse_values(payload.substr(0, payload.size() - 1), 3));
  EXPECT_FALSE(parse_values(to_payload(std::vector{std::string(Store::kMaxMessageBytes + 1, 'v')}), 1));
}

TEST(RanksPayload, ComesBack) { EXPECT_EQ(parse_ranks(ranks_to_payload({3, 5, 63})), (std::vector<int>{3, 5, 63})); }

TEST(RanksPayload, LeavesOutWhatIsNoRankAndEndsWhereAGroupDoes) {
  EXPECT_EQ(parse_ranks(ranks_to_payload({3, 64, -1, 5})), (std::vector<int>{3, 5}));
  EXPECT_EQ(parse_ranks(ranks_to_payload(std::vector<int>(1000, 1))).size(), std::size_t{kMaxRanks});
  EXPECT_EQ(parse_ranks(ranks_to_payload({3}) + "xy"), std::vector<int>{3});
}

TEST(Printable, ReplacesWhatATerminalWouldObeyAndCutsLongText) {
  EXPECT_EQ(printable("a\x1b[1m\n\xC3z"), "a?[1m??z");
  EXPECT_EQ(printable(std::string(1000, 'x')).size(), 512U);
}

}  // namespace
}  // namespace moebus::transport
