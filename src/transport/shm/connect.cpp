#include "transport/shm/connect.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "base/math.hpp"
#include "moebus/error.hpp"
#include "transport/agreement.hpp"
#include "transport/descriptor.hpp"
#include "transport/mapped_transport.hpp"
#include "transport/shm/card.hpp"
#include "transport/shm/host.hpp"
#include "transport/shm/memory.hpp"
#include "transport/shm/mesh.hpp"

namespace moebus::transport {
namespace {

using base::idx;

class ShmTransport final : public MappedTransport {
 public:
  ShmTransport(Store& store, const base::Deadline& deadline, const ConnectOptions& options)
      : MappedTransport(store, deadline, options), store_(store) {
    const auto answers = agree(store, "open sockets", deadline, [&] {
      mesh_.emplace(store.rank(), store.num_ranks());
      return to_payload(Card{this_host(), mesh_->address()});
    });
    std::vector<HostIdentity> hosts;
    std::vector<MeshAddress> addresses;
    for (const std::string& answer : answers) {
      Card card = parse_card(answer);
      hosts.push_back(std::move(card.host));
      addresses.push_back(std::move(card.address));
    }
    check_one_host(hosts);
    agree(store, "connect sockets", deadline, [&] {
      mesh_->connect(addresses, deadline);
      return std::string();
    });
  }

  [[nodiscard]] std::string_view name() const noexcept override { return "shm"; }

  Registration register_memory(std::size_t size_bytes, const base::Deadline& deadline) override {
    agree_on_size(store_, size_bytes, deadline);
    SharedMemory own;
    agree(store_, "allocate memory", deadline, [&] {
      own = make_shared_memory(size_bytes);
      return std::string();
    });
    Entry entry;
    agree(store_, "map memory", deadline, [&] {
      entry.peers = map_peers(own, size_bytes, deadline);
      return std::string();
    });
    entry.own = std::move(own.mapping);
    std::vector<std::byte*> peers;
    for (const Mapping& peer : entry.peers) peers.push_back(peer.data());
    peers[idx(store_.rank())] = entry.own.data();
    Registration registration = publish({entry.own.data(), size_bytes, MemoryKind::host}, std::move(peers));
    entries_.push_back(std::move(entry));
    return registration;
  }

  void deregister(const Registration& registration) noexcept override {
    std::erase_if(entries_, [&](const Entry& entry) {
      const bool is_it = entry.own.data() == registration.local.data;
      if (is_it) withdraw(registration.id);
      return is_it;
    });
  }

  std::vector<base::UniqueFd> exchange_descriptors(int descriptor, const base::Deadline& deadline) override {
    agree(store_, "look at descriptors", deadline, [&] {
      // Room for what will come is tried before anything is sent: a rank that has none would leave packets unread.
      std::vector<base::UniqueFd> room;
      for (const bool is_allowed : may_map()) {
        if (is_allowed) room.push_back(duplicate_descriptor(descriptor));
      }
      return std::string();
    });
    std::vector<base::UniqueFd> given;
    agree(store_, "hand over descriptors", deadline, [&] {
      for (PeerDescriptor& from : mesh_->exchange(descriptor, 0, next_exchange_id_++, deadline, may_map()))
        given.push_back(std::move(from.descriptor));
      return std::string();
    });
    return given;
  }

  [[nodiscard]] PeerStatus peer_status(int peer) const noexcept override { return mesh_->status(peer); }

  void close() noexcept override {
    if (std::exchange(is_closed_, true)) return;
    mesh_->say_goodbye();
  }

 private:
  struct Entry {
    Mapping own;
    std::vector<Mapping> peers;  ///< [num_ranks], own entry empty
  };

  std::vector<Mapping> map_peers(const SharedMemory& own, std::size_t size_bytes, const base::Deadline& deadline) {
    const auto descriptors =
        mesh_->exchange(own.descriptor.get(), own.mapping.size_bytes(), next_exchange_id_++, deadline);
    std::vector<Mapping> mappings(descriptors.size());
    for (std::size_t peer = 0; peer < descriptors.size(); ++peer) {
      const PeerDescriptor& from = descriptors[peer];
      if (from.descriptor.is_open())
        mappings[peer] = map_peer_memory(from.descriptor.get(), from.mapped_bytes, size_bytes);
    }
    return mappings;
  }

  Store& store_;
  std::optional<Mesh> mesh_;
  std::vector<Entry> entries_;
  std::uint64_t next_exchange_id_ = 1;
  bool is_closed_ = false;
};

}  // namespace

std::unique_ptr<Transport> connect_shm(Store& store, const base::Deadline& deadline, const ConnectOptions& options) {
  return std::make_unique<ShmTransport>(store, deadline, options);
}

}  // namespace moebus::transport
