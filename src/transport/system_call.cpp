#include "transport/system_call.hpp"

#include <fmt/format.h>

#include <system_error>

#include "moebus/error.hpp"

namespace moebus::transport {
namespace {

std::string_view call_name(std::string_view call) {
  call = call.substr(0, call.find('('));
  if (call.starts_with("::")) call.remove_prefix(2);
  return call;
}

bool is_exhaustion(int error) noexcept {
  return error == ENOMEM || error == EMFILE || error == ENFILE || error == ENOSPC || error == ENOBUFS ||
         error == EAGAIN || error == ETOOMANYREFS;
}

}  // namespace

void throw_system_error(std::string_view call, int error, std::string_view remedy, std::source_location location) {
  const std::string reason = std::generic_category().message(error);
  std::string message = fmt::format("{}: {} (errno {})", call_name(call), reason, error);
  if (!remedy.empty()) message += fmt::format("; {}", remedy);
  throw Error(
      is_exhaustion(error) ? ErrorCode::resource_exhausted : ErrorCode::transport_failure, message, -1, location);
}

}  // namespace moebus::transport
