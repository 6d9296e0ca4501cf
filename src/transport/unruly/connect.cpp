#include "transport/unruly/connect.hpp"

#include <fmt/format.h>

#include <charconv>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "base/assert.hpp"
#include "base/math.hpp"
#include "moebus/error.hpp"
#include "transport/region_table.hpp"
#include "transport/unruly/held_traffic.hpp"

namespace moebus::transport {
namespace {

using base::idx;

constexpr std::chrono::milliseconds kLookInterval{1};  // of the thread that looks after what is overdue

class UnrulyTransport final : public Transport {
 public:
  UnrulyTransport(std::unique_ptr<Transport> inner, int rank, std::uint64_t seed, Fences fences)
      : inner_(std::move(inner)),
        name_(fmt::format("unruly {}", inner_->name())),
        rank_(rank),
        seed_(seed),
        fences_(fences),
        caretaker_([this] { look_after_overdue(); }) {}

  ~UnrulyTransport() override {
    {
      const std::lock_guard lock(mutex_);
      is_over_ = true;
    }
    changed_.notify_one();
    caretaker_.join();
    release_all();
  }

  UnrulyTransport(const UnrulyTransport&) = delete;
  UnrulyTransport& operator=(const UnrulyTransport&) = delete;

  [[nodiscard]] std::string_view name() const noexcept override { return name_; }

  /// Peers may wait for what is held here before they register, so nothing stays held.
  Registration register_memory(std::size_t size_bytes, const base::Deadline& deadline) override {
    {
      const std::lock_guard lock(mutex_);
      release_all();
    }
    Registration registration = inner_->register_memory(size_bytes, deadline);
    const std::lock_guard lock(mutex_);
    regions_.add(registration);
    for (std::size_t peer = traffic_.size(); peer < registration.peers.size(); ++peer) {
      std::seed_seq mixed{seed_, seed_ >> 32, std::uint64_t(rank_), std::uint64_t(peer)};
      traffic_.emplace_back(std::mt19937_64(mixed)());
    }
    return registration;
  }

  void deregister(const Registration& registration) noexcept override {
    const std::lock_guard lock(mutex_);
    release_all();
    regions_.remove(registration.id);
    inner_->deregister(registration);
  }

  /// As above: nothing stays held.
  std::vector<base::UniqueFd> exchange_descriptors(int descriptor, const base::Deadline& deadline) override {
    {
      const std::lock_guard lock(mutex_);
      release_all();
    }
    return inner_->exchange_descriptors(descriptor, deadline);
  }

  void put(int peer, const RemoteAddress& sink, const std::byte* source, std::size_t size_bytes) noexcept override {
    const std::lock_guard lock(mutex_);
    hold_put(peer, sink, source, size_bytes);
    take_step();
  }

  void put_signal(int peer,
                  const RemoteAddress& sink,
                  const std::byte* source,
                  std::size_t size_bytes,
                  const RemoteAddress& slot,
                  sync::Word value) noexcept override {
    const std::lock_guard lock(mutex_);
    MOEBUS_ASSERT(slot.offset_bytes % sizeof(sync::Word) == 0);
    Parcel signal = hold_put(peer, sink, source, size_bytes);
    signal.is_signal = true;
    signal.sink = slot;
    signal.value = value;
    if (regions_.find(slot, sizeof(sync::Word)) != nullptr) traffic_[idx(peer)].add(std::move(signal), now());
    take_step();
  }

  void fence(int peer) noexcept override {
    const std::lock_guard lock(mutex_);
    MOEBUS_ASSERT(peer >= 0 && idx(peer) < traffic_.size());
    if (fences_ == Fences::kept) traffic_[idx(peer)].fence();
    take_step();
  }

  [[nodiscard]] std::uint64_t num_started() const noexcept override {
    const std::lock_guard lock(mutex_);
    return num_started_;
  }

  /// Takes copies, and holds these: who takes flush for arrival is in error.
  [[nodiscard]] bool flush(std::uint64_t ticket, const base::Deadline&) noexcept override {
    const std::lock_guard lock(mutex_);
    MOEBUS_ASSERT(ticket <= num_started_);
    for (HeldTraffic& traffic : traffic_) traffic.copy_sources(ticket);
    take_step();
    return true;
  }

  void progress() noexcept override {
    const std::lock_guard lock(mutex_);
    take_step();
  }

  [[nodiscard]] PeerStatus peer_status(int peer) const noexcept override { return inner_->peer_status(peer); }

