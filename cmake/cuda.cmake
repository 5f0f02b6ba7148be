# CUDA kernels: every src/kernels/cuda/*.cu becomes one compressed fat binary, and all of them become data of
# granule_kernels (kernels/cuda/images.h). The program needs no toolkit and no driver to build or to start; a build
# without nvcc has no images and says so.
#
# GRANULE_CUDA                AUTO (when nvcc is found), ON (it must be), OFF
# GRANULE_CUDA_ARCHITECTURES  dev = sm_90a and one PTX for everything from 8.0 on; all = every architecture that
#                             the toolkit has and the kernels support, and the PTX
# GRANULE_CUDA_DIR            where the fat binaries go; presets of the same architectures share them
set(GRANULE_CUDA "AUTO" CACHE STRING "CUDA kernels: AUTO, ON or OFF")
set(GRANULE_CUDA_ARCHITECTURES "dev" CACHE STRING "dev or all")
set(GRANULE_CUDA_DIR "${CMAKE_SOURCE_DIR}/build/cuda" CACHE PATH "where compiled kernels go")

function(granule_cuda_gencode out)
  set(flags -gencode=arch=compute_80,code=compute_80 -gencode=arch=compute_90a,code=sm_90a)
  if(GRANULE_CUDA_ARCHITECTURES STREQUAL "all")
    execute_process(COMMAND ${GRANULE_NVCC} --list-gpu-arch OUTPUT_VARIABLE archs)
    string(REGEX MATCHALL "compute_[0-9]+" archs "${archs}")
    foreach(arch ${archs})
      string(REPLACE "compute_" "" number ${arch})
      if(number GREATER_EQUAL 80 AND NOT number EQUAL 90)
        list(APPEND flags -gencode=arch=${arch},code=sm_${number})
      endif()
    endforeach()
  endif()
  set(${out} ${flags} PARENT_SCOPE)
endfunction()

# Adds the images to `target`, or an empty list of them.
function(granule_cuda_images target)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/kernels/cuda/*.cu)
  set(assembly "")
  set(declarations "")
  set(entries "")
  set(images "")
  if(NOT GRANULE_CUDA STREQUAL "OFF")
    find_program(GRANULE_NVCC nvcc HINTS /usr/local/cuda/bin ENV CUDA_HOME PATH_SUFFIXES bin)
    if(NOT GRANULE_NVCC AND GRANULE_CUDA STREQUAL "ON")
      message(FATAL_ERROR "GRANULE_CUDA is ON and nvcc is not found: put it on PATH, or set CUDA_HOME.")
    endif()
  endif()
  if(GRANULE_CUDA STREQUAL "OFF" OR NOT GRANULE_NVCC)
    message(STATUS "CUDA kernels: left out (nvcc not found, or GRANULE_CUDA=OFF)")
  else()
    message(STATUS "CUDA kernels: ${GRANULE_NVCC}, architectures ${GRANULE_CUDA_ARCHITECTURES}")
    granule_cuda_gencode(gencode)
    set(dir ${GRANULE_CUDA_DIR}/${GRANULE_CUDA_ARCHITECTURES})
    file(MAKE_DIRECTORY ${dir})
    foreach(source ${sources})
      get_filename_component(stem ${source} NAME_WE)
      set(image ${dir}/${stem}.fatbin)
      add_custom_command(OUTPUT ${image}
        COMMAND ${GRANULE_NVCC} -fatbin -std=c++20 -O3 --compress-mode=size -I${CMAKE_SOURCE_DIR}/src ${gencode}
                -ccbin ${CMAKE_CXX_COMPILER} -Werror all-warnings --expt-relaxed-constexpr
                -MD -MF ${image}.d -MT ${image} -o ${image} ${source}
        DEPENDS ${source} DEPFILE ${image}.d COMMENT "nvcc ${stem}.cu" VERBATIM COMMAND_EXPAND_LISTS)
      list(APPEND images ${image})
      string(APPEND assembly "asm(\".pushsection .rodata\\n.balign 64\\n.global granule_image_${stem}\\n\"\n"
                             "    \"granule_image_${stem}:\\n.incbin \\\"${image}\\\"\\n\"\n"
                             "    \".global granule_image_${stem}_end\\ngranule_image_${stem}_end:\\n.byte 0\\n.popsection\\n\");\n")
      string(APPEND declarations
        "extern \"C\" const std::byte granule_image_${stem}[], granule_image_${stem}_end[];\n")
      string(APPEND entries "      {granule_image_${stem}, granule_image_${stem}_end},\n")
    endforeach()
  endif()
  set(body "  return {};\n")
  if(entries)
    set(body "  static const std::span<const std::byte> images[] = {\n${entries}  };\n  return images;\n")
  endif()
  set(generated ${CMAKE_BINARY_DIR}/cuda_images.cc)
  file(CONFIGURE OUTPUT ${generated} @ONLY CONTENT
"#include \"kernels/cuda/images.h\"\n\n@assembly@\n@declarations@\nnamespace granule::kernels {\n
std::span<const std::span<const std::byte>> CudaImages() {\n@body@}\n\n}  // namespace granule::kernels\n")
  if(images)
    set_source_files_properties(${generated} PROPERTIES OBJECT_DEPENDS "${images}")
  endif()
  target_sources(${target} PRIVATE ${generated})
endfunction()
