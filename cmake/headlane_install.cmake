# Install rules and the CMake package `headlane`: targets headlane::headlane and, where it was built, headlane::decoder.

include(CMakePackageConfigHelpers)

set(headlane_config_dir "${CMAKE_INSTALL_LIBDIR}/cmake/headlane")
set(headlane_installed_targets headlane)
if(TARGET headlane_decoder)
  list(APPEND headlane_installed_targets headlane_decoder)
endif()

install(TARGETS ${headlane_installed_targets} EXPORT headlaneTargets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/headlane" DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(EXPORT headlaneTargets NAMESPACE headlane:: DESTINATION ${headlane_config_dir})

# A static library's own dependencies must be found again by whoever links it; a shared one has them inside.
get_target_property(headlane_library_type headlane TYPE)
set(headlane_needs_dependencies OFF)
if(headlane_library_type STREQUAL "STATIC_LIBRARY")
  set(headlane_needs_dependencies ON)
endif()
configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/headlaneConfig.cmake.in" "${PROJECT_BINARY_DIR}/headlaneConfig.cmake"
  INSTALL_DESTINATION ${headlane_config_dir})
# Before 1.0 a minor version may change the interface.
write_basic_package_version_file("${PROJECT_BINARY_DIR}/headlaneConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/headlaneConfig.cmake" "${PROJECT_BINARY_DIR}/headlaneConfigVersion.cmake"
  "${PROJECT_SOURCE_DIR}/cmake/FindPCRE2.cmake" DESTINATION ${headlane_config_dir})
