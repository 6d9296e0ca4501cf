// Card: what a rank tells the others through the store, so that they can reach it on this machine.
// Room: transport · host.

#pragma once

#include <string>
#include <string_view>

#include "transport/shm/host.hpp"
#include "transport/shm/mesh.hpp"

namespace moebus::transport {

struct Card {
  HostIdentity host;
  MeshAddress address;
};

std::string to_payload(const Card& card);

/// Takes a card apart.
///
/// Errors:  Error{transport_failure} it is none, or one of its texts is longer than any that a rank makes.
Card parse_card(std::string_view payload);

}  // namespace moebus::transport
