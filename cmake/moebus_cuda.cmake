# The CUDA language and what device code is compiled with; included only with MOEBUS_CUDA. Where nvcc is: CUDACXX, else
# the PATH, else /usr/local/cuda, else a toolkit below build/cuda-toolkit (scripts/cuda_toolkit.sh installs one).
#   moebus_cuda_settings(target): for targets with .cu sources.

if(MOEBUS_SANITIZE OR MOEBUS_COVERAGE OR MOEBUS_FUZZ)
  message(FATAL_ERROR "MOEBUS_CUDA does not go with sanitizers, fuzzing or coverage: nvcc passes their options on to no "
                      "tool that knows them. Build the CPU library for those.")
endif()

set(MOEBUS_CUDA_ARCHITECTURES "80-real;86-real;89-real;90-real;100-real;120-real;120-virtual" CACHE STRING
    "Processors that device code is compiled for; the virtual one lets later ones translate it themselves")
set(CMAKE_CUDA_ARCHITECTURES ${MOEBUS_CUDA_ARCHITECTURES})

if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  find_program(MOEBUS_NVCC nvcc DOC "The CUDA compiler"
               PATHS /usr/local/cuda/bin ${moebus_SOURCE_DIR}/build/cuda-toolkit/13.0/bin)
  if(NOT MOEBUS_NVCC)
    message(FATAL_ERROR "MOEBUS_CUDA is on, and there is no nvcc: neither CUDACXX nor the PATH, /usr/local/cuda or "
                        "build/cuda-toolkit has one. `scripts/cuda_toolkit.sh 13.0` installs it below build/.")
  endif()
  set(CMAKE_CUDA_COMPILER ${MOEBUS_NVCC})
endif()
if(NOT CMAKE_CUDA_HOST_COMPILER)
  set(CMAKE_CUDA_HOST_COMPILER ${CMAKE_CXX_COMPILER})
endif()
if(CCACHE_PROGRAM AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()
enable_language(CUDA)
find_package(CUDAToolkit 12.9 REQUIRED)

# CMake 3.25 does not know nvcc's option for C++20, so that it is told here and CMAKE_CUDA_STANDARD stays unset. Products
# and sums are contracted nowhere (-fmad=false): an explicit fma is one, and nothing else is.
function(moebus_cuda_settings target)
  set(options -std=c++20 -fmad=false --expt-relaxed-constexpr --threads=2 -Xcompiler=-ffp-contract=off
              -Xcompiler=-Wall,-Wextra,-Wshadow)
  if(MOEBUS_WERROR)
    list(APPEND options -Werror=all-warnings -Xcompiler=-Werror)
  endif()
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:${options}>")
endfunction()
