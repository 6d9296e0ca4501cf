// Region table: the registrations that live here, by id, and where a put to one of them goes.
// Room: transport · host.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "transport/transport.hpp"

namespace moebus::transport {

/// Few registrations live at a time, so they are searched one by one.
class RegionTable {
 public:
  /// Keeps `registration` until it is removed. Ids grow.
  void add(Registration registration);

  void remove(std::uint32_t id) noexcept;

  /// Returns the registration that `address` lies in, nullptr if it was removed. An address that reaches beyond its
  /// registration, or into one that never was, is a bug of the caller.
  [[nodiscard]] const Registration* find(const RemoteAddress& address, std::size_t size_bytes) const noexcept;

  /// True if all of [source, source + size_bytes) is this rank's part of one registration.
  [[nodiscard]] bool owns(const std::byte* source, std::size_t size_bytes) const noexcept;

 private:
  std::vector<Registration> registrations_;
  std::uint64_t num_known_ = 0;  ///< ids below were added once
};

}  // namespace moebus::transport
