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

run(${CMAKE_COMMAND} --install ${BUILD} --component millrace --prefix ${prefix})
run(${CMAKE_COMMAND} -S ${SOURCE} -B ${SCRATCH}/build -DCMAKE_PREFIX_PATH=${prefix} -DCMAKE_CXX_COMPILER=${COMPILER})
run(${CMAKE_COMMAND} --build ${SCRATCH}/build)
run(${SCRATCH}/build/consumer)

# The .pc file carries the prefix of the configured build; define_variable moves it, as packagers do.
set(ENV{PKG_CONFIG_PATH} ${prefix}/${LIBDIR}/pkgconfig)
execute_process(COMMAND pkg-config --define-variable=prefix=${prefix} --cflags --libs millrace
                OUTPUT_VARIABLE flags OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
separate_arguments(flags UNIX_COMMAND "${flags}")
run(${COMPILER} -std=c++20 ${SOURCE}/main.cc -o ${SCRATCH}/by_pkg_config ${flags} -Wl,-rpath,${prefix}/${LIBDIR})
run(${SCRATCH}/by_pkg_config)

# Only the public interface is visible: nothing of the kernels, the protocol or the libraries linked in.
execute_process(COMMAND nm -DC --defined-only ${prefix}/${LIBDIR}/libmillrace.so OUTPUT_VARIABLE symbols
                COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "[^\n]+" symbols "${symbols}")
list(FILTER symbols EXCLUDE REGEX " (typeinfo (name )?for |vtable for )?millrace::v0::(Session|JobError)(::|$)")
list(FILTER symbols EXCLUDE REGEX " millrace::v0::(job_error_name|version)\\(")
if(symbols)
  string(JOIN "\n" symbols ${symbols})
  message(FATAL_ERROR "libmillrace.so shows more than its interface:\n${symbols}")
endif()