  void close() noexcept override {
    const std::lock_guard lock(mutex_);
    release_all();
    inner_->close();
  }

 private:
  [[nodiscard]] Moment now() const noexcept { return {base::Clock::now(), num_calls_}; }

  /// Returns what the put's signal has in common with it.
  Parcel hold_put(int peer, const RemoteAddress& sink, const std::byte* source, std::size_t size_bytes) noexcept {
    MOEBUS_ASSERT(peer >= 0 && idx(peer) < traffic_.size());
    Parcel whole;
    whole.ticket = ++num_started_;
    whole.num_pieces_left = std::make_shared<std::size_t>(0);
    if (size_bytes == 0 || regions_.find(sink, size_bytes) == nullptr) return whole;
    MOEBUS_ASSERT(regions_.owns(source, size_bytes));
    whole.sink = sink;
    whole.source = source;
    whole.size_bytes = size_bytes;
    traffic_[idx(peer)].add_pieces(whole, now());
    return whole;
  }

  void take_step() noexcept {
    ++num_calls_;
    bool is_any_held = false;
    for (std::size_t peer = 0; peer < traffic_.size(); ++peer) {
      if (traffic_[peer].is_empty()) continue;
      traffic_[peer].release_some(now(), deliver_to(peer));
      is_any_held = is_any_held || !traffic_[peer].is_empty();
    }
    if (is_any_held && !std::exchange(is_any_held_, true)) changed_.notify_one();
  }

  void release_all() noexcept {
    for (std::size_t peer = 0; peer < traffic_.size(); ++peer) traffic_[peer].release_all(deliver_to(peer));
  }

  HeldTraffic::Deliver deliver_to(std::size_t peer) {
    return [this, to = static_cast<int>(peer)](const Parcel& parcel) {
      if (parcel.is_signal) {
        inner_->fence(to);
        inner_->put_signal(to, {}, nullptr, 0, parcel.sink, parcel.value);
      } else {
        inner_->put(to, parcel.sink, parcel.source, parcel.size_bytes);
        // The source may be a copy that ends with the parcel.
        MOEBUS_ASSERT(inner_->flush(inner_->num_started(), base::Deadline(std::chrono::seconds(1))));
      }
    };
  }

  void look_after_overdue() {
    std::unique_lock lock(mutex_);
    while (!is_over_) {
      if (!is_any_held_) {
        changed_.wait(lock, [&] { return is_over_ || is_any_held_; });
        continue;
      }
      changed_.wait_for(lock, kLookInterval);
      is_any_held_ = false;
      for (std::size_t peer = 0; peer < traffic_.size(); ++peer) {
        if (!traffic_[peer].is_empty()) traffic_[peer].release_overdue(now(), deliver_to(peer));
        is_any_held_ = is_any_held_ || !traffic_[peer].is_empty();
      }
    }
  }

  const std::unique_ptr<Transport> inner_;
  const std::string name_;
  const int rank_;
  const std::uint64_t seed_;
  const Fences fences_;
  mutable std::mutex mutex_;  ///< over everything below, and over calls of `inner_` that move bytes
  std::condition_variable changed_;
  RegionTable regions_;
  std::vector<HeldTraffic> traffic_;  ///< [num_ranks], empty before memory is registered
  std::uint64_t num_started_ = 0;
  std::uint64_t num_calls_ = 0;
  bool is_any_held_ = false;
  bool is_over_ = false;
  std::thread caretaker_;  ///< last: it uses all the others
};

}  // namespace

std::optional<UnrulyChoice> parse_unruly(std::string_view name) {
  const std::size_t colon = name.find(':');
  const std::string_view kind = name.substr(0, colon);
  if (kind != "unruly" && kind != "unruly-nofence") return std::nullopt;
  UnrulyChoice choice;
  choice.fences = kind == "unruly" ? Fences::kept : Fences::ignored;
  const std::string_view seed = colon == std::string_view::npos ? std::string_view() : name.substr(colon + 1);
  const auto [end, error] = std::from_chars(seed.data(), seed.data() + seed.size(), choice.seed);
  if (error != std::errc() || end != seed.data() + seed.size()) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format(
            "'{}' names an unruly transport with seed '{}'; write {}:SEED with a number below 2^64", name, seed, kind));
  }
  return choice;
}

std::unique_ptr<Transport> make_unruly(std::unique_ptr<Transport> inner, int rank, std::uint64_t seed, Fences fences) {
  return std::make_unique<UnrulyTransport>(std::move(inner), rank, seed, fences);
}

}  // namespace moebus::transport
