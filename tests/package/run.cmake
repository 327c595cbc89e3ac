# Run by ctest: see CMakeLists.txt beside this file.
set(prefix "${WORK_DIR}/prefix")
set(build "${WORK_DIR}/build")
file(REMOVE_RECURSE "${prefix}" "${build}")

execute_process(COMMAND ${CMAKE_COMMAND} --install "${BUILD_DIR}" --prefix "${prefix}" OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)

string(REPLACE "|" ";" openmp_arguments "${OPENMP_ARGUMENTS}")
execute_process(COMMAND ${CMAKE_COMMAND} -S "${CONSUMER_DIR}" -B "${build}" -G "${GENERATOR}"
  "-DCMAKE_CXX_COMPILER=${CXX_COMPILER}" "-DCMAKE_BUILD_TYPE=${BUILD_TYPE}" "-DCMAKE_PREFIX_PATH=${prefix}"
  "-DWITH_DECODER=${WITH_DECODER}" ${openmp_arguments}
  OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
# The package that was found must be the one that was just installed, not one of the system.
file(STRINGS "${build}/CMakeCache.txt" found REGEX "^headlane_DIR:")
string(FIND "${found}" "${prefix}" position)
if(position EQUAL -1)
  message(FATAL_ERROR "found another package than the one installed in ${prefix}: ${found}")
endif()
execute_process(COMMAND ${CMAKE_COMMAND} --build "${build}" COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND "${build}/consumer" COMMAND_ERROR_IS_FATAL ANY)
