# g++ 12 for 64-bit ARM: Debian's g++-12-aarch64-linux-gnu. Compiles NEON and all of SVE.
include("${CMAKE_CURRENT_LIST_DIR}/aarch64.cmake")
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc-12)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++-12)
