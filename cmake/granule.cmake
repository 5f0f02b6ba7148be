# Functions of this build: one call per layer, one place for flags.

find_program(GRANULE_CCACHE ccache)
if(GRANULE_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${GRANULE_CCACHE})
endif()

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_FLAGS_RELEASE "-O2")
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g1")

# A header that a distribution package brings; its absence names the package.
function(granule_require_header header package)
  string(MAKE_C_IDENTIFIER "GRANULE_HAVE_${header}" var)
  find_path(${var} ${header})
  if(NOT ${var})
    message(FATAL_ERROR "${header} is missing: install the package ${package} (make setup does it).")
  endif()
endfunction()

# A static library that a distribution package brings.
function(granule_require_static name package)
  find_library(GRANULE_LIB_${name} NAMES lib${name}.a)
  if(NOT GRANULE_LIB_${name})
    message(FATAL_ERROR "lib${name}.a is missing: install the package ${package} (make setup does it).")
  endif()
endfunction()

function(granule_options target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_include_directories(${target} PUBLIC ${CMAKE_SOURCE_DIR}/src)
  # No contraction: a fused multiply-add is written where it is meant (kernels/kernels.h).
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wconversion -Wno-sign-conversion -ffp-contract=off
                         -fno-math-errno)
  if(GRANULE_WERROR)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
  target_compile_definitions(${target} PRIVATE GRANULE_VERSION="${PROJECT_VERSION}" PCRE2_CODE_UNIT_WIDTH=8
                             PCRE2_STATIC=1 UTF8PROC_STATIC=1)
  if(GRANULE_CHECKS STREQUAL "release")
    target_compile_definitions(${target} PRIVATE NDEBUG)
  elseif(GRANULE_CHECKS STREQUAL "expensive")
    target_compile_definitions(${target} PRIVATE GRANULE_EXPENSIVE_CHECKS=1)
  endif()
  if(GRANULE_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${GRANULE_SANITIZE} -fno-omit-frame-pointer
                           -fno-sanitize-recover=all)
    target_link_options(${target} PUBLIC -fsanitize=${GRANULE_SANITIZE})
  endif()
  if(GRANULE_FUZZ)
    target_compile_options(${target} PRIVATE -fsanitize=fuzzer-no-link,address,undefined
                           -fno-sanitize-recover=all -fno-omit-frame-pointer)
    target_link_options(${target} PUBLIC -fsanitize=address,undefined)
  endif()
  if(GRANULE_COVERAGE)
    target_compile_options(${target} PRIVATE --coverage)
    target_link_options(${target} PUBLIC --coverage)
  endif()
endfunction()

# granule_layer(NAME DEPS layers... LIBS libraries...): static library granule_NAME from src/NAME, and with tests on
# one program NAME_test from its *_test.cc files, with fuzzing on one program per *_fuzz.cc, with benchmarks on
# one program NAME_bench from its *_bench.cc files.
function(granule_layer name)
  cmake_parse_arguments(ARG "" "" "DEPS;LIBS" ${ARGN})
  file(GLOB_RECURSE files CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${name}/*.cc)
  set(sources ${files})
  list(FILTER sources EXCLUDE REGEX "(_test|_fuzz|_bench)\\.cc$|/cli/main\\.cc$")
  set(tests ${files})
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  set(fuzzers ${files})
  list(FILTER fuzzers INCLUDE REGEX "_fuzz\\.cc$")
  set(benches ${files})
  list(FILTER benches INCLUDE REGEX "_bench\\.cc$")

  set(deps ${ARG_DEPS})
  list(TRANSFORM deps PREPEND granule_)
  if(sources)
    add_library(granule_${name} STATIC ${sources})
    granule_options(granule_${name})
    target_link_libraries(granule_${name} PUBLIC ${deps} ${ARG_LIBS})
  else()
    add_library(granule_${name} INTERFACE)
    target_link_libraries(granule_${name} INTERFACE ${deps} ${ARG_LIBS})
  endif()

  if(GRANULE_TESTS AND tests)
    add_executable(${name}_test ${tests})
    granule_options(${name}_test)
    target_compile_definitions(${name}_test PRIVATE GRANULE_SOURCE_DIR="${CMAKE_SOURCE_DIR}"
                               GRANULE_BINARY_DIR="${CMAKE_BINARY_DIR}")
    # Tests compare exact numbers and index freely: conversion warnings stay with the product code.
    target_compile_options(${name}_test PRIVATE -Wno-conversion)
    target_link_libraries(${name}_test PRIVATE granule_${name} ${GRANULE_LIB_gtest_main} ${GRANULE_LIB_gtest}
                          ${GRANULE_LIB_rapidcheck} Threads::Threads)
    gtest_discover_tests(${name}_test DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60 TEST_PREFIX "${name}/"
                         PROPERTIES TIMEOUT 600 LABELS ${name})
  endif()

  if(GRANULE_BENCH AND benches)
    add_executable(${name}_bench ${benches})
    granule_options(${name}_bench)
    target_compile_options(${name}_bench PRIVATE -Wno-conversion)
    target_link_libraries(${name}_bench PRIVATE granule_${name} benchmark::benchmark_main Threads::Threads)
  endif()

  if(GRANULE_FUZZ)
    foreach(fuzzer ${fuzzers})
      get_filename_component(stem ${fuzzer} NAME_WE)
      add_executable(${stem} ${fuzzer})
      granule_options(${stem})
      target_link_libraries(${stem} PRIVATE granule_${name})
      target_link_options(${stem} PRIVATE -fsanitize=fuzzer)
    endforeach()
  endif()
endfunction()

# kernels/cpu/isa_LEVEL.cc holds every kernel of a level; only these files may use its instructions.
function(granule_isa_flags layer)
  set(dir ${CMAKE_SOURCE_DIR}/src/${layer}/cpu)
  set(avx2 -mavx2 -mfma -mf16c -mbmi -mbmi2)
  set_source_files_properties(${dir}/isa_avx2.cc PROPERTIES COMPILE_OPTIONS "${avx2}")
  set_source_files_properties(${dir}/isa_avx512.cc PROPERTIES COMPILE_OPTIONS
    "${avx2};-mavx512f;-mavx512bw;-mavx512dq;-mavx512vl;-mavx512cd")
endfunction()
