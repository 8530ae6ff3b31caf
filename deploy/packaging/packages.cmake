# Debian packages: deploy/packages.sh builds them from the preset "package". Each component is a package.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME millrace)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_DIRECTORY ${PROJECT_BINARY_DIR}/packages)
set(MILLRACE_MAINTAINER "Millrace developers <millrace@example.org>" CACHE STRING "Maintainer of the Debian packages, as Name <address>")
set(CPACK_PACKAGE_CONTACT ${MILLRACE_MAINTAINER})
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE
  WORLD_READ WORLD_EXECUTE)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_GROUPING ONE_PER_GROUP)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)  # of libraries with a version: the dependencies of packages that use them
# Our own libraries, on which some packages depend: by version, below.
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR}/worker ${PROJECT_BINARY_DIR}/worker/peer/library)

# millrace_package(COMPONENT NAME SECTION [DEPENDS …] [RECOMMENDS …] [SCRIPTS …] SUMMARY text DESCRIPTION text): its
# control file, and its copyright and changelog files.
function(millrace_package component name section)
  cmake_parse_arguments(ARG "" "SUMMARY;DESCRIPTION;DEPENDS;RECOMMENDS" "SCRIPTS" ${ARGN})
  string(TOUPPER ${component} key)
  set(CPACK_DEBIAN_${key}_PACKAGE_NAME "${name}" PARENT_SCOPE)
  set(CPACK_DEBIAN_${key}_PACKAGE_SECTION "${section}" PARENT_SCOPE)
  set(CPACK_DEBIAN_${key}_DESCRIPTION "${ARG_SUMMARY}\n${ARG_DESCRIPTION}" PARENT_SCOPE)
  set(CPACK_DEBIAN_${key}_PACKAGE_DEPENDS "${ARG_DEPENDS}" PARENT_SCOPE)
  set(CPACK_DEBIAN_${key}_PACKAGE_RECOMMENDS "${ARG_RECOMMENDS}" PARENT_SCOPE)
  list(TRANSFORM ARG_SCRIPTS PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/maintainer/)
  set(CPACK_DEBIAN_${key}_PACKAGE_CONTROL_EXTRA "${ARG_SCRIPTS}" PARENT_SCOPE)
  set(CPACK_COMPONENTS_ALL ${CPACK_COMPONENTS_ALL} ${component} PARENT_SCOPE)
  if(NOT CMAKE_INSTALL_PREFIX STREQUAL "/usr")
    return()  # no packages are made of this build: a component has no Debian documents
  endif()
  set(MILLRACE_PACKAGE ${name})
  set(documents ${CMAKE_CURRENT_BINARY_DIR}/documents/${name})
  configure_file(copyright.in ${documents}/copyright @ONLY)
  install(FILES ${documents}/copyright DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${name} COMPONENT ${component}
    EXCLUDE_FROM_ALL)
  configure_file(changelog.in ${documents}/changelog @ONLY)
  install(CODE "
    execute_process(COMMAND gzip -9nc ${documents}/changelog OUTPUT_FILE ${documents}/changelog.gz COMMAND_ERROR_IS_FATAL ANY)
    file(INSTALL DESTINATION \${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_DATADIR}/doc/${name} TYPE FILE
      FILES ${documents}/changelog.gz)" COMPONENT ${component} EXCLUDE_FROM_ALL)
endfunction()

set(what "Millrace sums sparse gradients for distributed training over slow links:
workers send a few selected, compressed entries to sharded servers, which
send the sum's largest entries back.\n.\n")
set(same "= ${PROJECT_VERSION}")
set(soversion ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
set(libraries "libmillrace${soversion} (${same})")
set(CPACK_COMPONENTS_ALL)
# DPDK loads the code of its memory pools and devices at run time, so no program links to it.
set(dpdk_pools)
set(dpdk_devices)
if(TARGET millrace_switch_dpdk)
  set(dpdk_pools ", librte-meta-mempool")
  set(dpdk_devices "librte-meta-net")
endif()

millrace_package(server millrace-server net SUMMARY "parameter server for sparse gradients"
  DESCRIPTION "${what}This package has the server, a systemd service for each shard, and its\nconfiguration."
  DEPENDS "adduser" SCRIPTS server/postinst server/prerm server/postrm server/conffiles)
millrace_package(switch millrace-switch net SUMMARY "software switch that sums sparse gradients"
  DESCRIPTION "${what}This package has the switch, which sums windows of gradients that workers\nsend by UDP, with its systemd service."
  DEPENDS "adduser${dpdk_pools}" RECOMMENDS "${dpdk_devices}"
  SCRIPTS switch/postinst switch/prerm switch/postrm switch/conffiles)
millrace_package(tools millrace-tools net SUMMARY "commands, benchmarks and dashboards of Millrace"
  DESCRIPTION "${what}This package has the command millrace, which trains, serves and diagnoses,\nranks over MPI, benchmarks, and dashboards for Grafana."
  DEPENDS "${libraries}${dpdk_pools}" RECOMMENDS "millrace-server (${same})")
millrace_package(runtime libmillrace${soversion} libs SUMMARY "worker library of Millrace"
  DESCRIPTION "${what}This package has the shared libraries of workers, and of peers without\nservers.")
if(TARGET millrace_peers_mpi)
  millrace_package(mpi libmillrace-peer-mpi${soversion} libs SUMMARY "peers over MPI for the worker library of Millrace"
    DESCRIPTION "${what}This package has the communicator over MPI." DEPENDS "${libraries}")
  string(APPEND libraries ", libmillrace-peer-mpi${soversion} (${same})")
endif()
millrace_package(development libmillrace-dev libdevel SUMMARY "worker library of Millrace (development files)"
  DESCRIPTION "${what}This package has headers, and files for CMake and pkg-config."
  DEPENDS "${libraries}")
if(TARGET millrace_python)
  math(EXPR next "${MILLRACE_PYTHON_MINOR} + 1")
  millrace_package(python python3-millrace python SUMMARY "worker library of Millrace for Python"
    DESCRIPTION "${what}This package has the binding for Python 3 with NumPy, and millrace.torch for\nPyTorch."
    DEPENDS "python3 (>= 3.${MILLRACE_PYTHON_MINOR}), python3 (<< 3.${next}), python3-numpy" RECOMMENDS "python3-torch"
    SCRIPTS python/postinst python/prerm)
endif()
foreach(component RUNTIME MPI)
  set(CPACK_DEBIAN_${component}_PACKAGE_CONTROL_EXTRA ${CMAKE_CURRENT_SOURCE_DIR}/maintainer/library/triggers)
endforeach()
include(CPack)
