#include "transport/loopback/connect.hpp"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "base/assert.hpp"
#include "base/math.hpp"
#include "moebus/error.hpp"
#include "transport/agreement.hpp"
#include "transport/descriptor.hpp"
#include "transport/mapped_transport.hpp"
#include "transport/mapping.hpp"
#include "transport/stream_frame.hpp"
#include "transport/system_call.hpp"
#include "transport/token_proof.hpp"

namespace moebus::transport {
namespace {

using base::idx;

/// A rank as its peers see it.
struct Member {
  std::atomic<PeerState> state{PeerState::alive};
};

/// Objects that threads hand to each other by number, never by address: a wrong number finds nothing.
template <class T>
class Board {
 public:
  std::uint32_t put(const std::shared_ptr<T>& object) {
    const std::lock_guard lock(mutex_);
    std::erase_if(objects_, [](const auto& entry) { return entry.second.expired(); });
    objects_[++last_id_] = object;
    return last_id_;
  }

  std::shared_ptr<T> find(std::uint32_t id) {
    const std::lock_guard lock(mutex_);
    const auto found = objects_.find(id);
    return found == objects_.end() ? nullptr : found->second.lock();
  }

 private:
  std::mutex mutex_;
  std::uint32_t last_id_ = 0;
  std::map<std::uint32_t, std::weak_ptr<T>> objects_;
};

/// Leaked on purpose: ranks may leave during static destruction.
template <class T>
Board<T>& board() {
  static auto* board = new Board<T>;
  return *board;
}

/// Returns what only this process can say of itself (a forked child has another id).
std::string process_identity() {
  static const std::string kName = random_name(16);
  return fmt::format("{}-{}", ::getpid(), kName);
}

std::shared_ptr<Mapping> allocate(std::size_t size_bytes) {
  if (size_bytes > kMaxMappingBytes)
    throw_system_error("mmap", ENOMEM, fmt::format("{} bytes were asked for", size_bytes));
  const std::size_t page = page_bytes();
  const std::size_t mapped_bytes = base::align_up(std::max<std::size_t>(size_bytes, 1), page);
  void* address = ::mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) throw_system_error("mmap", errno, fmt::format("{} bytes were asked for", size_bytes));
  auto mapping = std::make_shared<Mapping>(address, mapped_bytes);
  // Advice comes before the first touch, so that huge pages are used where the machine gives them; its failure costs
  // only speed.
  [[maybe_unused]] const int ignored = ::madvise(address, mapped_bytes, MADV_HUGEPAGE);
  for (std::size_t offset = 0; offset < mapped_bytes; offset += page) {
    *const_cast<volatile std::byte*>(mapping->data() + offset) = std::byte{0};
  }
  return mapping;
}

class LoopbackTransport final : public MappedTransport {
 public:
  LoopbackTransport(Store& store, const base::Deadline& deadline, const ConnectOptions& options)
      : MappedTransport(store, deadline, options), store_(store), self_(std::make_shared<Member>()) {
    const auto answers = agree(store, "connect threads", deadline, [&] {
      return PayloadWriter().number(board<Member>().put(self_)).raw(process_identity()).take();
    });
    check_one_process(answers);
    agree(store, "meet threads", deadline, [&] {
      for (const std::string& answer : answers) members_.push_back(find<Member>(answer));
      return std::string();
    });
  }

  ~LoopbackTransport() override {
    PeerState expected = PeerState::alive;
    self_->state.compare_exchange_strong(expected, PeerState::dead);
  }

  LoopbackTransport(const LoopbackTransport&) = delete;
  LoopbackTransport& operator=(const LoopbackTransport&) = delete;

  [[nodiscard]] std::string_view name() const noexcept override { return "loopback"; }

