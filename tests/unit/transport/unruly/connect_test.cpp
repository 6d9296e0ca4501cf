#include "transport/unruly/connect.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <mutex>
#include <thread>

#include "base/math.hpp"
#include "moebus/error.hpp"
#include "transport/unruly/held_traffic.hpp"

namespace moebus::transport {
namespace {

using base::Deadline;
using base::idx;
using std::chrono_literals::operator""ms;
using std::chrono_literals::operator""s;
using ::testing::HasSubstr;

constexpr int kNumRanks = 3;
constexpr std::size_t kBytes = 8192;
constexpr std::size_t kSlots = 4096;  // offset of the signals
constexpr std::uint64_t kNumSeeds = 60;

/// What came out below: bytes at an offset, a signal at a slot, or that the peers were told of an end.
struct Event {
  enum class Kind : std::uint8_t { bytes, signal, closed } kind = Kind::bytes;
  int peer = -1;
  std::size_t offset_bytes = 0;
  std::string bytes;
  sync::Word value = 0;
};

struct Record {
  std::mutex mutex;
  std::vector<Event> events;

  void add(Event event) {
    const std::lock_guard lock(mutex);
    events.push_back(std::move(event));
  }

  std::vector<Event> take() {
    const std::lock_guard lock(mutex);
    return std::exchange(events, {});
  }

  std::size_t size() {
    const std::lock_guard lock(mutex);
    return events.size();
  }
};

/// Copies at once, into a record.
class RecordingTransport final : public Transport {
 public:
  explicit RecordingTransport(std::shared_ptr<Record> record) : record_(std::move(record)) {}

  [[nodiscard]] std::string_view name() const noexcept override { return "record"; }

  Registration register_memory(std::size_t size_bytes, const Deadline&) override {
    memory_.push_back(std::make_unique<std::vector<std::byte>>(size_bytes));
    return {static_cast<std::uint32_t>(memory_.size() - 1),
            {memory_.back()->data(), size_bytes, MemoryKind::host},
            std::vector<std::byte*>(kNumRanks)};
  }

  void deregister(const Registration& registration) noexcept override { memory_[registration.id].reset(); }

  std::vector<base::UniqueFd> exchange_descriptors(int descriptor, const Deadline&) override {
    std::vector<base::UniqueFd> given(kNumRanks);
    given[1] = base::UniqueFd(::fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
    return given;
  }

  void put(int peer, const RemoteAddress& sink, const std::byte* source, std::size_t size_bytes) noexcept override {
    std::string bytes(size_bytes, '\0');
    std::memcpy(bytes.data(), source, size_bytes);
    record_->add({Event::Kind::bytes, peer, sink.offset_bytes, std::move(bytes), 0});
  }

  void put_signal(int peer,
                  const RemoteAddress&,
                  const std::byte*,
                  std::size_t,
                  const RemoteAddress& slot,
                  sync::Word value) noexcept override {
    record_->add({Event::Kind::signal, peer, slot.offset_bytes, "", value});
  }

  void fence(int) noexcept override {}

  [[nodiscard]] std::uint64_t num_started() const noexcept override { return 0; }

  [[nodiscard]] bool flush(std::uint64_t, const Deadline&) noexcept override { return true; }

  void progress() noexcept override {}

  [[nodiscard]] PeerStatus peer_status(int) const noexcept override { return {}; }

  void close() noexcept override { record_->add({Event::Kind::closed, -1, 0, "", 0}); }

 private:
  std::shared_ptr<Record> record_;
  std::vector<std::unique_ptr<std::vector<std::byte>>> memory_;
};

/// An unruly transport, memory whose byte i is i / 64, and what comes out.
struct Unruly {
  explicit Unruly(std::uint64_t seed, Fences fences = Fences::kept)
      : transport(make_unruly(std::make_unique<RecordingTransport>(record), 0, seed, fences)),
        memory(transport->register_memory(kBytes, Deadline(1s))) {
    for (std::size_t i = 0; i < kBytes; ++i) memory.local.data[i] = static_cast<std::byte>(i / 64);
  }

  void put(int peer, std::size_t offset_bytes, std::size_t size_bytes) const {
    transport->put(peer, {memory.id, offset_bytes}, memory.local.data + offset_bytes, size_bytes);
  }

  void signal(int peer, std::size_t slot_idx, sync::Word value) const {
    transport->put_signal(peer, {}, nullptr, 0, {memory.id, kSlots + 8 * slot_idx}, value);
  }

  /// Calls as often as it takes until nothing can be held any more, and returns all that came out.
  [[nodiscard]] std::vector<Event> drain() const {
    for (std::uint64_t i = 0; i <= HeldTraffic::kMaxHeldCalls; ++i) transport->progress();
    return record->take();
  }

