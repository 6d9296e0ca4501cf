#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include "base/math.hpp"
#include "transport/rank_text.hpp"
#include "transport/store_checks.hpp"
#include "transport/stream_channel.hpp"
#include "transport/stream_store.hpp"

namespace moebus::transport {
namespace {

constexpr std::chrono::milliseconds kTick{50};
constexpr std::chrono::milliseconds kRetryInterval{10};
constexpr std::chrono::milliseconds kFarewellLimit{100};
constexpr int kHubRank = 0;

class StreamClient final : public Store {
 public:
  StreamClient(std::string_view where, int rank, int num_ranks, const JoinOptions& options)
      : where_(where), rank_(rank), num_ranks_(num_ranks), token_(options.token) {}

  ~StreamClient() override {
    if (hub_ != nullptr) hub_->close();
  }

  StreamClient(const StreamClient&) = delete;
  StreamClient& operator=(const StreamClient&) = delete;

  void meet(const LocateHub& locate, const base::Deadline& deadline) {
    std::string problem = "it is not there";
    while (!deadline.is_over()) {
      if (const std::optional<StreamAddress> address = locate()) {
        Connection connection = connect_stream(*address, !token_.empty(), deadline);
        if (!connection.problem.empty()) problem = connection.problem;
        if (connection.socket.is_open() && greet(std::move(connection.socket), problem, deadline)) {
          wait_until_ready(deadline);
          return;
        }
      }
      std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(kRetryInterval, deadline.left()));
    }
    throw Error(ErrorCode::timeout,
                fmt::format("rank {} waited {} for rank 0 at {}: {}; see that rank 0 runs and uses the same address",
                            rank_,
                            show_seconds(deadline.waited()),
                            where_,
                            problem),
                rank_);
  }

  [[nodiscard]] int rank() const noexcept override { return rank_; }

  [[nodiscard]] int num_ranks() const noexcept override { return num_ranks_; }

  std::vector<std::string> all_gather(std::string_view what,
                                      std::string_view value,
                                      const base::Deadline& deadline) override {
    check_message_size(rank_, what, value);
    if (failure_) failure_->raise();
    hub_->send(FrameType::value, PayloadWriter().bytes(what).bytes(value).take());
    const Frame frame = await_answer(what, deadline);
    if (frame.type == FrameType::refused) {
      if (const auto failure = parse_failure(frame.payload)) failure->raise();
    }
    std::optional<std::vector<std::string>> values;
    if (frame.type == FrameType::values) values = parse_values(frame.payload, num_ranks_);
    if (!values) fail(ErrorCode::transport_failure, "rank 0 sent something that is not an answer");
    return *std::move(values);
  }

 private:
  /// Shakes hands; false (and why) if the other side went away, so that it is worth another attempt.
  bool greet(base::UniqueFd socket, std::string& problem, const base::Deadline& deadline) {
    hub_ = std::make_shared<StreamChannel>(io_, std::move(socket));
    hub_->start();
    Hello hello{library_version(), rank_, num_ranks_, random_nonce()};
    ProofContext context;
    const std::string hello_payload = to_payload(hello);
    context.hello = hello_payload;
    context.client_nonce = hello.nonce;
    hub_->send(FrameType::hello, hello_payload);
    const std::optional<Frame> challenge = next_greeting(FrameType::challenge, problem, deadline);
    if (!challenge) return false;
    std::copy(challenge->payload.begin(), challenge->payload.end(), context.hub_nonce.begin());
    hub_->send(FrameType::proof, std::string(as_bytes(make_proof(token_, Prover::client, context))));
    const std::optional<Frame> welcome = next_greeting(FrameType::welcome, problem, deadline);
    if (!welcome) return false;
    if (!is_same_secret(welcome->payload, as_bytes(make_proof(token_, Prover::hub, context)))) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("what listens at {} does not know the group's token; it is not rank 0", where_),
                  rank_);
    }
    hub_->set_max_payload(kMaxAnswerBytes);
    return true;
  }

  std::optional<Frame> next_greeting(FrameType expected, std::string& problem, const base::Deadline& deadline) {
    const bool has_come =
        drive(io_, deadline, kTick, [&] { return hub_->has_frame() || !hub_->is_open() || hub_->is_broken(); });
    if (hub_->is_broken()) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("rank {} cannot join at {}: {}", rank_, where_, printable(hub_->reason())),
                  rank_);
    }
    std::optional<Frame> frame = hub_->take();
    if (!frame) {
      problem = has_come ? "it closed the connection: " + hub_->reason() : "it does not answer";
      return std::nullopt;
    }
    if (frame->type == FrameType::turned_away) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("rank 0 turned rank {} away at {}: {}", rank_, where_, printable(frame->payload)),
                  rank_);
    }
    if (frame->type != expected || frame->payload.size() != sizeof(Nonce)) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("what listens at {} answers out of turn; it is not rank 0 of a group", where_),
                  rank_);
    }
    return frame;
  }

  void wait_until_ready(const base::Deadline& deadline) {
    const Frame frame = await_answer("meet", deadline);
    if (frame.type != FrameType::ready) fail(ErrorCode::transport_failure, "rank 0 answered out of turn");
  }

  /// Returns the next frame that is neither a word on who is missing nor the end of the store.
  Frame await_answer(std::string_view what, const base::Deadline& deadline) {
    missing_ = {kHubRank};
    for (;;) {
      const bool has_come =
          drive(io_, deadline, kTick, [&] { return hub_->has_frame() || !hub_->is_open() || hub_->is_broken(); });
      if (!has_come) fail(ErrorCode::timeout, late_ranks_text(rank_, what, where_, missing_, deadline.waited()));
      std::optional<Frame> frame = hub_->take();
      if (!frame && hub_->is_broken()) fail(ErrorCode::transport_failure, "rank 0: " + hub_->reason());
      if (!frame) {
        fail(ErrorCode::peer_lost,
             fmt::format(
                 "rank 0 went away before step \"{}\" was done ({}); its own log says why", what, hub_->reason()));
      }
      if (frame->type == FrameType::waiting) {
        missing_ = parse_ranks(frame->payload);
      } else if (frame->type == FrameType::failed) {
        failure_ = parse_failure(frame->payload)
                       .value_or(StoreFailure{
                           ErrorCode::transport_failure, kHubRank, "rank 0 ended the store without saying why"});
        failure_->raise();
      } else {
        return std::move(*frame);
      }
    }
  }

  /// Ends the store here, and tells rank 0, which tells the others.
  [[noreturn]] void fail(ErrorCode code, std::string message) {
    failure_ = StoreFailure{code, rank_, std::move(message)};
    hub_->send(FrameType::failed, to_payload(*failure_));
    const base::Deadline farewell(kFarewellLimit);
    drive(io_, farewell, kTick, [&] { return !hub_->has_unsent(); });
    failure_->raise();
  }

  asio::io_context io_{1};
  const std::string where_;
  const int rank_;
  const int num_ranks_;
  const std::string token_;
  std::shared_ptr<StreamChannel> hub_;
  std::vector<int> missing_;
  std::optional<StoreFailure> failure_;
};

}  // namespace

std::unique_ptr<Store> join_stream(const LocateHub& locate,
                                   std::string_view where,
                                   int rank,
                                   int num_ranks,
                                   const JoinOptions& options,
                                   const base::Deadline& deadline) {
  check_rank(rank, num_ranks);
  auto client = std::make_unique<StreamClient>(where, rank, num_ranks, options);
  client->meet(locate, deadline);
  return client;
}

}  // namespace moebus::transport
