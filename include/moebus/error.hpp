// Errors: what a caller can catch, and the one list of codes.
// Room: public vocabulary · host.

#pragma once

#include <cstdint>
#include <source_location>
#include <stdexcept>
#include <string>
#include <string_view>

namespace moebus {

/// Names who can do something about a failure. A new code needs a decision note.
enum class ErrorCode : std::uint8_t {
  invalid_argument = 1,    ///< the caller gave something wrong; nothing was sent, the group stays whole
  unsupported = 2,         ///< understood, but not built or not measured here
  not_found = 3,           ///< a name, file or peer does not exist
  resource_exhausted = 4,  ///< memory, descriptors, handles or result buffers are used up
  timeout = 5,             ///< a deadline passed; the message says who waited for whom, and on what
  peer_lost = 6,           ///< another rank died or left while it was needed
  transport_failure = 7,   ///< the path between ranks broke
  device_failure = 8,      ///< an accelerator or its driver failed
  group_poisoned = 9,      ///< an earlier failure ended this group; the message repeats the first cause
  internal = 10,           ///< a bug in moebus
};

/// Returns the code's name as written in the enum, e.g. "invalid_argument".
std::string_view to_string(ErrorCode code) noexcept;

/// Carries a code, a message for a person, and where it came from.
///
/// `origin_rank` is the rank on which the failure was found (the same on every rank that throws it), -1 where no rank
/// is involved.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code,
        const std::string& message,
        int origin_rank = -1,
        std::source_location location = std::source_location::current());

  [[nodiscard]] ErrorCode code() const noexcept { return code_; }

  [[nodiscard]] int origin_rank() const noexcept { return origin_rank_; }

  [[nodiscard]] const std::source_location& location() const noexcept { return location_; }

 private:
  ErrorCode code_;
  int origin_rank_;
  std::source_location location_;
};

}  // namespace moebus
