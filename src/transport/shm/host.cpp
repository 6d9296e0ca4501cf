#include "transport/shm/host.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <fstream>

#include "moebus/error.hpp"

namespace moebus::transport {

HostIdentity this_host() {
  HostIdentity host;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> host.boot_id;
  std::array<char, 64> text{};
  const ssize_t length = ::readlink("/proc/self/ns/net", text.data(), text.size());
  if (length > 0) host.network_namespace.assign(text.data(), static_cast<std::size_t>(length));
  return host;
}

void check_one_host(const std::vector<HostIdentity>& hosts) {
  for (std::size_t rank = 1; rank < hosts.size(); ++rank) {
    if (hosts[rank].boot_id != hosts[0].boot_id) {
      throw Error(
          ErrorCode::unsupported,
          fmt::format("rank {} runs on another machine than rank 0; shm joins ranks of one machine only", rank));
    }
    if (hosts[rank].network_namespace != hosts[0].network_namespace) {
      throw Error(
          ErrorCode::unsupported,
          fmt::format(
              "rank {} is in another network namespace than rank 0, so no socket reaches it; run the ranks in one "
              "container, or with the host's network",
              rank));
    }
  }
}

}  // namespace moebus::transport
