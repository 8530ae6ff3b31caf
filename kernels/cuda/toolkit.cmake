# The least release: 12.5 has a call that device_queue.cc needs, 12.8 the compute capability 10.0 of the packages.
set(MILLRACE_CUDA_LEAST 12.8)

# millrace_usable_nvcc(OUT REMEDY nvcc): OUT is nvcc if its toolkit is new enough, and empty otherwise. REMEDY says what to do then.
function(millrace_usable_nvcc out remedy nvcc)
  set(${out} "" PARENT_SCOPE)
  set(${remedy} "NVIDIA's installer has it" PARENT_SCOPE)
  if(NOT nvcc)
    return()
  endif()
  execute_process(COMMAND ${nvcc} --version OUTPUT_VARIABLE text ERROR_QUIET)
  if(NOT text MATCHES "release ([0-9]+[.][0-9]+)")
    set(${remedy} "${nvcc} does not name its release; NVIDIA's installer has it" PARENT_SCOPE)
  elseif(CMAKE_MATCH_1 VERSION_LESS MILLRACE_CUDA_LEAST)
    set(${remedy} "${nvcc} is of release ${CMAKE_MATCH_1}; NVIDIA's installer has it" PARENT_SCOPE)
  else()
    set(${out} ${nvcc} PARENT_SCOPE)
  endif()
endfunction()
