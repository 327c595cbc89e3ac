# Every dependency: the system's package first, and where there is none a pinned release, fetched and checked.
#
# tools/setup.sh installs the packages on Debian; this is what other systems fall back to. A mirror is given as
# -DHEADLANE_<NAME>_URL=... and, for another release, -DHEADLANE_<NAME>_SHA256=...; -DHEADLANE_FETCH=OFF forbids it.

include(FetchContent)

option(HEADLANE_FETCH "Fetch pinned releases of dependencies for which no package is found" ON)

function(headlane_pin name url sha256)
  set(HEADLANE_${name}_URL "${url}" CACHE STRING "Release of ${name} to fetch when no package is found")
  set(HEADLANE_${name}_SHA256 "${sha256}" CACHE STRING "SHA-256 of HEADLANE_${name}_URL")
  mark_as_advanced(HEADLANE_${name}_URL HEADLANE_${name}_SHA256)
endfunction()

headlane_pin(HIGHWAY https://github.com/google/highway/archive/refs/tags/1.2.0.tar.gz
  7e0be78b8318e8bdbf6fa545d2ecb4c90f947df03f7aadc42c1967f019e63343)
headlane_pin(PCRE2 https://github.com/PCRE2Project/pcre2/releases/download/pcre2-10.42/pcre2-10.42.tar.gz
  c33b418e3b936ee3153de2c61cc638e7e4fe3156022a5c77d0711bcbb9d64f1f)
headlane_pin(ONEDNN https://github.com/oneapi-src/oneDNN/archive/refs/tags/v3.7.3.tar.gz
  071f289dc961b43a3b7c8cbe8a305290a7c5d308ec4b2f586397749abdc88296)
headlane_pin(GOOGLETEST https://github.com/google/googletest/archive/refs/tags/v1.14.0.tar.gz
  8ad598c73ad796e0d8280b082cebd82a630d73e73cd3c70057938a6501bba5d7)
headlane_pin(BENCHMARK https://github.com/google/benchmark/archive/refs/tags/v1.8.3.tar.gz
  6bc180a57d23d4d9515519f92b0c83d61b05b5bab188961f36ac7b06b0d9e9ce)
headlane_pin(CLI11 https://github.com/CLIUtils/CLI11/archive/refs/tags/v2.4.2.tar.gz
  f2d893a65c3b1324c50d4e682c0cdc021dd0477ae2c048544f39eed6654b699a)
headlane_pin(JSON https://github.com/nlohmann/json/releases/download/v3.11.3/json.tar.xz
  d6c65aca6b1ed68e7a182f4757257b107ae403032760ed6ef121c9d55e81757d)

# headlane_fetch(NAME) makes the pinned release part of this build. A macro: the options of a release are plain
# variables that the caller sets before it.
macro(headlane_fetch name)
  if(NOT HEADLANE_FETCH)
    message(FATAL_ERROR "No package of ${name} was found, and HEADLANE_FETCH=OFF forbids fetching it")
  endif()
  message(STATUS "No package of ${name} was found: fetching ${HEADLANE_${name}_URL}")
  string(TOLOWER "headlane_${name}" headlane_fetch_name)
  FetchContent_Declare(${headlane_fetch_name} SYSTEM
    URL "${HEADLANE_${name}_URL}" URL_HASH "SHA256=${HEADLANE_${name}_SHA256}" DOWNLOAD_EXTRACT_TIMESTAMP OFF)
  set(headlane_saved_shared ${BUILD_SHARED_LIBS})
  set(BUILD_SHARED_LIBS OFF)
  set(BUILD_TESTING OFF)  # theirs; ours are HEADLANE_BUILD_TESTS
  FetchContent_MakeAvailable(${headlane_fetch_name})
  set(BUILD_SHARED_LIBS ${headlane_saved_shared})
  if(HEADLANE_INSTALL)
    # An installed package would refer to libraries that exist in this build folder only.
    message(STATUS "HEADLANE_INSTALL: off, because ${name} is built in")
    set(HEADLANE_INSTALL OFF)
  endif()
endmacro()

# Fetched projects read their options as variables, also those that know policies before CMP0077 only.
set(CMAKE_POLICY_DEFAULT_CMP0077 NEW)

