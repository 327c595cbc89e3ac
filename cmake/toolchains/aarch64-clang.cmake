# clang 19 for 64-bit ARM, with the C and C++ libraries of g++-12-aarch64-linux-gnu, which it finds by itself. Compiles
# NEON_BF16 besides what aarch64-gcc.cmake does. Without OpenMP: clang's library for ARM cannot be linked statically.
include("${CMAKE_CURRENT_LIST_DIR}/aarch64.cmake")
set(CMAKE_C_COMPILER clang-19)
set(CMAKE_CXX_COMPILER clang++-19)
set(CMAKE_C_COMPILER_TARGET aarch64-linux-gnu)
set(CMAKE_CXX_COMPILER_TARGET aarch64-linux-gnu)
