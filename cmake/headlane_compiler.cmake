# Build type, compiler cache, sanitizers, and the options that every file of the project is compiled with.

if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 12)
  message(FATAL_ERROR "Headlane needs g++ 12 or later, found ${CMAKE_CXX_COMPILER_VERSION}")
endif()

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Release, RelWithDebInfo or Debug" FORCE)
endif()

# Only where nobody else decided about it.
if(PROJECT_IS_TOP_LEVEL AND NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(HEADLANE_CCACHE ccache)
  if(HEADLANE_CCACHE)
    # Without the working directory in the hash, builds of one tree in several folders share their objects. The
    # sloppiness is what ccache asks for before it works with precompiled headers.
    set(CMAKE_CXX_COMPILER_LAUNCHER
      "${CMAKE_COMMAND};-E;env;CCACHE_NOHASHDIR=1;CCACHE_SLOPPINESS=pch_defines,time_macros;${HEADLANE_CCACHE}")
  endif()
endif()

set(CMAKE_CXX_EXTENSIONS OFF)  # -std=c++20

# Link-time optimisation could contract or reorder arithmetic across the borders that the numerics rely on.
set(CMAKE_INTERPROCEDURAL_OPTIMIZATION OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

foreach(flags CMAKE_CXX_FLAGS CMAKE_CXX_FLAGS_RELEASE CMAKE_CXX_FLAGS_RELWITHDEBINFO)
  if("${${flags}}" MATCHES "-ffast-math|-Ofast|-funsafe-math|-flto|-ffp-contract=(fast|on)")
    message(FATAL_ERROR "${flags} = '${${flags}}' would change results: Headlane promises the same bits everywhere")
  endif()
endforeach()

if(HEADLANE_SANITIZE)
  # Everything, fetched dependencies included, or the sanitizers report what is none.
  add_compile_options(-fsanitize=${HEADLANE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${HEADLANE_SANITIZE})
endif()

# Never -march: Highway compiles each kernel for several targets and chooses at run time; the rest runs anywhere.
add_library(headlane_compile_options INTERFACE)
target_compile_features(headlane_compile_options INTERFACE cxx_std_20)
target_compile_options(headlane_compile_options INTERFACE
  -ffp-contract=off  # g++ fuses a multiplication and an addition otherwise, on some targets only
  -Wall -Wextra
  $<$<BOOL:${HEADLANE_WERROR}>:-Werror>
  # Highway: GCC takes vector types in std::tuple-like templates for a mistake.
  $<$<CXX_COMPILER_ID:GNU>:-Wno-ignored-attributes -Wno-psabi>)
