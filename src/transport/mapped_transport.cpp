#include "transport/mapped_transport.hpp"

#include <cstring>
#include <utility>

#include "base/assert.hpp"
#include "base/math.hpp"
#include "transport/agreement.hpp"

namespace moebus::transport {

using base::idx;

MappedTransport::MappedTransport(Store& store, const base::Deadline& deadline, const ConnectOptions& options)
    : may_map_(agree_on_mapping(store, options.may_map, deadline)) {}

Registration MappedTransport::publish(const base::Region& local, std::vector<std::byte*> peers) {
  MOEBUS_ASSERT(peers.size() == may_map_.size());
  Registration shown{next_id_++, local, peers};
  for (std::size_t peer = 0; peer < peers.size(); ++peer) {
    if (!may_map_[peer]) shown.peers[peer] = nullptr;
  }
  regions_.add({shown.id, local, std::move(peers)});
  return shown;
}

std::byte* MappedTransport::locate(int peer, const RemoteAddress& address, std::size_t size_bytes) const noexcept {
  MOEBUS_ASSERT(peer >= 0 && idx(peer) < may_map_.size());
  const Registration* registration = regions_.find(address, size_bytes);
  return registration == nullptr ? nullptr : registration->peers[idx(peer)] + address.offset_bytes;
}

void MappedTransport::put(int peer,
                          const RemoteAddress& sink,
                          const std::byte* source,
                          std::size_t size_bytes) noexcept {
  ++num_started_;
  if (size_bytes == 0) return;
  // What a peer's end leaves mapped here is written still; nobody reads it.
  if (std::byte* place = locate(peer, sink, size_bytes)) std::memcpy(place, source, size_bytes);
}

void MappedTransport::put_signal(int peer,
                                 const RemoteAddress& sink,
                                 const std::byte* source,
                                 std::size_t size_bytes,
                                 const RemoteAddress& slot,
                                 sync::Word value) noexcept {
  MOEBUS_ASSERT(slot.offset_bytes % sizeof(sync::Word) == 0);
  put(peer, sink, source, size_bytes);
  std::byte* place = locate(peer, slot, sizeof(sync::Word));
  // Regions start at a page, so an aligned offset is an aligned word; the layout above puts words there.
  if (place != nullptr) sync::store_release(*reinterpret_cast<sync::Word*>(place), value);
}

bool MappedTransport::flush(std::uint64_t ticket, const base::Deadline&) noexcept {
  MOEBUS_ASSERT(ticket <= num_started_);
  return true;
}

}  // namespace moebus::transport
