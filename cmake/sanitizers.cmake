# MOEBUS_SANITIZE holds for the whole build, tests included: address;undefined together, or thread alone.
if(MOEBUS_SANITIZE)
  if("thread" IN_LIST MOEBUS_SANITIZE AND "address" IN_LIST MOEBUS_SANITIZE)
    message(FATAL_ERROR "MOEBUS_SANITIZE=${MOEBUS_SANITIZE}: thread and address exclude each other; choose one.")
  endif()
  list(JOIN MOEBUS_SANITIZE "," moebus_sanitize_list)
  add_compile_options(-fsanitize=${moebus_sanitize_list} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${moebus_sanitize_list})
endif()

# Every source is instrumented, so that a target's search sees what its bytes reach; libFuzzer itself is linked by targets.
if(MOEBUS_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()

# Lines are counted by several threads at once.
if(MOEBUS_COVERAGE)
  add_compile_options(--coverage -fprofile-update=atomic)
  add_link_options(--coverage)
endif()
