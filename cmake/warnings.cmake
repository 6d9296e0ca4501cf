# The warnings of every target of ours; third-party headers are system headers and stay quiet. (What nvcc compiles has its
# own list in moebus_cuda.cmake.)
add_library(moebus_warnings INTERFACE)
set(moebus_warning_options -Wall -Wextra -Wconversion -Wshadow)
if(MOEBUS_WERROR)
  list(APPEND moebus_warning_options -Werror)
endif()
target_compile_options(moebus_warnings INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${moebus_warning_options}>")
