#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/log.hpp"
#include "base/math.hpp"
#include "transport/rank_text.hpp"
#include "transport/store_checks.hpp"
#include "transport/stream_channel.hpp"
#include "transport/stream_door.hpp"
#include "transport/stream_store.hpp"

namespace moebus::transport {
namespace {

using base::idx;

constexpr int kHubRank = 0;
constexpr std::chrono::milliseconds kTick{20};
constexpr std::chrono::milliseconds kFarewellLimit{300};  // to tell the others why the store ended
constexpr std::chrono::seconds kProgressInterval{5};      // between lines that name the missing ranks

/// Tells the log and the ranks that wait who is missing.
class Progress {
 public:
  Progress(std::string_view what, const std::string& where, bool show, const base::Deadline& deadline)
      : what_(what), where_(where), show_(show), deadline_(deadline), next_(base::Clock::now() + kProgressInterval) {}

  /// Logs a line if it is time for one: the first says info, later ones warn.
  void show(const std::vector<int>& missing) {
    if (!show_ || base::Clock::now() < next_) return;
    next_ = base::Clock::now() + kProgressInterval;
    base::log().log(num_lines_++ == 0 ? spdlog::level::info : spdlog::level::warn,
                    "rank 0 has waited {} at {}, step \"{}\", for {}; it gives up in {}",
                    show_seconds(deadline_.waited()),
                    where_,
                    what_,
                    list_ranks(missing),
                    show_seconds(deadline_.left()));
  }

  /// Returns true if the ranks that are there do not know yet that these are missing.
  bool is_news(const std::vector<int>& missing, std::size_t num_listeners) {
    const bool is_new = !missing.empty() && (missing != told_ || num_listeners != num_told_);
    told_ = missing;
    num_told_ = num_listeners;
    return is_new;
  }

 private:
  std::string_view what_;
  const std::string& where_;
  bool show_;
  const base::Deadline& deadline_;
  base::Clock::time_point next_;
  int num_lines_ = 0;
  std::vector<int> told_;
  std::size_t num_told_ = 0;
};

class StreamHub final : public Store {
 public:
  StreamHub(std::string where, int num_ranks, const JoinOptions& options)
      : where_(std::move(where)),
        num_ranks_(num_ranks),
        show_progress_(options.show_progress),
        members_(idx(num_ranks)) {}

  ~StreamHub() override {
    for (const auto& member : members_) {
      if (member != nullptr) member->close();
    }
  }

  StreamHub(const StreamHub&) = delete;
  StreamHub& operator=(const StreamHub&) = delete;

  void meet(StreamListener listener, const std::string& token, const base::Deadline& deadline) {
    StreamDoor door(io_, std::move(listener), num_ranks_, token);
    Progress progress("meet", where_, show_progress_, deadline);
    const bool are_all_in = drive(io_, deadline, kTick, [&] {
      drop_closed();
      for (Guest& guest : door.let_in([&](int rank) { return is_in(rank); })) {
        members_[idx(guest.rank)] = std::move(guest.channel);
      }
      tell_missing(progress, missing_members(), present_members());
      return missing_members().empty();
    });
    if (!are_all_in) {
      std::string text = late_ranks_text(kHubRank, "meet", where_, missing_members(), deadline.waited());
      // Whoever came and was turned away may be the one that is missed.
      if (!door.last_reason().empty()) text.append("; turned away meanwhile: ").append(door.last_reason());
      fail(ErrorCode::timeout, text);
    }
    for (const auto& member : present_members()) member->send(FrameType::ready, std::string());
    flush("meet", deadline);
    const base::Deadline farewell(kFarewellLimit);
    drive(io_, farewell, kTick, [&] { return !door.has_unsent(); });
  }

  [[nodiscard]] int rank() const noexcept override { return kHubRank; }

  [[nodiscard]] int num_ranks() const noexcept override { return num_ranks_; }

  std::vector<std::string> all_gather(std::string_view what,
                                      std::string_view value,
                                      const base::Deadline& deadline) override {
    check_message_size(kHubRank, what, value);
    if (failure_) failure_->raise();
    std::vector<std::optional<Deposit>> deposits(idx(num_ranks_));
    deposits[kHubRank] = Deposit{std::string(what), std::string(value)};
    collect(what, deposits, deadline);

    std::vector<std::string> steps;
    std::vector<std::string> values;
    for (auto& deposit : deposits) {
      steps.push_back(std::move(deposit->step));
      values.push_back(std::move(deposit->value));
    }
    answer(steps, values);
    flush(what, deadline);
    check_same_step(steps);
    return values;
  }

 private:
  using Members = std::vector<std::shared_ptr<StreamChannel>>;

  [[nodiscard]] bool is_in(int rank) const noexcept { return rank == kHubRank || members_[idx(rank)] != nullptr; }

  [[nodiscard]] std::vector<int> missing_members() const {
    std::vector<int> ranks;
    for (int rank = 0; rank < num_ranks_; ++rank) {
      if (!is_in(rank)) ranks.push_back(rank);
    }
    return ranks;
  }

  [[nodiscard]] Members present_members() const {
    Members present;
    for (const auto& member : members_) {
      if (member != nullptr) present.push_back(member);
    }
    return present;
  }

