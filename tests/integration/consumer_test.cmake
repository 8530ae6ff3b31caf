# Installs the worker library into a scratch prefix, then configures, builds and runs the outside project against it: by
# find_package, and by pkg-config. Called by ctest with BUILD, SOURCE, SCRATCH, COMPILER, LIBDIR.
file(REMOVE_RECURSE ${SCRATCH})
set(prefix ${SCRATCH}/prefix)

function(run)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    string(JOIN " " command ${ARGV})
    message(FATAL_ERROR "${command}: ${result}\n${output}")
  endif()
  message(STATUS "${output}")
endfunction()

foreach(component runtime mpi development)
  run(${CMAKE_COMMAND} --install ${BUILD} --component ${component} --prefix ${prefix})
endforeach()
run(${CMAKE_COMMAND} -S ${SOURCE} -B ${SCRATCH}/build -DCMAKE_PREFIX_PATH=${prefix} -DCMAKE_CXX_COMPILER=${COMPILER})
run(${CMAKE_COMMAND} --build ${SCRATCH}/build)
run(${SCRATCH}/build/consumer)
run(${SCRATCH}/build/peers_consumer)

# The .pc file carries the prefix of the configured build; define_variable moves it, as packagers do.
set(ENV{PKG_CONFIG_PATH} ${prefix}/${LIBDIR}/pkgconfig)
foreach(package_and_source millrace:main.cc millrace_peer:peers.cc)
  string(REGEX MATCH "^[a-z_]+" package ${package_and_source})
  string(REGEX REPLACE "^[a-z_]+:" "" source ${package_and_source})
  execute_process(COMMAND pkg-config --define-variable=prefix=${prefix} --cflags --libs ${package}
                  OUTPUT_VARIABLE flags OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  separate_arguments(flags UNIX_COMMAND "${flags}")
  run(${COMPILER} -std=c++20 -pthread ${SOURCE}/${source} -o ${SCRATCH}/by_pkg_config ${flags}
      -Wl,-rpath,${prefix}/${LIBDIR})
  run(${SCRATCH}/by_pkg_config)
endforeach()

# Only the public interface is visible: nothing of the kernels, the protocol or the libraries linked in.
function(check_symbols library)
  execute_process(COMMAND nm -DC --defined-only ${prefix}/${LIBDIR}/${library} OUTPUT_VARIABLE symbols
                  COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "[^\n]+" symbols "${symbols}")
  foreach(pattern IN LISTS ARGN)
    list(FILTER symbols EXCLUDE REGEX ${pattern})
  endforeach()
  if(symbols)
    string(JOIN "\n" symbols ${symbols})
    message(FATAL_ERROR "${library} shows more than its interface:\n${symbols}")
  endif()
endfunction()
check_symbols(libmillrace.so " (typeinfo (name )?for |vtable for )?millrace::v0::(Session|JobError)(::|$)"
              " millrace::v0::(job_error_name|version)\\(")
check_symbols(libmillrace_peer.so " millrace::v0::peers::(Allreduce|Communicator|Group|Pending|PendingGather)::(~?[A-Za-z_]+|operator=)(.abi:cxx11.)?\\("
              " millrace::v0::peers::algorithms\\(")
if(EXISTS ${prefix}/${LIBDIR}/libmillrace_peer_mpi.so)
  check_symbols(libmillrace_peer_mpi.so " millrace::v0::peers::Communicator::over_mpi\\(")
endif()

# Peers need no MPI, unless over_mpi() is called: neither the library nor a public header.
execute_process(COMMAND readelf -d ${prefix}/${LIBDIR}/libmillrace_peer.so OUTPUT_VARIABLE needed
                COMMAND_ERROR_IS_FATAL ANY)
if(needed MATCHES "NEEDED[^\n]*libmpi")
  message(FATAL_ERROR "libmillrace_peer.so needs MPI:\n${needed}")
endif()
file(GLOB headers ${prefix}/include/millrace/*.h)
foreach(header IN LISTS headers)
  file(STRINGS ${header} foreign REGEX "^#include (<[^>]*[./][^>]*>|\"[^m])")
  if(foreign)
    message(FATAL_ERROR "${header} includes more than the standard library and millrace/: ${foreign}")
  endif()
endforeach()
