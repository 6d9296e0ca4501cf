// Strangers at the socket where a group meets: whatever they say, or don't, they are turned away, and the group's own
// ranks join and exchange rows. Over TCP, and over the Unix sockets of local:// and file://.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "base/math.hpp"
#include "moebus/moebus.hpp"
#include "tests/support/ranks.hpp"
#include "transport/rendezvous_file.hpp"
#include "transport/stream_frame.hpp"
#include "transport/stream_socket.hpp"

namespace moebus {
namespace {

using base::idx;
using std::chrono_literals::operator""ms;
using std::chrono_literals::operator""s;
using ::testing::HasSubstr;
using transport::FrameType;
using transport::StreamAddress;

constexpr int kNumRanks = 3;
constexpr const char* kToken = "secret";

enum class Meeting { tcp, local, file };

std::string to_string(Meeting meeting) {
  return meeting == Meeting::tcp ? "Tcp" : meeting == Meeting::local ? "Local" : "File";
}

int free_port() {
  const base::UniqueFd probe(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  // The socket interface takes every family through a pointer to sockaddr.
  EXPECT_EQ(::bind(probe.get(), reinterpret_cast<const sockaddr*>(&address), size), 0);
  EXPECT_EQ(::getsockname(probe.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  return ntohs(address.sin_port);
}

GroupOptions options_with(const std::string& token) {
  GroupOptions options;
  options.token = token;
  options.show_progress = false;
  options.join_limit = 30s;
  return options;
}

/// Every rank sends one row, made of its own number, to the expert of every rank.
void expect_rows_of_everybody(const Group& group) {
  ExchangeConfig config;
  config.num_experts = kNumRanks;
  config.num_topk = kNumRanks;
  config.hidden = 16;
  config.dtype = DType::f32;
  config.combine_dtype = DType::f32;
  config.max_tokens_per_rank = 1;
  Exchange exchange(group, config);
  exchange.prepare();
  const std::vector<float> row(16, static_cast<float>(group.rank()));
  const std::vector<std::int32_t> experts{0, 1, 2};
  DispatchInput input;
  input.tokens = tensor_2d(row.data(), DType::f32, 1, 16);
  input.topk_idx = tensor_2d(experts.data(), DType::i32, 1, kNumRanks);
  const DispatchResult result = exchange.dispatch(input);
  ASSERT_EQ(result.num_rows, kNumRanks);
  for (int src = 0; src < kNumRanks; ++src) {
    float value = -1.0F;
    std::memcpy(&value, result.tokens.data + src * 16 * static_cast<int>(sizeof(float)), sizeof value);
    EXPECT_EQ(value, static_cast<float>(src));
  }
}

class Strangers : public ::testing::TestWithParam<Meeting> {
 protected:
  void SetUp() override {
    switch (GetParam()) {
      case Meeting::tcp:
        address_.host = "127.0.0.1";
        address_.port = free_port();
        uri_ = transport::to_string(address_);
        return;
      case Meeting::local: {
        const std::string name = "strangers-" + std::to_string(::getpid());
        address_.local_name = "moebus-" + std::to_string(::geteuid()) + "-" + name;
        uri_ = "local://" + name;
        return;
      }
      case Meeting::file:
        path_ = ::testing::TempDir() + "moebus-strangers-" + std::to_string(::getpid());
        uri_ = "file://" + path_;
        return;
    }
  }

  /// Connects as soon as rank 0 listens and has room; closed if that takes too long.
  base::UniqueFd connect() {
    const base::Deadline deadline(20s);
    while (!deadline.is_over()) {
      if (GetParam() == Meeting::file) address_.local_name = transport::read_rendezvous_file(path_).value_or("");
      if (GetParam() == Meeting::tcp || !address_.local_name.empty()) {
        base::UniqueFd socket = connect_stream(address_, true, deadline).socket;
        if (socket.is_open()) return socket;
      }
      std::this_thread::sleep_for(1ms);
    }
    ADD_FAILURE() << "rank 0 does not listen";
    return {};
  }

  /// Rank 0 waits; `strangers` are there first and stay until the group has met and exchanged rows. The other ranks
  /// come when `strangers` calls its argument.
  void expect_group_works_despite(const std::function<void(const std::function<void()>& let_ranks_come)>& strangers) {
    std::atomic<bool> may_come = false;
    std::atomic<int> num_done = 0;
    const auto outcomes = tests::run_as_threads(kNumRanks + 1, [&](int thread) {
      if (thread == kNumRanks) {
        strangers([&] { may_come = true; });
        may_come = true;
        while (num_done < kNumRanks) std::this_thread::sleep_for(1ms);
        return;
      }
      const auto is_done = [&] { ++num_done; };
      try {
        while (thread != 0 && !may_come) std::this_thread::sleep_for(1ms);
        const Group group = Group::join(uri_, thread, kNumRanks, options_with(kToken));
        expect_rows_of_everybody(group);
      } catch (...) {
        is_done();
        throw;
      }
      is_done();
    });
    EXPECT_TRUE(tests::all_ok(outcomes));
  }

  StreamAddress address_;
  std::string uri_;
  std::string path_;
};

void say(const base::UniqueFd& socket, std::string_view text) {
  // Who has been turned away already may not be heard to the end.
  static_cast<void>(::send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL));
}

/// Returns what comes until the other side closes.
std::string hear(const base::UniqueFd& socket) {
  std::string text;
  char buffer[512];
  pollfd poll{socket.get(), POLLIN, 0};
  while (::poll(&poll, 1, 20'000) == 1) {
    const ssize_t num = ::recv(socket.get(), buffer, sizeof buffer, 0);
    if (num <= 0) return text;
    text.append(buffer, idx(num));
  }
  ADD_FAILURE() << "the connection was not closed";
  return text;
}

std::string frame(FrameType type, std::string_view payload, std::size_t claimed_bytes) {
  const transport::FrameHeader header = transport::make_frame_header(type, claimed_bytes);
  return std::string(header.data(), header.size()).append(payload);
}

std::string greeting() {
  const std::string payload =
      to_payload(transport::Hello{transport::library_version(), 1, kNumRanks, transport::random_nonce()});
  return frame(FrameType::hello, payload, payload.size());
}

std::string tls_greeting() {
  std::string text("\x16\x03\x01\x00\xC8\x01\x00\x00\xC4\x03\x03", 11);
  text.append(32, '\x55').append(1, '\x20').append(32, '\x66').append("\x00\x02\x13\x01\x01\x00\x00\x79", 8);
  return text.append(121, '\0');
}

TEST_P(Strangers, AreTurnedAwayWhateverTheySay) {
  std::string garbage(60'000, '\0');
  for (std::size_t i = 0; i < garbage.size(); ++i) garbage[i] = static_cast<char>(i * 2654435761U >> 13);
  expect_group_works_despite([&](const auto&) {
    for (const std::string& text : {std::string("GET / HTTP/1.1\r\nHost: here\r\n\r\n"),
                                    tls_greeting(),
                                    garbage,
                                    std::string(4096, '\0'),
                                    frame(FrameType::hello, "", 0xFFFFFFFF),
                                    frame(FrameType::value, "step", 4),
                                    frame(FrameType::hello, std::string(1024, '\xFF'), 1024)}) {
      const base::UniqueFd stranger = connect();
      say(stranger, text);
      EXPECT_FALSE(hear(stranger).empty()) << "it was not told why";
    }
  });
}

TEST_P(Strangers, ThatGuessTheTokenAreTurnedAway) {
  expect_group_works_despite([&](const auto&) {
    const base::UniqueFd stranger = connect();
    say(stranger, greeting());
    say(stranger, frame(FrameType::proof, std::string(32, 'x'), 32));
    EXPECT_THAT(hear(stranger), HasSubstr("token is not that of rank 0"));
    for (const char* const token : {"", "Secret", "secret "}) {
      // A loopback address: without any token the wrong rank gets as far as the door.
      try {
        Group::join(uri_, 1, kNumRanks, options_with(token));
        ADD_FAILURE() << "token '" << token << "' was taken";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::invalid_argument) << error.what();
        EXPECT_THAT(error.what(), HasSubstr("GroupOptions::token"));
      }
    }
  });
}

TEST_P(Strangers, ThatCloseAtOnceDoNoHarm) {
  expect_group_works_despite([&](const auto&) {
    for (std::size_t i = 0; i < 60; ++i) {
      const base::UniqueFd stranger = connect();
      if (i % 2 != 0) say(stranger, greeting().substr(0, i));
    }
  });
}

TEST_P(Strangers, ThatStopInTheMiddleOfAFrameHoldNobodyUp) {
  std::vector<base::UniqueFd> silent;
  expect_group_works_despite([&](const auto&) {
    for (const std::size_t length :
         {std::size_t{0}, std::size_t{1}, std::size_t{11}, std::size_t{12}, std::size_t{40}}) {
      silent.push_back(connect());
      say(silent.back(), greeting().substr(0, length));
    }
    silent.push_back(connect());
    say(silent.back(), greeting());  // and then no proof
  });
}

TEST_P(Strangers, ThatSpeakOneByteAtATimeHoldNobodyUp) {
  expect_group_works_despite([&](const auto& let_ranks_come) {
    const base::UniqueFd slow = connect();
    const std::string text = greeting();
    for (std::size_t i = 0; i < text.size(); ++i) {
      say(slow, text.substr(i, 1));
      if (i == 3) let_ranks_come();
      std::this_thread::sleep_for(2ms);
    }
  });
}

/// Lets this process open `wanted` descriptors if it may.
bool can_open(rlim_t wanted) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return false;
  if (limit.rlim_cur >= wanted) return true;
  if (limit.rlim_max < wanted) return false;
  limit.rlim_cur = wanted;
  return ::setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

TEST_P(Strangers, InAThousandConnectionsPushOutThemselvesOnly) {
  if (!can_open(2500)) GTEST_SKIP() << "this process may not open enough descriptors";
  std::vector<base::UniqueFd> crowd;
  expect_group_works_despite([&](const auto&) {
    for (int i = 0; i < 1000; ++i) crowd.push_back(connect());
  });
  EXPECT_EQ(crowd.size(), 1000U);
}

INSTANTIATE_TEST_SUITE_P(EveryMeeting,
                         Strangers,
                         ::testing::Values(Meeting::tcp, Meeting::local, Meeting::file),
                         [](const auto& test) { return to_string(test.param); });

}  // namespace
}  // namespace moebus
