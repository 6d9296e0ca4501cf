# The warnings of every target of ours; third-party headers are system headers and stay quiet.
add_library(moebus_warnings INTERFACE)
target_compile_options(moebus_warnings INTERFACE -Wall -Wextra -Wconversion -Wshadow)
if(MOEBUS_WERROR)
  target_compile_options(moebus_warnings INTERFACE -Werror)
endif()
