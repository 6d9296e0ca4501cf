#include "moebus/version.hpp"

namespace moebus {

std::string_view version() noexcept { return MOEBUS_VERSION; }

}  // namespace moebus
