#include "transport/descriptor.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <cerrno>

#include "moebus/error.hpp"
#include "transport/system_call.hpp"

namespace moebus::transport {

base::UniqueFd duplicate_descriptor(int descriptor) {
  base::UniqueFd duplicate(::fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
  if (duplicate.is_open()) return duplicate;
  if (errno != EBADF) throw_system_error("fcntl", errno, "raise the limit of open files, which `ulimit -n` shows");
  throw Error(ErrorCode::invalid_argument,
              fmt::format("descriptor {} is not open; give one that stays open until the call returns", descriptor));
}

}  // namespace moebus::transport
