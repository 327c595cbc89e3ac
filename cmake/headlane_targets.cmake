# How tests, benchmarks and tools are declared. Every program lands in <binary dir>/bin.

# The path of the model file for tests that need one; HEADLANE_MODEL in the environment of ctest overrides it.
set(HEADLANE_MODEL "" CACHE FILEPATH "Model file for the tests labelled 'model'")

# headlane_test(name SOURCES a_test.cc ... [LIBS headlane::reference ...] [TIMEOUT seconds] [LABELS slow ...] [MODEL] [OPTIMIZED])
# A GoogleTest program and one ctest entry of its name. It sees the library's inner headers as "base/...", "kv/...".
# Labels: `threads` has it run under ThreadSanitizer (name and target must be the same), `slow` keeps it out of the
# sanitizers' runs. With MODEL the entry has the label `model`, and counts as skipped when its output has a line with
# "model test skipped". Programs of these three labels use all processors and run alone.
#
# A test's own files are compiled without optimisation: what they call has it, and compiling the checks takes half as
# long. OPTIMIZED is for a test that computes much in its own files.
function(headlane_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "MODEL;OPTIMIZED" "TIMEOUT" "SOURCES;LIBS;LABELS")
  if(arg_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "headlane_test(${name}): unknown arguments ${arg_UNPARSED_ARGUMENTS}")
  endif()
  add_executable(${name} ${arg_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/tests)
  target_link_libraries(${name} PRIVATE ${arg_LIBS} headlane::headlane GTest::gtest_main)
  if(arg_OPTIMIZED)
    headlane_test_headers(${name} headlane_test_headers_optimized "")
  else()
    headlane_test_headers(${name} headlane_test_headers -O0)
  endif()
  add_test(NAME ${name} COMMAND ${name} --gtest_brief=1)
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  set_tests_properties(${name} PROPERTIES TIMEOUT ${arg_TIMEOUT} ENVIRONMENT_MODIFICATION "${headlane_test_environment}")
  if(arg_MODEL)
    list(APPEND arg_LABELS model)
    set_tests_properties(${name} PROPERTIES SKIP_REGULAR_EXPRESSION "model test skipped")
    if(HEADLANE_MODEL)
      set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT_MODIFICATION "HEADLANE_MODEL=set:${HEADLANE_MODEL}")
    endif()
  endif()
  set_tests_properties(${name} PROPERTIES LABELS "${arg_LABELS}")
  if("threads" IN_LIST arg_LABELS OR "slow" IN_LIST arg_LABELS OR arg_MODEL)
    set_tests_properties(${name} PROPERTIES RUN_SERIAL ON)
  endif()
endfunction()

# Gives a test the compiler options `optimisation` and the headers that nearly all tests include, compiled once for all
# tests with these options: half of the time that a test takes to compile. `headers` names the target that owns them.
function(headlane_test_headers name headers optimisation)
  if(NOT TARGET ${headers})
    set(source "${PROJECT_BINARY_DIR}/${headers}.cc")
    file(CONFIGURE OUTPUT "${source}" CONTENT "// Owns the precompiled headers of the tests.\n")
    add_library(${headers} OBJECT "${source}")
    headlane_test_options(${headers} "${optimisation}")
    # As programs are compiled, which CMake would not do for a library.
    set_target_properties(${headers} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(${headers} PRIVATE -fPIE)
    target_link_libraries(${headers} PRIVATE GTest::gtest)
    target_precompile_headers(${headers} PRIVATE
      <gtest/gtest.h> <algorithm> <bit> <cmath> <cstdint> <cstring> <functional> <limits> <memory> <string> <thread>
      <utility> <vector>)
  endif()
  headlane_test_options(${name} "${optimisation}")
  # OpenMP changes the language: clang refuses headers that were compiled without it.
  if(NOT "OpenMP::OpenMP_CXX" IN_LIST arg_LIBS)
    target_precompile_headers(${name} REUSE_FROM ${headers})
  endif()
endfunction()

# UndefinedBehaviorSanitizer is for the library and the programs: in what only tests call it finds nothing that matters
# to anyone else, for a quarter of its compile time. AddressSanitizer stays, for the library reads memory of the tests.
function(headlane_test_code name)
  if(HEADLANE_SANITIZE MATCHES "undefined")
    target_compile_options(${name} PRIVATE -fno-sanitize=undefined)
  endif()
endfunction()

# What has to be the same for a test and the precompiled headers.
function(headlane_test_options name optimisation)
  headlane_test_code(${name})
  target_compile_definitions(${name} PRIVATE
    HEADLANE_WITH_OPENMP=$<BOOL:${HEADLANE_WITH_OPENMP}> HEADLANE_WITH_ONEDNN=$<BOOL:${HEADLANE_WITH_ONEDNN}>)
  target_link_libraries(${name} PRIVATE headlane_compile_options)
  target_compile_options(${name} PRIVATE ${optimisation})
endfunction()

# Busy-waiting threads stall each other for milliseconds on a loaded machine.
set(headlane_test_environment "OMP_WAIT_POLICY=set:passive")
if(HEADLANE_SANITIZE MATCHES "address")
  # LLVM's OpenMP never frees what it knows about threads that have ended.
  list(APPEND headlane_test_environment "LSAN_OPTIONS=set:suppressions=${PROJECT_SOURCE_DIR}/cmake/lsan_suppressions.txt")
endif()
if(HEADLANE_SANITIZE MATCHES "thread")
  # Archer tells ThreadSanitizer about OpenMP's barriers; code that was not instrumented (oneDNN) would only raise noise.
  find_library(HEADLANE_ARCHER NAMES archer HINTS "${HEADLANE_LIBOMP_DIR}" NO_CACHE)
  if(HEADLANE_ARCHER)
    list(APPEND headlane_test_environment "OMP_TOOL_LIBRARIES=set:${HEADLANE_ARCHER}")
  endif()
  list(APPEND headlane_test_environment "TSAN_OPTIONS=set:ignore_noninstrumented_modules=1 halt_on_error=1")
endif()

# headlane_bench(name SOURCES a_bench.cc ... [LIBS ...]): a Google Benchmark program with its own main().
function(headlane_bench name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LIBS")
  add_executable(${name} ${arg_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR})
  target_compile_definitions(${name} PRIVATE
    HEADLANE_WITH_OPENMP=$<BOOL:${HEADLANE_WITH_OPENMP}> HEADLANE_WITH_ONEDNN=$<BOOL:${HEADLANE_WITH_ONEDNN}>)
  target_link_libraries(${name} PRIVATE headlane_compile_options ${arg_LIBS} headlane::headlane benchmark::benchmark)
endfunction()

# headlane_tool(name SOURCES a.cc ... [LIBS ...]): an installed command line program; sees public headers only.
function(headlane_tool name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LIBS")
  add_executable(${name} ${arg_SOURCES})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${name} PRIVATE headlane_compile_options ${arg_LIBS} headlane::headlane)
  if(HEADLANE_INSTALL)
    install(TARGETS ${name} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  endif()
endfunction()
