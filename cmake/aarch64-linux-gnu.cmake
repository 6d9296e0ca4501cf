# Toolchain: Debian's g++ for aarch64, libraries from the sysroot that scripts/sysroot.sh unpacks, tests run by qemu-user.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)

set(MOEBUS_SYSROOT ${CMAKE_CURRENT_LIST_DIR}/../build/aarch64/sysroot CACHE PATH "Where sysroot.sh unpacked the libraries")
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES MOEBUS_SYSROOT)
get_filename_component(sysroot ${MOEBUS_SYSROOT} ABSOLUTE)
if(NOT EXISTS ${sysroot}/packages)
  message(FATAL_ERROR "${sysroot} holds no unpacked packages: run scripts/sysroot.sh arm64 ${sysroot}")
endif()

# Debian's place for headers that differ between processors, which the cross compiler does not look into.
set(CMAKE_CXX_STANDARD_INCLUDE_DIRECTORIES ${sysroot}/usr/include/aarch64-linux-gnu)

# Programs are this machine's; libraries, headers and packages are the other's and never this machine's.
set(CMAKE_FIND_ROOT_PATH ${sysroot})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(ENV{PKG_CONFIG_LIBDIR} ${sysroot}/usr/lib/aarch64-linux-gnu/pkgconfig:${sysroot}/usr/share/pkgconfig)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${sysroot})

# The C library is the compiler's own, the others are found by LD_LIBRARY_PATH.
set(CMAKE_CROSSCOMPILING_EMULATOR
    qemu-aarch64 -L /usr/aarch64-linux-gnu
    -E LD_LIBRARY_PATH=/usr/aarch64-linux-gnu/lib:${sysroot}/usr/lib/aarch64-linux-gnu)
# Libraries of libraries are looked up when a program starts, not when it is linked.
set(CMAKE_EXE_LINKER_FLAGS_INIT -Wl,--allow-shlib-undefined)
set(CMAKE_SHARED_LINKER_FLAGS_INIT -Wl,--allow-shlib-undefined)
