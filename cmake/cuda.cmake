# Which nvcc builds the CUDA module, and for which architectures. Functions only: the tests call them with `cmake -P`.

# Set `result` to the path of nvcc, or to a false value. In this order: in the toolkit that a variable names, on the
# PATH, in NVIDIA's packages that the interpreter `python` sees (nvidia-cuda-nvcc), where toolkits usually are.
function(iet_find_nvcc result python)
  set(named "")
  foreach(root IN ITEMS "${CUDAToolkit_ROOT}" "$ENV{CUDAToolkit_ROOT}" "$ENV{CUDA_HOME}" "$ENV{CUDA_PATH}")
    if(root)
      list(APPEND named "${root}")
    endif()
  endforeach()
  set(packages "")
  if(python)
    execute_process(
      COMMAND "${python}" -c "import nvidia; print(';'.join(nvidia.__path__))"
      OUTPUT_VARIABLE folders OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    foreach(folder IN LISTS folders)
      file(GLOB found "${folder}/cu[0-9]*")  # those of CUDA 12 lie elsewhere and hold no nvcc
      list(APPEND packages ${found})
    endforeach()
    list(SORT packages COMPARE NATURAL ORDER DESCENDING)
  endif()
  unset(found)
  find_program(found nvcc NO_CACHE NO_CMAKE_SYSTEM_PATH
               HINTS ${named} PATHS ${packages} /usr/local/cuda /opt/cuda PATH_SUFFIXES bin)
  set(${result} "${found}" PARENT_SCOPE)
endfunction()

# Set `result` to the release of an nvcc, such as 12.8.
function(iet_nvcc_version result nvcc)
  execute_process(COMMAND "${nvcc}" --version OUTPUT_VARIABLE said ERROR_QUIET)
  string(REGEX MATCH "release ([0-9.]+)" said "${said}")
  set(${result} "${CMAKE_MATCH_1}" PARENT_SCOPE)
endfunction()

# Set `result` to those of `wanted` (numbers, ascending) that an nvcc knows: machine code for each of them, and PTX of
# the last one, which drivers compile for what comes later.
function(iet_known_architectures result nvcc wanted)
  execute_process(COMMAND "${nvcc}" --list-gpu-arch OUTPUT_VARIABLE listed ERROR_QUIET RESULT_VARIABLE failed)
  if(failed)
    set(listed "compute_75 compute_80")  # of the first nvcc that compiles C++17, which cannot list them
  endif()
  set(known "")
  foreach(architecture IN LISTS wanted)
    if(listed MATCHES "compute_${architecture}([^0-9]|$)")
      list(APPEND known ${architecture})
    endif()
  endforeach()
  list(POP_BACK known last)
  list(TRANSFORM known APPEND "-real")
  set(${result} ${known} ${last} PARENT_SCOPE)
endfunction()

# Set `result` to what a build for oneself takes: machine code for the GPUs of this machine or, where none is seen, PTX
# of the first of `wanted` that an nvcc knows, which the driver compiles when it is first used.
function(iet_own_architectures result nvcc wanted)
  set(own "")
  find_program(smi nvidia-smi NO_CACHE)
  if(smi)
    execute_process(COMMAND "${smi}" --query-gpu=compute_cap --format=csv,noheader
                    OUTPUT_VARIABLE said ERROR_QUIET RESULT_VARIABLE failed)
    if(NOT failed)
      string(REGEX MATCHALL "[0-9]+\\.[0-9]" own "${said}")
      list(TRANSFORM own REPLACE "\\." "")
      list(TRANSFORM own APPEND "-real")
      list(REMOVE_DUPLICATES own)
    endif()
  endif()
  if(NOT own)
    iet_known_architectures(known "${nvcc}" "${wanted}")
    list(GET known 0 own)
    string(REGEX REPLACE "-real$" "" own "${own}")
    string(APPEND own "-virtual")
  endif()
  set(${result} ${own} PARENT_SCOPE)
endfunction()