  std::shared_ptr<Record> record = std::make_shared<Record>();
  std::unique_ptr<Transport> transport;
  Registration memory;
};

/// True for at least one seed.
bool happens(const std::function<bool(std::uint64_t seed)>& deed) {
  for (std::uint64_t seed = 0; seed < kNumSeeds; ++seed) {
    if (deed(seed)) return true;
  }
  return false;
}

bool is_signal(const Event& event) { return event.kind == Event::Kind::signal; }

TEST(Unruly, LetsEveryByteGoOnceAndEachSignalBehindItsOwnBytes) {
  for (std::uint64_t seed = 0; seed < kNumSeeds; ++seed) {
    const Unruly self(seed);
    for (std::size_t i = 0; i < 20; ++i) {
      const std::size_t offset_bytes = 64 * i;
      self.transport->put_signal(1,
                                 {self.memory.id, offset_bytes},
                                 self.memory.local.data + offset_bytes,
                                 1 + 3 * i,
                                 {self.memory.id, kSlots + 8 * i},
                                 i);
    }
    std::vector<int> num_seen(kSlots, 0);
    std::size_t num_signals = 0;
    for (const Event& event : self.drain()) {
      EXPECT_EQ(event.peer, 1);
      for (std::size_t i = 0; i < event.bytes.size(); ++i) {
        ++num_seen[event.offset_bytes + i];
        EXPECT_EQ(event.bytes[i], static_cast<char>((event.offset_bytes + i) / 64));
      }
      if (!is_signal(event)) continue;
      ++num_signals;
      EXPECT_EQ(event.offset_bytes, kSlots + 8 * event.value);
      const auto first = num_seen.begin() + static_cast<std::ptrdiff_t>(64 * event.value);
      const auto size = static_cast<std::ptrdiff_t>(1 + 3 * event.value);
      EXPECT_TRUE(std::all_of(first, first + size, [](int n) { return n == 1; })) << "seed " << seed;
    }
    EXPECT_EQ(num_signals, 20U) << "seed " << seed;
    EXPECT_EQ(std::count(num_seen.begin(), num_seen.end(), 1), 20 + 3 * 190) << "seed " << seed;
    EXPECT_EQ(*std::max_element(num_seen.begin(), num_seen.end()), 1) << "seed " << seed;
  }
}

/// Returns whether anything towards peer 1 came out before something that a fence had put ahead of it.
bool does_pass_a_fence(std::uint64_t seed, Fences fences) {
  const Unruly self(seed, fences);
  for (std::size_t era = 0; era < 10; ++era) {
    self.put(1, 64 * era, 50);
    self.signal(1, era, 1);
    self.transport->fence(1);
  }
  const auto era_of = [](const Event& event) {
    return is_signal(event) ? (event.offset_bytes - kSlots) / 8 : event.offset_bytes / 64;
  };
  const std::vector<Event> events = self.drain();
  return !std::is_sorted(
      events.begin(), events.end(), [&](const Event& a, const Event& b) { return era_of(a) < era_of(b); });
}

TEST(Unruly, LetsNothingPassAFence) {
  EXPECT_FALSE(happens([](std::uint64_t seed) { return does_pass_a_fence(seed, Fences::kept); }));
}

TEST(Unruly, LetsThingsPassAFenceThatIsIgnored) {
  EXPECT_TRUE(happens([](std::uint64_t seed) { return does_pass_a_fence(seed, Fences::ignored); }));
}

TEST(Unruly, FencesOnePeerOnly) {
  EXPECT_TRUE(happens([](std::uint64_t seed) {
    const Unruly self(seed);
    self.put(1, 0, 64);
    self.transport->fence(1);
    self.put(2, 0, 64);
    const std::vector<Event> events = self.drain();
    return events.front().peer == 2;
  }));
}

TEST(Unruly, LetsASignalPassAnEarlierPut) {
  EXPECT_TRUE(happens([](std::uint64_t seed) {
    const Unruly self(seed);
    self.put(1, 0, 64);
    self.signal(1, 0, 1);
    return is_signal(self.drain().front());
  }));
}

TEST(Unruly, LetsAnOldSignalComeLast) {
  EXPECT_TRUE(happens([](std::uint64_t seed) {
    const Unruly self(seed);
    self.signal(1, 0, 1);
    self.signal(1, 0, 2);
    return self.drain().back().value == 1;
  }));
}

TEST(Unruly, SplitsAPutAndTurnsItsPiecesRound) {
  EXPECT_TRUE(happens([](std::uint64_t seed) {
    const Unruly self(seed);
    self.put(1, 0, 64);
    const std::vector<Event> events = self.drain();
    return events.size() > 1 && events.front().offset_bytes != 0;
  }));
}

TEST(Unruly, ReadsASourceWhenItLeaves) {
  EXPECT_TRUE(happens([](std::uint64_t seed) {
    const Unruly self(seed);
    self.put(1, 0, 64);
    self.memory.local.data[63] = std::byte{0xEE};
    std::string came(64, '\0');
    for (const Event& event : self.drain()) came.replace(event.offset_bytes, event.bytes.size(), event.bytes);
    return came[63] == '\xEE';
  }));
}

TEST(Unruly, SendsWhatTheSourceHeldAtFlush) {
  EXPECT_FALSE(happens([](std::uint64_t seed) {
    const Unruly self(seed);
    self.put(1, 0, 64);
    EXPECT_EQ(self.transport->num_started(), 1U);
    EXPECT_TRUE(self.transport->flush(1, Deadline(1s)));
    self.memory.local.data[63] = std::byte{0xEE};
    std::string came(64, '\0');
    for (const Event& event : self.drain()) came.replace(event.offset_bytes, event.bytes.size(), event.bytes);
    return came[63] == '\xEE';
  }));
}

TEST(Unruly, HoldsWhatWasFlushed) {
  EXPECT_TRUE(happens([](std::uint64_t seed) {
    const Unruly self(seed);
    self.put(1, 0, 64);
    EXPECT_TRUE(self.transport->flush(1, Deadline(1s)));
    const std::size_t num_come = self.record->size();
    return self.drain().size() > num_come;
  }));
}

TEST(Unruly, ServesPeersWithoutBeingCalled) {
  for (std::uint64_t seed = 0; seed < kNumSeeds; ++seed) {
    const Unruly self(seed);
    for (sync::Word value = 0; value < 30; ++value) {
      self.signal(1, value, value);
      self.transport->fence(1);
    }
    const Deadline deadline(20s);
    while (self.record->size() < 30 && !deadline.is_over()) std::this_thread::sleep_for(1ms);
    EXPECT_EQ(self.record->size(), 30U) << "seed " << seed;
  }
}

TEST(Unruly, HoldsNothingBackWhenMemoryOrPeersMayGo) {
  const std::vector<std::function<void(Unruly&)>> ends{
      [](Unruly& self) { self.transport->register_memory(64, Deadline(1s)); },
      [](Unruly& self) { self.transport->exchange_descriptors(STDIN_FILENO, Deadline(1s)); },
      [](Unruly& self) { self.transport->deregister(self.memory); },
      [](Unruly& self) { self.transport->close(); },
      [](Unruly& self) { self.transport.reset(); },
  };
  for (std::uint64_t seed = 0; seed < kNumSeeds; ++seed) {
    Unruly self(seed);
    for (std::size_t slot_idx = 0; slot_idx < 10; ++slot_idx) self.signal(2, slot_idx, 1);
    ends[seed % ends.size()](self);
    const std::vector<Event> events = self.record->take();
    ASSERT_GE(events.size(), 10U) << "seed " << seed;
    EXPECT_TRUE(std::all_of(events.begin(), events.begin() + 10, is_signal)) << "told of the end before its signals";
  }
}

TEST(Unruly, LetsPutsToMemoryThatWasGivenBackGoNowhere) {
  const Unruly self(3);
  const Registration other = self.transport->register_memory(64, Deadline(1s));
  self.transport->deregister(other);
  self.transport->put_signal(1, {other.id, 0}, self.memory.local.data, 8, {other.id, 8}, 1);
  EXPECT_TRUE(self.drain().empty());
  EXPECT_EQ(self.transport->num_started(), 1U);
}

TEST(UnrulyDeathTest, EndsTheProgramOnASourceThatIsNotRegistered) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const Unruly self(0);
  const std::vector<std::byte> elsewhere(64);
  EXPECT_DEATH(self.transport->put(1, {self.memory.id, 0}, elsewhere.data(), 64), "owns");
}

TEST(ParseUnruly, ReadsSeedAndFences) {
  const auto kept = parse_unruly("unruly:18446744073709551615");
  ASSERT_TRUE(kept.has_value());
  EXPECT_EQ(kept->seed, ~std::uint64_t{0});
  EXPECT_EQ(kept->fences, Fences::kept);
  EXPECT_EQ(parse_unruly("unruly-nofence:7")->fences, Fences::ignored);
  EXPECT_FALSE(parse_unruly("shm").has_value());
  EXPECT_FALSE(parse_unruly("unrulyish:1").has_value());
}

TEST(ParseUnruly, RefusesWhatIsNoSeed) {
  for (const char* name : {"unruly", "unruly:", "unruly:x", "unruly:-1", "unruly:1 ", "unruly:18446744073709551616"}) {
    try {
      static_cast<void>(parse_unruly(name));
      ADD_FAILURE() << name;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_THAT(error.what(), HasSubstr("SEED"));
    }
  }
}

}  // namespace
}  // namespace moebus::transport
