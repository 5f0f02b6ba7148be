# kernels_bench, where Google Benchmark is installed (libbenchmark-dev). Included after the layers.
find_library(GRANULE_LIB_benchmark NAMES libbenchmark.a)
if(GRANULE_LIB_benchmark)
  add_executable(kernels_bench ${CMAKE_CURRENT_LIST_DIR}/kernels_bench.cc)
  granule_options(kernels_bench)
  target_compile_options(kernels_bench PRIVATE -Wno-conversion)
  target_link_libraries(kernels_bench PRIVATE granule_kernels ${GRANULE_LIB_benchmark} Threads::Threads)
endif()
