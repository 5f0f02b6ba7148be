// The part of CUDA's driver API that granule uses, resolved from libcuda.so.1 at run time: no
// toolkit is needed to build this, and no GPU or driver to start. Types and values are those of the
// driver's stable binary interface; kernels/cuda/abi_check.cu compares them with cuda.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"

namespace granule::cuda {

using DevicePtr = uint64_t;  // an address in the unified address space of host and devices
using DriverResult = int;    // 0 = success
using DeviceOrdinal = int;
using ContextHandle = struct ContextOpaque*;
using StreamHandle = struct StreamOpaque*;
using EventHandle = struct EventOpaque*;
using ModuleHandle = struct ModuleOpaque*;
using FunctionHandle = struct FunctionOpaque*;
using GraphHandle = struct GraphOpaque*;
using GraphNodeHandle = struct GraphNodeOpaque*;
using GraphExecHandle = struct GraphExecOpaque*;
using MemoryHandle = unsigned long long;

// Results that are told apart.
inline constexpr DriverResult kSuccess = 0;
inline constexpr DriverResult kOutOfMemory = 2;
inline constexpr DriverResult kNoBinaryForGpu = 209;
inline constexpr DriverResult kUnsupportedPtxVersion = 222;
inline constexpr DriverResult kNotReady = 600;
// Results after which nothing in the context works any more: faults of kernels and of the hardware,
// and a context that is gone.
inline constexpr DriverResult kEccUncorrectable = 214;
inline constexpr DriverResult kNvlinkUncorrectable = 220;
inline constexpr DriverResult kContained = 226;
inline constexpr DriverResult kIllegalAddress = 700;
inline constexpr DriverResult kLaunchTimeout = 702;
inline constexpr DriverResult kContextIsDestroyed = 709;
inline constexpr DriverResult kAssert = 710;
inline constexpr DriverResult kHardwareStackError = 714;
inline constexpr DriverResult kIllegalInstruction = 715;
inline constexpr DriverResult kMisalignedAddress = 716;
inline constexpr DriverResult kInvalidAddressSpace = 717;
inline constexpr DriverResult kInvalidPc = 718;
inline constexpr DriverResult kLaunchFailed = 719;

// Numbers of CUdevice_attribute.
inline constexpr int kAttributeMultiprocessors = 16;
inline constexpr int kAttributeL2CacheBytes = 38;
inline constexpr int kAttributeCapabilityMajor = 75;
inline constexpr int kAttributeCapabilityMinor = 76;
inline constexpr int kAttributeMaxSharedBytes = 97;
inline constexpr int kAttributeVirtualMemory = 102;

inline constexpr int kMaxDynamicSharedBytes = 8;  // of CUfunction_attribute
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventDisableTiming = 2;

struct MemoryLocation {
  int type = 1;  // device
  int id = 0;    // ordinal
};
struct AllocationProperties {
  int type = 1;  // pinned
  int requested_handle_types = 0;
  MemoryLocation location;
  void* win32_handle_metadata = nullptr;
  unsigned char compression_type = 0;
  unsigned char gpu_direct_rdma_capable = 0;
  unsigned short usage = 0;
  unsigned char reserved[4] = {};
};
inline constexpr int kAccessRead = 1;
inline constexpr int kAccessReadWrite = 3;
struct AccessDescription {
  MemoryLocation location;
  int flags = kAccessReadWrite;
};
struct KernelNodeParameters {
  FunctionHandle function = nullptr;
  unsigned grid_x = 1, grid_y = 1, grid_z = 1;
  unsigned block_x = 1, block_y = 1, block_z = 1;
  unsigned shared_bytes = 0;
  void** arguments = nullptr;
  void** extra = nullptr;
  void* kernel = nullptr;
  ContextHandle context = nullptr;
};

// One entry per line: name here, exported symbol, parameters.
#define GRANULE_CUDA_ENTRIES(X)                                                                    \
  X(Init, cuInit, (unsigned flags))                                                                \
  X(DriverGetVersion, cuDriverGetVersion, (int* version))                                          \
  X(GetErrorName, cuGetErrorName, (DriverResult result, const char** text))                        \
  X(GetErrorString, cuGetErrorString, (DriverResult result, const char** text))                    \
  X(DeviceGetCount, cuDeviceGetCount, (int* count))                                                \
  X(DeviceGet, cuDeviceGet, (DeviceOrdinal * device, int ordinal))                                 \
  X(DeviceGetName, cuDeviceGetName, (char* name, int bytes, DeviceOrdinal device))                 \
  X(DeviceGetAttribute, cuDeviceGetAttribute, (int* value, int attribute, DeviceOrdinal device))   \
  X(DeviceTotalMem, cuDeviceTotalMem_v2, (size_t * bytes, DeviceOrdinal device))                   \
  X(CtxCreate, cuCtxCreate_v2, (ContextHandle * context, unsigned flags, DeviceOrdinal device))    \
  X(CtxDestroy, cuCtxDestroy_v2, (ContextHandle context))                                          \
  X(CtxSetCurrent, cuCtxSetCurrent, (ContextHandle context))                                       \
  X(MemGetInfo, cuMemGetInfo_v2, (size_t * free, size_t * total))                                  \
  X(StreamCreate, cuStreamCreate, (StreamHandle * stream, unsigned flags))                         \
  X(StreamDestroy, cuStreamDestroy_v2, (StreamHandle stream))                                      \
  X(StreamSynchronize, cuStreamSynchronize, (StreamHandle stream))                                 \
  X(StreamQuery, cuStreamQuery, (StreamHandle stream))                                             \
  X(EventCreate, cuEventCreate, (EventHandle * event, unsigned flags))                             \
  X(EventDestroy, cuEventDestroy_v2, (EventHandle event))                                          \
  X(EventRecord, cuEventRecord, (EventHandle event, StreamHandle stream))                          \
  X(EventQuery, cuEventQuery, (EventHandle event))                                                 \
  X(EventSynchronize, cuEventSynchronize, (EventHandle event))                                     \
  X(EventElapsedTime, cuEventElapsedTime, (float* ms, EventHandle start, EventHandle end))         \
  X(ModuleLoadData, cuModuleLoadData, (ModuleHandle * module, const void* image))                  \
  X(ModuleUnload, cuModuleUnload, (ModuleHandle module))                                           \
  X(ModuleGetFunction, cuModuleGetFunction,                                                        \
    (FunctionHandle * function, ModuleHandle module, const char* name))                            \
  X(FuncSetAttribute, cuFuncSetAttribute, (FunctionHandle function, int attribute, int value))     \
  X(LaunchKernel, cuLaunchKernel,                                                                  \
    (FunctionHandle function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, \
     unsigned block_y, unsigned block_z, unsigned shared_bytes, StreamHandle stream,               \
     void** arguments, void** extra))                                                              \
  X(MemAlloc, cuMemAlloc_v2, (DevicePtr * address, size_t bytes))                                  \
  X(MemFree, cuMemFree_v2, (DevicePtr address))                                                    \
  X(MemHostAlloc, cuMemHostAlloc, (void** address, size_t bytes, unsigned flags))                  \
  X(MemFreeHost, cuMemFreeHost, (void* address))                                                   \
  X(MemcpyHtoDAsync, cuMemcpyHtoDAsync_v2,                                                         \
    (DevicePtr to, const void* from, size_t bytes, StreamHandle stream))                           \
  X(MemcpyDtoHAsync, cuMemcpyDtoHAsync_v2,                                                         \
    (void* to, DevicePtr from, size_t bytes, StreamHandle stream))                                 \
  X(MemcpyDtoDAsync, cuMemcpyDtoDAsync_v2,                                                         \
    (DevicePtr to, DevicePtr from, size_t bytes, StreamHandle stream))                             \
  X(MemsetD8Async, cuMemsetD8Async,                                                                \
    (DevicePtr to, unsigned char value, size_t bytes, StreamHandle stream))                        \
  X(MemGetAllocationGranularity, cuMemGetAllocationGranularity,                                    \
    (size_t * bytes, const AllocationProperties* properties, int option))                          \
  X(MemAddressReserve, cuMemAddressReserve,                                                        \
    (DevicePtr * address, size_t bytes, size_t alignment, DevicePtr wish,                          \
     unsigned long long flags))                                                                    \
  X(MemAddressFree, cuMemAddressFree, (DevicePtr address, size_t bytes))                           \
  X(MemCreate, cuMemCreate,                                                                        \
    (MemoryHandle * handle, size_t bytes, const AllocationProperties* properties,                  \
     unsigned long long flags))                                                                    \
  X(MemRelease, cuMemRelease, (MemoryHandle handle))                                               \
  X(MemMap, cuMemMap,                                                                              \
    (DevicePtr address, size_t bytes, size_t offset, MemoryHandle handle,                          \
     unsigned long long flags))                                                                    \
  X(MemUnmap, cuMemUnmap, (DevicePtr address, size_t bytes))                                       \
  X(MemSetAccess, cuMemSetAccess,                                                                  \
    (DevicePtr address, size_t bytes, const AccessDescription* access, size_t count))              \
  X(GraphCreate, cuGraphCreate, (GraphHandle * graph, unsigned flags))                             \
  X(GraphDestroy, cuGraphDestroy, (GraphHandle graph))                                             \
  X(GraphAddKernelNode, cuGraphAddKernelNode_v2,                                                   \
    (GraphNodeHandle * node, GraphHandle graph, const GraphNodeHandle* after, size_t after_count,  \
     const KernelNodeParameters* parameters))                                                      \
  X(GraphInstantiate, cuGraphInstantiateWithFlags,                                                 \
    (GraphExecHandle * exec, GraphHandle graph, unsigned long long flags))                         \
  X(GraphExecDestroy, cuGraphExecDestroy, (GraphExecHandle exec))                                  \
  X(GraphLaunch, cuGraphLaunch, (GraphExecHandle exec, StreamHandle stream))

// The entry table. Plain function pointers: a test may put its own in their place.
struct Driver {
// NOLINTBEGIN(bugprone-macro-parentheses): names and parameter lists, not expressions.
#define GRANULE_CUDA_ENTRY(name, symbol, parameters) DriverResult(*name) parameters = nullptr;
  GRANULE_CUDA_ENTRIES(GRANULE_CUDA_ENTRY)
#undef GRANULE_CUDA_ENTRY
  // NOLINTEND(bugprone-macro-parentheses)

  int version = 0;   // as CUDA states it: 13000 = 13.0
  std::string path;  // of the library

  // "CUDA_ERROR_OUT_OF_MEMORY (2): out of memory"
  std::string Describe(DriverResult result) const;
};

// The oldest driver that loads this build's kernels, as Driver::version states it.
inline constexpr int kOldestDriver = 13000;

// Opens the library by name, once per call; the table keeps it open for good. kUnavailable, with
// what was tried, when there is no library, no device, a missing entry or a driver that is too old.
Result<std::shared_ptr<const Driver>> OpenDriver(const std::string& library = "libcuda.so.1");

std::string DriverVersionText(int version);  // "13.0"

}  // namespace granule::cuda