# ---- Programs without shared libraries, which emulators start without a system around them ----
option(HEADLANE_STATIC_PROGRAMS "Link all programs statically" OFF)
if(HEADLANE_STATIC_PROGRAMS)
  list(PREPEND CMAKE_FIND_LIBRARY_SUFFIXES .a)
  add_link_options(-static)
  # GoogleTest can report to a socket, which it is never told to; linkers warn of its look-up of names.
  include(CheckLinkerFlag)
  check_linker_flag(CXX LINKER:--no-warnings HEADLANE_HAVE_NO_WARNINGS)
  if(HEADLANE_HAVE_NO_WARNINGS)
    add_link_options(LINKER:--no-warnings)
  endif()
endif()

# ---- SIMD: includes and links reach src/kernels only ----
set(HEADLANE_HIGHWAY_LIBRARY hwy::hwy)
find_package(hwy 1.2 CONFIG QUIET)
if(HEADLANE_STATIC_PROGRAMS AND hwy_VERSION VERSION_EQUAL 1.2.0)
  # The package may have a shared library only. The release pinned above is the same one: its few sources are compiled
  # with the package's headers, so that the objects of the kernels are those of other builds, and ccache has them.
  FetchContent_Declare(headlane_highway URL "${HEADLANE_HIGHWAY_URL}" URL_HASH "SHA256=${HEADLANE_HIGHWAY_SHA256}"
    DOWNLOAD_EXTRACT_TIMESTAMP OFF SOURCE_SUBDIR none)  # a folder that does not exist: unpacked, not built
  FetchContent_MakeAvailable(headlane_highway)
  set(HEADLANE_HIGHWAY_LIBRARY headlane_highway_static)
  add_library(headlane_highway_static STATIC)
  foreach(file abort aligned_allocator per_target print targets timer)
    target_sources(headlane_highway_static PRIVATE "${headlane_highway_SOURCE_DIR}/hwy/${file}.cc")
  endforeach()
  target_include_directories(headlane_highway_static PUBLIC
    $<TARGET_PROPERTY:hwy::hwy,INTERFACE_INCLUDE_DIRECTORIES>)
  # Two of them include themselves, by the path from the source's root. Behind the package's headers, or it replaces them.
  target_compile_options(headlane_highway_static PRIVATE "-idirafter${headlane_highway_SOURCE_DIR}")
  target_compile_definitions(headlane_highway_static PUBLIC
    $<TARGET_PROPERTY:hwy::hwy,INTERFACE_COMPILE_DEFINITIONS>)
  target_compile_features(headlane_highway_static PRIVATE cxx_std_20)
elseif(HEADLANE_STATIC_PROGRAMS OR NOT hwy_FOUND)
  set(HWY_ENABLE_TESTS OFF)
  set(HWY_ENABLE_EXAMPLES OFF)
  set(HWY_ENABLE_CONTRIB OFF)
  set(HWY_ENABLE_INSTALL OFF)
  headlane_fetch(HIGHWAY)
  set(HEADLANE_HIGHWAY_LIBRARY hwy)
endif()

# ---- The tokenizer's patterns ----
if(HEADLANE_BUILD_DECODER)
  find_package(PCRE2 10.30 QUIET)
  if(NOT PCRE2_FOUND)
    enable_language(C)
    set(PCRE2_BUILD_PCRE2GREP OFF)
    set(PCRE2_BUILD_TESTS OFF)
    set(PCRE2_SUPPORT_JIT ON)
    headlane_fetch(PCRE2)
    add_library(PCRE2::8BIT INTERFACE IMPORTED GLOBAL)
    target_link_libraries(PCRE2::8BIT INTERFACE pcre2-8-static)
    target_include_directories(PCRE2::8BIT INTERFACE "${headlane_pcre2_BINARY_DIR}")
    target_compile_definitions(PCRE2::8BIT INTERFACE PCRE2_STATIC)
  endif()
endif()

# Libraries that are headers alone are the same for every processor, so a cross build takes the machine's: through a link
# in the build folder, because what else lies beside them in /usr/include is for the machine's own processor.
function(headlane_host_headers target folder)
  find_path(headlane_host_${folder} NAMES ${folder} PATHS /usr/include /usr/local/include NO_DEFAULT_PATH NO_CMAKE_FIND_ROOT_PATH NO_CACHE)
  if(headlane_host_${folder})
    file(MAKE_DIRECTORY "${PROJECT_BINARY_DIR}/host_headers")
    file(CREATE_LINK "${headlane_host_${folder}}/${folder}" "${PROJECT_BINARY_DIR}/host_headers/${folder}" SYMBOLIC)
    add_library(${target} INTERFACE IMPORTED GLOBAL)
    target_include_directories(${target} INTERFACE "${PROJECT_BINARY_DIR}/host_headers")
  endif()
