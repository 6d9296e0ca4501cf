#include "base/log.hpp"

#include <spdlog/sinks/stdout_color_sinks.h>

#include <memory>
#include <string>

#include "base/env.hpp"

namespace moebus::base {

spdlog::logger& log() {
  // Leaked on purpose: destructors of user objects may log after static destruction began.
  static spdlog::logger* logger = [] {
    auto* made = new spdlog::logger("moebus", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    made->set_pattern("%Y-%m-%d %H:%M:%S.%e moebus %P %^%l%$ %v");
    const std::string name = env("MOEBUS_LOG").value_or("warn");
    const spdlog::level::level_enum level = spdlog::level::from_str(name);
    // from_str() answers `off` to every name it does not know: a typing error must not silence the log.
    const bool is_known = level != spdlog::level::off || name == "off";
    made->set_level(is_known ? level : spdlog::level::warn);
    if (!is_known)
      made->warn("MOEBUS_LOG={} is no level; trace, debug, info, warn, error and off are. Using warn.", name);
    return made;
  }();
  return *logger;
}

}  // namespace moebus::base
