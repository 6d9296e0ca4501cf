# Which versions a program built against one may run with: docs/compatibility.md is the promise, this is what enforces it.
if(moebus_VERSION_MAJOR EQUAL 0)
  set(MOEBUS_SOVERSION 0.${moebus_VERSION_MINOR})
  set(MOEBUS_COMPATIBILITY SameMinorVersion)
else()
  set(MOEBUS_SOVERSION ${moebus_VERSION_MAJOR})
  set(MOEBUS_COMPATIBILITY SameMajorVersion)
endif()
