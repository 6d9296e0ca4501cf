#include "transport/region_table.hpp"

#include <algorithm>
#include <functional>
#include <utility>

#include "base/assert.hpp"

namespace moebus::transport {

void RegionTable::add(Registration registration) {
  MOEBUS_ASSERT(registration.id >= num_known_);
  num_known_ = std::uint64_t{registration.id} + 1;
  registrations_.push_back(std::move(registration));
}

void RegionTable::remove(std::uint32_t id) noexcept {
  std::erase_if(registrations_, [&](const Registration& registration) { return registration.id == id; });
}

const Registration* RegionTable::find(const RemoteAddress& address, std::size_t size_bytes) const noexcept {
  MOEBUS_ASSERT(address.registration < num_known_);
  for (const Registration& registration : registrations_) {
    if (registration.id != address.registration) continue;
    const std::size_t limit_bytes = registration.local.size_bytes;
    MOEBUS_ASSERT(address.offset_bytes <= limit_bytes && size_bytes <= limit_bytes - address.offset_bytes);
    return &registration;
  }
  return nullptr;
}

bool RegionTable::owns(const std::byte* source, std::size_t size_bytes) const noexcept {
  return std::any_of(registrations_.begin(), registrations_.end(), [&](const Registration& registration) {
    const base::Region& region = registration.local;
    // Pointers of different objects compare in a defined way only through std::less.
    if (std::less<>()(source, region.data) || std::less<>()(region.data + region.size_bytes, source)) return false;
    return size_bytes <= region.size_bytes - static_cast<std::size_t>(source - region.data);
  });
}

}  // namespace moebus::transport