  /// Before all are in, a rank that went away (started again, perhaps) may come back. One that speaks has given up, and
  /// what it says holds for all: nobody else will come in its place.
  void drop_closed() {
    for (auto& member : members_) {
      if (member == nullptr) continue;
      if (const std::optional<Frame> frame = member->take(); frame && frame->type == FrameType::failed) {
        if (const auto failure = parse_failure(frame->payload)) {
          fail(failure->code, failure->message, failure->origin_rank);
        }
      }
      if (!member->is_open() || member->is_broken()) {
        member->close();
        member.reset();
      }
    }
  }

  void tell_missing(Progress& progress, const std::vector<int>& missing, const Members& listeners) {
    if (missing.empty()) return;
    progress.show(missing);
    if (!progress.is_news(missing, listeners.size())) return;
    const auto payload = std::make_shared<const std::string>(ranks_to_payload(missing));
    for (const auto& listener : listeners) listener->send(FrameType::waiting, payload);
  }

  void collect(std::string_view what, std::vector<std::optional<Deposit>>& deposits, const base::Deadline& deadline) {
    Progress progress(what, where_, show_progress_, deadline);
    const auto missing = [&] {
      std::vector<int> ranks;
      for (int rank = 0; rank < num_ranks_; ++rank) {
        if (!deposits[idx(rank)]) ranks.push_back(rank);
      }
      return ranks;
    };
    // Ranks that come within one tick need not hear of those that have not come yet.
    const auto first_news = base::Clock::now() + kTick;
    const bool are_all_there = drive(io_, deadline, kTick, [&] {
      Members waiting;
      for (int rank = 1; rank < num_ranks_; ++rank) {
        // Who has given a value and speaks again has given up.
        const bool has_news = !deposits[idx(rank)] || members_[idx(rank)]->has_frame();
        if (has_news) deposits[idx(rank)] = take_deposit(rank, what);
        if (deposits[idx(rank)]) waiting.push_back(members_[idx(rank)]);
      }
      const std::vector<int> ranks = missing();
      if (base::Clock::now() >= first_news) tell_missing(progress, ranks, waiting);
      return ranks.empty();
    });
    if (!are_all_there) fail(ErrorCode::timeout, late_ranks_text(kHubRank, what, where_, missing(), deadline.waited()));
  }

  std::optional<Deposit> take_deposit(int rank, std::string_view what) {
    StreamChannel& member = *members_[idx(rank)];
    const std::optional<Frame> frame = member.take();
    if (!frame) {
      if (member.is_broken()) fail(ErrorCode::transport_failure, fmt::format("rank {}: {}", rank, member.reason()));
      if (member.is_open()) return std::nullopt;
      fail(ErrorCode::peer_lost,
           fmt::format("rank {} went away before step \"{}\" ({}); its own log says why", rank, what, member.reason()));
    }
    if (frame->type == FrameType::failed) {
      if (const auto failure = parse_failure(frame->payload))
        fail(failure->code, failure->message, failure->origin_rank);
    }
    std::optional<Deposit> deposit;
    if (frame->type == FrameType::value) deposit = parse_deposit(frame->payload);
    if (!deposit) fail(ErrorCode::transport_failure, fmt::format("rank {} sent something that is not a value", rank));
    return deposit;
  }

  void answer(const std::vector<std::string>& steps, const std::vector<std::string>& values) {
    FrameType type = FrameType::values;
    std::string payload;
    try {
      check_same_step(steps);
      payload = to_payload(values);
    } catch (const Error& error) {
      type = FrameType::refused;
      payload = to_payload(StoreFailure{error.code(), error.origin_rank(), error.what()});
    }
    const auto shared = std::make_shared<const std::string>(std::move(payload));
    for (const auto& member : present_members()) member->send(type, shared);
  }

  /// Waits until all is sent: nobody sends after the call has returned.
  void flush(std::string_view what, const base::Deadline& deadline) {
    const auto slow = [&] {
      std::vector<int> ranks;
      for (int rank = 1; rank < num_ranks_; ++rank) {
        if (members_[idx(rank)]->has_unsent()) ranks.push_back(rank);
      }
      return ranks;
    };
    if (drive(io_, deadline, kTick, [&] { return slow().empty(); })) return;
    fail(ErrorCode::timeout,
         fmt::format("rank 0 waited {} at {}, step \"{}\", for {} to take the answer",
                     show_seconds(deadline.waited()),
                     where_,
                     what,
                     list_ranks(slow())));
  }

  /// Ends the store on all ranks with the same error.
  [[noreturn]] void fail(ErrorCode code, std::string message, int origin_rank = kHubRank) {
    failure_ = StoreFailure{code, origin_rank, std::move(message)};
    const auto payload = std::make_shared<const std::string>(to_payload(*failure_));
    const Members members = present_members();
    for (const auto& member : members) member->send(FrameType::failed, payload);
    const base::Deadline farewell(kFarewellLimit);
    drive(io_, farewell, kTick, [&] {
      return std::none_of(members.begin(), members.end(), [](const auto& member) { return member->has_unsent(); });
    });
    failure_->raise();
  }

  asio::io_context io_{1};
  const std::string where_;
  const int num_ranks_;
  const bool show_progress_;
  Members members_;  ///< [num_ranks], own entry empty
  std::optional<StoreFailure> failure_;
};

}  // namespace

std::unique_ptr<Store> host_stream(StreamListener listener,
                                   int num_ranks,
                                   const JoinOptions& options,
                                   const base::Deadline& deadline) {
  check_rank(kHubRank, num_ranks);
  auto hub = std::make_unique<StreamHub>(listener.where, num_ranks, options);
  hub->meet(std::move(listener), options.token, deadline);
  return hub;
}

}  // namespace moebus::transport
