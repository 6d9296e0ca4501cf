#include "moebus/error.hpp"

namespace moebus {

std::string_view to_string(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::invalid_argument:
      return "invalid_argument";
    case ErrorCode::unsupported:
      return "unsupported";
    case ErrorCode::not_found:
      return "not_found";
    case ErrorCode::resource_exhausted:
      return "resource_exhausted";
    case ErrorCode::timeout:
      return "timeout";
    case ErrorCode::peer_lost:
      return "peer_lost";
    case ErrorCode::transport_failure:
      return "transport_failure";
    case ErrorCode::device_failure:
      return "device_failure";
    case ErrorCode::group_poisoned:
      return "group_poisoned";
    case ErrorCode::internal:
      return "internal";
  }
  return "unknown";
}

Error::Error(ErrorCode code, const std::string& message, int origin_rank, std::source_location location)
    : std::runtime_error(message), code_(code), origin_rank_(origin_rank), location_(location) {}

}  // namespace moebus
