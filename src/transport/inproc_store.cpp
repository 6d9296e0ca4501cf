#include "transport/inproc_store.hpp"

#include <fmt/format.h>

#include <array>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "base/assert.hpp"
#include "base/math.hpp"
#include "moebus/error.hpp"
#include "transport/rank_text.hpp"
#include "transport/store_checks.hpp"
#include "transport/store_failure.hpp"

namespace moebus::transport {
namespace {

using base::idx;

/// One all_gather in progress. Two of them take turns: a rank enters round r + 2 only after round r + 1 was complete,
/// that is after every rank had left round r.
struct Round {
  std::vector<std::optional<std::string>> values;
  std::vector<std::string> steps;
  int num_values = 0;
};

/// What the threads of one group share.
class Meeting {
 public:
  Meeting(std::string name, int num_ranks) : name_(std::move(name)), num_ranks_(num_ranks), seats_(idx(num_ranks)) {}

  /// True if a newcomer still belongs to this meeting and not to the next one under its name.
  [[nodiscard]] bool is_open() {
    const std::lock_guard lock(mutex_);
    return num_seated_ < num_ranks_ && !is_complete_ && !failure_;
  }

  [[nodiscard]] bool is_held(int rank) {
    const std::lock_guard lock(mutex_);
    return rank < num_ranks_ && seats_[idx(rank)] == Seat::taken;
  }

  [[nodiscard]] int num_ranks() const noexcept { return num_ranks_; }

  void take_seat(int rank) {
    const std::lock_guard lock(mutex_);
    seats_[idx(rank)] = Seat::taken;
    is_complete_ = ++num_seated_ == num_ranks_;
    changed_.notify_all();
  }

  void leave_seat(int rank) {
    const std::lock_guard lock(mutex_);
    seats_[idx(rank)] = is_complete_ ? Seat::left : Seat::empty;
    --num_seated_;
    changed_.notify_all();
  }

  void fail(StoreFailure failure) {
    const std::lock_guard lock(mutex_);
    fail_locked(std::move(failure));
  }

  void wait_for_all(int rank, const base::Deadline& deadline) {
    std::unique_lock lock(mutex_);
    while (!is_complete_ && !failure_) {
      if (changed_.wait_until(lock, deadline.end()) == std::cv_status::timeout && !is_complete_ && !failure_) {
        fail_locked({ErrorCode::timeout, rank, late_text(rank, "meet", empty_seats(), deadline)});
      }
    }
    if (failure_) failure_->raise();
  }

  std::vector<std::string> gather(int rank,
                                  std::uint64_t round_idx,
                                  std::string_view what,
                                  std::string_view value,
                                  const base::Deadline& deadline) {
    std::unique_lock lock(mutex_);
    if (failure_) failure_->raise();
    Round& round = rounds_[round_idx % rounds_.size()];
    if (round.num_values == num_ranks_ || round.values.empty()) round = empty_round();
    round.values[idx(rank)] = std::string(value);
    round.steps[idx(rank)] = std::string(what);
    ++round.num_values;
    changed_.notify_all();
    while (round.num_values < num_ranks_ && !failure_) {
      if (const int lost = lost_rank(round); lost >= 0) {
        fail_locked({ErrorCode::peer_lost, rank, lost_text(lost, what)});
      } else if (changed_.wait_until(lock, deadline.end()) == std::cv_status::timeout &&
                 round.num_values < num_ranks_ && !failure_) {
        fail_locked({ErrorCode::timeout, rank, late_text(rank, what, missing(round), deadline)});
      }
    }
    if (round.num_values < num_ranks_) failure_->raise();
    check_same_step(round.steps);
    std::vector<std::string> values;
    values.reserve(round.values.size());
    for (const auto& each : round.values) values.push_back(*each);
    return values;
  }

 private:
  enum class Seat : std::uint8_t { empty, taken, left };

  [[nodiscard]] Round empty_round() const {
    Round round;
    round.values.resize(idx(num_ranks_));
    round.steps.resize(idx(num_ranks_));
    return round;
  }

  void fail_locked(StoreFailure failure) {
    if (!failure_) failure_ = std::move(failure);
    changed_.notify_all();
  }

  [[nodiscard]] std::vector<int> empty_seats() const {
    std::vector<int> ranks;
    for (int rank = 0; rank < num_ranks_; ++rank) {
      if (seats_[idx(rank)] != Seat::taken) ranks.push_back(rank);
    }
    return ranks;
  }

