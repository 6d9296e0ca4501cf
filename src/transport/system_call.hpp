// System calls: the one way to make them in this room; a failure becomes an Error that names the call and the reason.
// Room: transport · host.

#pragma once

#include <cerrno>
#include <source_location>
#include <string_view>

namespace moebus::transport {

/// Throws Error for a failed call: resource_exhausted where the system has no more of something, else
/// transport_failure. `call` is the call's text, of which the name is shown; `remedy` ends the message.
[[noreturn]] void throw_system_error(std::string_view call,
                                     int error,
                                     std::string_view remedy = {},
                                     std::source_location location = std::source_location::current());

/// Returns what `call` returns unless that is -1; repeats it when a signal interrupted it.
template <class Call>
auto check_system_call(Call&& call,
                       std::string_view text,
                       std::source_location location = std::source_location::current()) {
  for (;;) {
    const auto result = call();
    if (result != -1) return result;
    if (errno != EINTR) throw_system_error(text, errno, {}, location);
  }
}

}  // namespace moebus::transport

/// MOEBUS_SYSTEM_CALL(::socket(AF_UNIX, type, 0)) is the descriptor, or throws Error.
#define MOEBUS_SYSTEM_CALL(call) ::moebus::transport::check_system_call([&] { return (call); }, #call)