  Registration register_memory(std::size_t size_bytes, const base::Deadline& deadline) override {
    agree_on_size(store_, size_bytes, deadline);
    Entry entry;
    const auto answers = agree(store_, "allocate memory", deadline, [&] {
      entry.own = allocate(size_bytes);
      return PayloadWriter().number(board<Mapping>().put(entry.own)).take();
    });
    // Nobody gives memory back before all have taken hold of it.
    agree(store_, "map memory", deadline, [&] {
      for (const std::string& answer : answers) entry.peers.push_back(find<Mapping>(answer));
      return std::string();
    });
    std::vector<std::byte*> peers;
    for (const auto& peer : entry.peers) peers.push_back(peer->data());
    Registration registration = publish({entry.own->data(), size_bytes, MemoryKind::host}, std::move(peers));
    entries_.push_back(std::move(entry));
    return registration;
  }

  void deregister(const Registration& registration) noexcept override {
    std::erase_if(entries_, [&](const Entry& entry) {
      const bool is_it = entry.own->data() == registration.local.data;
      if (is_it) withdraw(registration.id);
      return is_it;
    });
  }

  std::vector<base::UniqueFd> exchange_descriptors(int descriptor, const base::Deadline& deadline) override {
    // Peers duplicate a duplicate that they hold: the number itself may mean another file once this rank has given up.
    std::shared_ptr<base::UniqueFd> own;
    const auto answers = agree(store_, "look at descriptors", deadline, [&] {
      own = std::make_shared<base::UniqueFd>(duplicate_descriptor(descriptor));
      return PayloadWriter().number(board<base::UniqueFd>().put(own)).take();
    });
    std::vector<base::UniqueFd> given(answers.size());
    agree(store_, "hand over descriptors", deadline, [&] {
      for (int peer = 0; peer < store_.num_ranks(); ++peer) {
        if (peer == store_.rank() || !may_map()[idx(peer)]) continue;
        given[idx(peer)] = duplicate_descriptor(find<base::UniqueFd>(answers[idx(peer)])->get());
      }
      return std::string();
    });
    return given;
  }

  [[nodiscard]] PeerStatus peer_status(int peer) const noexcept override {
    MOEBUS_ASSERT(peer >= 0 && idx(peer) < members_.size());
    switch (members_[idx(peer)]->state.load(std::memory_order_relaxed)) {
      case PeerState::closed:
        return {PeerState::closed, "left in order"};
      case PeerState::dead:
        return {PeerState::dead, "its thread dropped the transport without closing it"};
      case PeerState::alive:
        break;
    }
    return {};
  }

  void close() noexcept override { self_->state.store(PeerState::closed, std::memory_order_relaxed); }

 private:
  struct Entry {
    std::shared_ptr<Mapping> own;
    std::vector<std::shared_ptr<Mapping>> peers;
  };

  static void check_one_process(const std::vector<std::string>& answers) {
    const auto identity = [](const std::string& answer) { return answer.substr(sizeof(std::uint32_t)); };
    for (std::size_t rank = 1; rank < answers.size(); ++rank) {
      if (identity(answers[rank]) == identity(answers[0])) continue;
      throw Error(
          ErrorCode::unsupported,
          fmt::format("loopback joins threads of one process, but rank {} and rank 0 are in different ones; use shm",
                      rank));
    }
  }

  template <class T>
  static std::shared_ptr<T> find(const std::string& answer) {
    auto object = board<T>().find(PayloadReader(answer).number());
    if (object == nullptr) throw Error(ErrorCode::peer_lost, "a peer went away while what it gave was taken hold of");
    return object;
  }

  Store& store_;
  std::shared_ptr<Member> self_;
  std::vector<std::shared_ptr<Member>> members_;  ///< [num_ranks]
  std::vector<Entry> entries_;
};

}  // namespace

std::unique_ptr<Transport> connect_loopback(Store& store,
                                            const base::Deadline& deadline,
                                            const ConnectOptions& options) {
  return std::make_unique<LoopbackTransport>(store, deadline, options);
}

}  // namespace moebus::transport
