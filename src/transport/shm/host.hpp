// Host: what tells ranks of one machine from those of another.
// Room: transport · host.

#pragma once

#include <string>
#include <vector>

namespace moebus::transport {

/// Where a rank runs, as far as shared memory is concerned.
struct HostIdentity {
  std::string boot_id;            ///< of the running kernel
  std::string network_namespace;  ///< Unix sockets without a file live in it
};

HostIdentity this_host();

/// Throws Error{unsupported} naming the first rank that rank 0 cannot share memory with, and why.
void check_one_host(const std::vector<HostIdentity>& hosts);

}  // namespace moebus::transport
