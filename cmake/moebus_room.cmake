# moebus_room(name SOURCES a.cpp ... USES base model ... [LIBS fmt::fmt ...] [PRIVATE_LIBS Asio::Asio ...])
#   A room: static library moebus_<name>, alias moebus::<name>, that links the rooms named and no others.
#   LIBS are third-party libraries that its headers include, PRIVATE_LIBS those of its sources only.
#   Without SOURCES the room has headers only.
# moebus_test(NAME x_test LABEL unit SOURCES x_test.cpp USES model ... [LIBS ...] [TIMEOUT seconds])
#   A GoogleTest executable, registered with CTest as one test under that label.
# moebus_bench(NAME x_bench SOURCES x_bench.cpp USES model ...)
#   A Google Benchmark executable; it is run by people, never by CTest.

# What every target of ours is compiled with. Contraction of a*b+c is off everywhere: results are bitwise the contract's.
function(moebus_compile_settings target scope)
  target_compile_features(${target} ${scope} cxx_std_20)
  # Of these an installed library hands on the language version alone.
  set(roots ${moebus_SOURCE_DIR}/include ${moebus_SOURCE_DIR}/src ${moebus_SOURCE_DIR})
  target_include_directories(${target} ${scope} "$<BUILD_INTERFACE:${roots}>")
  target_compile_options(${target} ${scope} $<BUILD_INTERFACE:$<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>>)
endfunction()

function(moebus_room name)
  cmake_parse_arguments(PARSE_ARGV 1 ROOM "" "" "SOURCES;USES;LIBS;PRIVATE_LIBS")
  if(ROOM_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "moebus_room(${name}): unknown arguments: ${ROOM_UNPARSED_ARGUMENTS}")
  endif()
  set(target moebus_${name})
  list(TRANSFORM ROOM_USES PREPEND "moebus::")
  if(ROOM_SOURCES)
    add_library(${target} STATIC ${ROOM_SOURCES})
    moebus_compile_settings(${target} PUBLIC)
    target_link_libraries(${target} PUBLIC ${ROOM_USES} ${ROOM_LIBS}
                          PRIVATE ${ROOM_PRIVATE_LIBS} $<BUILD_INTERFACE:moebus_warnings>)
  else()
    add_library(${target} INTERFACE)
    moebus_compile_settings(${target} INTERFACE)
    target_link_libraries(${target} INTERFACE ${ROOM_USES} ${ROOM_LIBS})
  endif()
  add_library(moebus::${name} ALIAS ${target})
endfunction()

function(moebus_test)
  cmake_parse_arguments(PARSE_ARGV 0 TEST "" "NAME;LABEL;TIMEOUT" "SOURCES;USES;LIBS")
  if(TEST_UNPARSED_ARGUMENTS OR NOT TEST_NAME OR NOT TEST_LABEL OR NOT TEST_SOURCES)
    message(FATAL_ERROR "moebus_test(${TEST_NAME}): NAME, LABEL and SOURCES are needed; unknown: ${TEST_UNPARSED_ARGUMENTS}")
  endif()
  if(NOT TEST_TIMEOUT)
    set(TEST_TIMEOUT 120)
  endif()
  list(TRANSFORM TEST_USES PREPEND "moebus::")
  add_executable(${TEST_NAME} ${TEST_SOURCES})
  moebus_compile_settings(${TEST_NAME} PRIVATE)
  # What is tested is optimised; a test's own code need not be, and takes half the time to compile. Under an emulator it
  # would run five times as long.
  target_compile_options(${TEST_NAME} PRIVATE $<IF:$<BOOL:${CMAKE_CROSSCOMPILING}>,-O1,-O0>)
  target_link_libraries(${TEST_NAME} PRIVATE ${TEST_USES} ${TEST_LIBS} GTest::gmock_main Threads::Threads moebus_warnings)
  set_property(GLOBAL APPEND PROPERTY MOEBUS_TESTS_${TEST_LABEL} ${TEST_NAME})
  # One test per executable: discovery of single cases would run each executable at every build.
  add_test(NAME ${TEST_LABEL}.${TEST_NAME} COMMAND ${TEST_NAME} --gtest_brief=1)
  set(labels ${TEST_LABEL})
  # The second label `coverage`: tests that reach model, sync and engine, without those that only repeat others.
  if((TEST_LABEL STREQUAL "unit" AND TEST_USES MATCHES "^moebus::(model|sync|engine)$")
     OR (TEST_LABEL STREQUAL "multirank" AND NOT TEST_NAME MATCHES "^(scale|allocation|memory|repeatability)_test$")
     OR (TEST_LABEL STREQUAL "fault" AND TEST_NAME MATCHES "^(late_rank|stopped_rank|killed_rank|parting|order|planted_bug)_test$"))
    list(APPEND labels coverage)
    set_property(GLOBAL APPEND PROPERTY MOEBUS_TESTS_coverage ${TEST_NAME})
  endif()
  set_tests_properties(${TEST_LABEL}.${TEST_NAME} PROPERTIES LABELS "${labels}" TIMEOUT ${TEST_TIMEOUT})
  if(TEST_LABEL STREQUAL "cuda")
    # Status of an executable that skipped everything (tests/cuda/skipping_main.cpp). One at a time: they share the GPU.
    set_tests_properties(cuda.${TEST_NAME} PROPERTIES SKIP_RETURN_CODE 77 RUN_SERIAL ON)
    target_compile_definitions(${TEST_NAME} PRIVATE MOEBUS_SKIPPED_STATUS=77)
  endif()
  if(TEST_LABEL MATCHES "^(multirank|fault)$")
    set_tests_properties(${TEST_LABEL}.${TEST_NAME} PROPERTIES PROCESSORS 2)
  endif()
endfunction()

function(moebus_bench)
  cmake_parse_arguments(PARSE_ARGV 0 BENCH "" "NAME" "SOURCES;USES")
  list(TRANSFORM BENCH_USES PREPEND "moebus::")
  add_executable(${BENCH_NAME} ${BENCH_SOURCES})
  moebus_compile_settings(${BENCH_NAME} PRIVATE)
  target_link_libraries(${BENCH_NAME} PRIVATE ${BENCH_USES} benchmark::benchmark_main moebus_warnings)
endfunction()

# Makes the target moebus_tests_<label>: the executables of that label's tests.
function(moebus_add_label_targets)
  foreach(label ${ARGN})
    get_property(tests GLOBAL PROPERTY MOEBUS_TESTS_${label})
    add_custom_target(moebus_tests_${label} DEPENDS ${tests})
  endforeach()
endfunction()

# Adds the sub-directories named.
macro(moebus_add_folders)
  foreach(folder ${ARGN})
    add_subdirectory(${folder})
  endforeach()
endmacro()
