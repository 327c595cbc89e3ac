# PCRE2::8BIT from the system. Distributions ship PCRE2 without a CMake package when it was built with autotools.
find_path(PCRE2_INCLUDE_DIR NAMES pcre2.h)
find_library(PCRE2_8BIT_LIBRARY NAMES pcre2-8)
mark_as_advanced(PCRE2_INCLUDE_DIR PCRE2_8BIT_LIBRARY)

if(PCRE2_INCLUDE_DIR)
  file(STRINGS "${PCRE2_INCLUDE_DIR}/pcre2.h" pcre2_version_lines REGEX "#define PCRE2_(MAJOR|MINOR)[ \t]+[0-9]+")
  string(REGEX REPLACE ".*PCRE2_MAJOR[ \t]+([0-9]+).*PCRE2_MINOR[ \t]+([0-9]+).*" "\\1.\\2" PCRE2_VERSION
    "${pcre2_version_lines}")
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(PCRE2 REQUIRED_VARS PCRE2_8BIT_LIBRARY PCRE2_INCLUDE_DIR VERSION_VAR PCRE2_VERSION)

if(PCRE2_FOUND AND NOT TARGET PCRE2::8BIT)
  add_library(PCRE2::8BIT UNKNOWN IMPORTED)
  set_target_properties(PCRE2::8BIT PROPERTIES
    IMPORTED_LOCATION "${PCRE2_8BIT_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${PCRE2_INCLUDE_DIR}")
endif()