  [[nodiscard]] std::vector<int> missing(const Round& round) const {
    std::vector<int> ranks;
    for (int rank = 0; rank < num_ranks_; ++rank) {
      if (!round.values[idx(rank)]) ranks.push_back(rank);
    }
    return ranks;
  }

  [[nodiscard]] int lost_rank(const Round& round) const {
    for (int rank = 0; rank < num_ranks_; ++rank) {
      if (!round.values[idx(rank)] && seats_[idx(rank)] == Seat::left) return rank;
    }
    return -1;
  }

  [[nodiscard]] std::string late_text(int rank,
                                      std::string_view what,
                                      const std::vector<int>& ranks,
                                      const base::Deadline& deadline) const {
    return late_ranks_text(rank, what, "inproc://" + name_, ranks, deadline.waited());
  }

  [[nodiscard]] std::string lost_text(int lost, std::string_view what) const {
    return fmt::format("rank {} left inproc://{} while the others were at step \"{}\"", lost, name_, what);
  }

  const std::string name_;
  const int num_ranks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Seat> seats_;
  int num_seated_ = 0;
  bool is_complete_ = false;  ///< all were there once
  std::optional<StoreFailure> failure_;
  std::array<Round, 2> rounds_;
};

/// Keeps a rank's seat while it lives.
class Membership {
 public:
  Membership(std::shared_ptr<Meeting> meeting, int rank) : meeting_(std::move(meeting)), rank_(rank) {
    meeting_->take_seat(rank_);
  }

  Membership(Membership&& other) noexcept = default;
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;
  Membership& operator=(Membership&&) = delete;

  ~Membership() {
    if (meeting_ != nullptr) meeting_->leave_seat(rank_);
  }

  [[nodiscard]] Meeting& meeting() const noexcept { return *meeting_; }

  [[nodiscard]] int rank() const noexcept { return rank_; }

 private:
  std::shared_ptr<Meeting> meeting_;
  int rank_;
};

/// Where names are looked up. An entry lives as long as a member of its meeting.
class Registry {
 public:
  /// Leaked on purpose: members may leave during static destruction.
  static Registry& instance() {
    static auto* registry = new Registry;
    return *registry;
  }

  Membership enter(std::string_view name, int rank, int num_ranks) {
    const std::lock_guard lock(mutex_);
    auto& entry = meetings_[std::string(name)];
    std::shared_ptr<Meeting> meeting = entry.lock();
    if (meeting != nullptr && meeting->is_held(rank)) {
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format("rank {} is at inproc://{} already; give each thread its own rank, or each group its own name",
                      rank,
                      name),
          rank);
    }
    if (meeting == nullptr || !meeting->is_open()) {
      drop_ended();
      meeting = std::make_shared<Meeting>(std::string(name), num_ranks);
      meetings_[std::string(name)] = meeting;
    }
    if (meeting->num_ranks() != num_ranks) {
      const StoreFailure failure{
          ErrorCode::invalid_argument,
          rank,
          fmt::format("the ranks at inproc://{} disagree on their number: rank {} says {}, those "
                      "that came before say {}",
                      name,
                      rank,
                      num_ranks,
                      meeting->num_ranks())};
      meeting->fail(failure);
      failure.raise();
    }
    return {std::move(meeting), rank};
  }

 private:
  void drop_ended() {
    std::erase_if(meetings_, [](const auto& entry) { return entry.second.expired(); });
  }

  std::mutex mutex_;
  std::map<std::string, std::weak_ptr<Meeting>, std::less<>> meetings_;
};

class InprocStore final : public Store {
 public:
  explicit InprocStore(Membership membership) : membership_(std::move(membership)) {}

  [[nodiscard]] int rank() const noexcept override { return membership_.rank(); }

  [[nodiscard]] int num_ranks() const noexcept override { return membership_.meeting().num_ranks(); }

  std::vector<std::string> all_gather(std::string_view what,
                                      std::string_view value,
                                      const base::Deadline& deadline) override {
    check_message_size(rank(), what, value);
    return membership_.meeting().gather(rank(), round_idx_++, what, value, deadline);
  }

 private:
  Membership membership_;
  std::uint64_t round_idx_ = 0;
};

}  // namespace

std::unique_ptr<Store> join_inproc(std::string_view name, int rank, int num_ranks, const base::Deadline& deadline) {
  check_rank(rank, num_ranks);
  Membership membership = Registry::instance().enter(name, rank, num_ranks);
  membership.meeting().wait_for_all(rank, deadline);
  return std::make_unique<InprocStore>(std::move(membership));
}

}  // namespace moebus::transport
