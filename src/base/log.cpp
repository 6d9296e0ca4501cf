#include "base/log.hpp"

#include <spdlog/sinks/stdout_color_sinks.h>

#include "base/env.hpp"

namespace moebus::base {

spdlog::logger& log() {
  // Leaked on purpose: destructors of user objects may log after static destruction began.
  static spdlog::logger* logger = [] {
    auto* made = new spdlog::logger("moebus", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    made->set_level(spdlog::level::from_str(env("MOEBUS_LOG").value_or("warn")));
    made->set_pattern("%Y-%m-%d %H:%M:%S.%e moebus %P %^%l%$ %v");
    return made;
  }();
  return *logger;
}

}  // namespace moebus::base