endfunction()
if(CMAKE_CROSSCOMPILING)
  headlane_host_headers(CLI11::CLI11 CLI)
  headlane_host_headers(nlohmann_json::nlohmann_json nlohmann)
endif()

# ---- Tests, benchmarks, tools ----
if(HEADLANE_BUILD_TESTS)
  find_package(GTest QUIET)
  if(NOT GTest_FOUND)
    set(INSTALL_GTEST OFF)
    set(BUILD_GMOCK OFF)
    headlane_fetch(GOOGLETEST)
  endif()
endif()
if(HEADLANE_BUILD_BENCH)
  find_package(benchmark QUIET)
  if(NOT benchmark_FOUND)
    set(BENCHMARK_ENABLE_TESTING OFF)
    set(BENCHMARK_ENABLE_INSTALL OFF)
    headlane_fetch(BENCHMARK)
  endif()
endif()
if(HEADLANE_BUILD_TOOLS AND NOT TARGET CLI11::CLI11)
  find_package(CLI11 QUIET)
  if(NOT CLI11_FOUND)
    set(CLI11_BUILD_TESTS OFF)
    set(CLI11_BUILD_EXAMPLES OFF)
    set(CLI11_BUILD_DOCS OFF)
    headlane_fetch(CLI11)
  endif()
endif()
if((HEADLANE_BUILD_TOOLS OR HEADLANE_BUILD_TESTS) AND NOT TARGET nlohmann_json::nlohmann_json)
  find_package(nlohmann_json QUIET)
  if(NOT nlohmann_json_FOUND)
    set(JSON_BuildTests OFF)
    headlane_fetch(JSON)
  endif()
endif()

# ---- OpenMP: flags reach one file of src/exec only ----
set(HEADLANE_LIBOMP_DIR "" CACHE PATH
  "Folder with libomp.so and clang/<version>/include/omp.h, where clang's OpenMP is not installed; empty: the compiler's own")
if(HEADLANE_WITH_OPENMP)
  if(HEADLANE_LIBOMP_DIR AND EXISTS "${HEADLANE_LIBOMP_DIR}")
    file(GLOB libomp_include "${HEADLANE_LIBOMP_DIR}/clang/*/include")
    set(OpenMP_CXX_FLAGS "-fopenmp=libomp -isystem ${libomp_include}")
    set(OpenMP_CXX_LIB_NAMES omp)
    set(OpenMP_omp_LIBRARY "${HEADLANE_LIBOMP_DIR}/libomp.so")
  endif()
  find_package(OpenMP QUIET COMPONENTS CXX)
  if(NOT OpenMP_CXX_FOUND)
    message(FATAL_ERROR "This compiler has no OpenMP. HEADLANE_WITH_OPENMP=OFF builds without: serial, or on your own threads.")
  endif()
endif()

# ---- oneDNN: one file of src/linear only. Fetched only when it was asked for: it takes long to build. ----
if(HEADLANE_WITH_ONEDNN)
  find_package(dnnl 3.5 CONFIG QUIET)
  if(dnnl_FOUND)
    set(HEADLANE_WITH_ONEDNN ON)
  elseif(HEADLANE_WITH_ONEDNN STREQUAL "AUTO")
    set(HEADLANE_WITH_ONEDNN OFF)
  else()
    enable_language(C)
    set(DNNL_LIBRARY_TYPE STATIC)
    set(DNNL_CPU_RUNTIME OMP)
    set(DNNL_BUILD_TESTS OFF)
    set(DNNL_BUILD_EXAMPLES OFF)
    set(ONEDNN_BUILD_GRAPH OFF)
    headlane_fetch(ONEDNN)
    if(NOT TARGET DNNL::dnnl)
      add_library(DNNL::dnnl ALIAS dnnl)
    endif()
  endif()
else()
  set(HEADLANE_WITH_ONEDNN OFF)
endif()
if(HEADLANE_WITH_ONEDNN)
  message(STATUS "oneDNN: with it, the linear layers have the backends `tile` (default) and `onednn`")
else()
  message(STATUS "oneDNN: without it (not found, or HEADLANE_WITH_ONEDNN=OFF); the linear layers have the backend `tile` only")
endif()
