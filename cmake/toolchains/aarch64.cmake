# What both compilers for 64-bit ARM have in common. Included by aarch64-gcc.cmake and aarch64-clang.cmake, which presets
# name. Debian's cross compiler has its own C library; the machine's packages are for another processor and are not looked
# at, so the dependencies come from source (tools/test_arm.sh fetches them, or CMake does).
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_FIND_ROOT_PATH /usr/aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY BOTH)  # the compiler's own, such as OpenMP's, are beside the compiler
find_program(HEADLANE_QEMU_AARCH64 NAMES qemu-aarch64 qemu-aarch64-static)
if(HEADLANE_QEMU_AARCH64)
  set(CMAKE_CROSSCOMPILING_EMULATOR "${HEADLANE_QEMU_AARCH64};-cpu;max")
endif()
