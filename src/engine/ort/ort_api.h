// The part of ONNX Runtime's C ABI that granule uses, declared from its public documentation: the
// wheels on PyPI hold the library and no headers.
//
// The ABI is a table of function pointers that only ever grows at its end: an entry keeps its index
// for good. Everything here is of API version 3 or older. ort_library_test.cc proves each entry on
// the library that make setup brings and, where build/ort-oldest holds it, on the oldest supported.
#pragma once

#include <cstddef>
#include <cstdint>

namespace granule::engine {

// Opaque objects of the library; never dereferenced here.
struct OrtApiTable;
struct OrtStatus;
struct OrtEnv;
struct OrtSession;
struct OrtSessionOptions;
struct OrtRunOptions;
struct OrtValue;
struct OrtTypeInfo;
struct OrtTensorInfo;
struct OrtMemoryInfo;
struct OrtAllocator;

// What dlsym("OrtGetApiBase") returns.
struct OrtApiBase {
  // Null when the library is older than `version`; older libraries also complain on stderr.
  const OrtApiTable* (*get_api)(uint32_t version) noexcept;
  const char* (*get_version)() noexcept;  // "1.20.0"
};
using OrtGetApiBaseFunction = const OrtApiBase* (*)() noexcept;

// Oldest supported library: the first one whose wheel has the library as a file of its own is 1.19;
// 1.20 is the first that runs several query rows of GroupQueryAttention over a non-empty past.
inline constexpr uint32_t kOrtApiVersion = 20;
inline constexpr const char* kOldestOrtVersion = "1.20.0";

enum class OrtErrorCode : int {
  kOk = 0,
  kFail = 1,
  kInvalidArgument = 2,
  kNoSuchFile = 3,
  kNoModel = 4,
  kEngineError = 5,
  kRuntimeException = 6,
  kInvalidProtobuf = 7,
  kModelLoaded = 8,
  kNotImplemented = 9,
  kInvalidGraph = 10,
  kProviderFail = 11,
};

// Numbered as TensorProto.DataType of ONNX.
enum class OrtElementType : int {
  kUndefined = 0,
  kFloat = 1,
  kUint8 = 2,
  kInt8 = 3,
  kInt32 = 6,
  kInt64 = 7,
  kBool = 9,
  kFloat16 = 10,
  kBFloat16 = 16,
};

enum class OrtSeverity : int { kVerbose, kInfo, kWarning, kError, kFatal };
enum class OrtOptimization : int { kNone = 0, kBasic = 1, kExtended = 2, kAll = 99 };
enum class OrtAllocatorType : int { kDevice = 0, kArena = 1 };
enum class OrtMemoryType : int { kDefault = 0 };

using OrtLogFunction = void (*)(void* param, OrtSeverity severity, const char* category,
                                const char* log_id, const char* location, const char* message);

// The entries used, by their index in the table. A call that returns a status gives null for
// success; a status is released by its receiver.
struct OrtCalls {
  OrtErrorCode (*get_error_code)(const OrtStatus*) noexcept;    // 1
  const char* (*get_error_message)(const OrtStatus*) noexcept;  // 2, lives as long as it
  OrtStatus* (*create_env_with_logger)(OrtLogFunction, void* param, OrtSeverity, const char* log_id,
                                       OrtEnv** out) noexcept;  // 4
  OrtStatus* (*create_session)(const OrtEnv*, const char* path, const OrtSessionOptions*,
                               OrtSession** out) noexcept;  // 7
  // Outputs that are not null on entry are written in place; the others are allocated.
  OrtStatus* (*run)(OrtSession*, const OrtRunOptions*, const char* const* input_names,
                    const OrtValue* const* inputs, size_t input_count,
                    const char* const* output_names, size_t output_count,
                    OrtValue** outputs) noexcept;                                          // 9
  OrtStatus* (*create_session_options)(OrtSessionOptions** out) noexcept;                  // 10
  OrtStatus* (*disable_mem_pattern)(OrtSessionOptions*) noexcept;                          // 17
  OrtStatus* (*set_optimization)(OrtSessionOptions*, OrtOptimization) noexcept;            // 23
  OrtStatus* (*set_intra_op_threads)(OrtSessionOptions*, int) noexcept;                    // 24
  OrtStatus* (*set_inter_op_threads)(OrtSessionOptions*, int) noexcept;                    // 25
  OrtStatus* (*input_count)(const OrtSession*, size_t* out) noexcept;                      // 30
  OrtStatus* (*output_count)(const OrtSession*, size_t* out) noexcept;                     // 31
  OrtStatus* (*input_type)(const OrtSession*, size_t index, OrtTypeInfo** out) noexcept;   // 33
  OrtStatus* (*output_type)(const OrtSession*, size_t index, OrtTypeInfo** out) noexcept;  // 34
  // The name is freed with allocator_free.
  OrtStatus* (*input_name)(const OrtSession*, size_t index, OrtAllocator*,
                           char** out) noexcept;  // 36
  OrtStatus* (*output_name)(const OrtSession*, size_t index, OrtAllocator*,
                            char** out) noexcept;  // 37
  // Borrows `data`, which must outlive the value.
  OrtStatus* (*create_tensor_over)(const OrtMemoryInfo*, void* data, size_t bytes,
                                   const int64_t* dims, size_t rank, OrtElementType,
                                   OrtValue** out) noexcept;  // 49
  OrtStatus* (*tensor_data)(OrtValue*, void** out) noexcept;  // 51
  // Borrowed from the type; null when it is not a tensor.
  OrtStatus* (*type_to_tensor)(const OrtTypeInfo*, const OrtTensorInfo** out) noexcept;  // 55
  OrtStatus* (*element_type)(const OrtTensorInfo*, OrtElementType* out) noexcept;        // 60
  OrtStatus* (*rank)(const OrtTensorInfo*, size_t* out) noexcept;                        // 61
  OrtStatus* (*dims)(const OrtTensorInfo*, int64_t* out, size_t rank) noexcept;  // 62, -1 = symbol
  OrtStatus* (*value_tensor_info)(const OrtValue*, OrtTensorInfo** out) noexcept;  // 65
  OrtStatus* (*create_cpu_memory_info)(OrtAllocatorType, OrtMemoryType,
                                       OrtMemoryInfo** out) noexcept;  // 69
  OrtStatus* (*allocator_free)(OrtAllocator*, void*) noexcept;         // 76
  OrtStatus* (*default_allocator)(OrtAllocator** out) noexcept;        // 78, owned by the library
  void (*release_env)(OrtEnv*) noexcept;                               // 92
  void (*release_status)(OrtStatus*) noexcept;                         // 93
  void (*release_memory_info)(OrtMemoryInfo*) noexcept;                // 94
  void (*release_session)(OrtSession*) noexcept;                       // 95
  void (*release_value)(OrtValue*) noexcept;                           // 96
  void (*release_type_info)(OrtTypeInfo*) noexcept;                    // 98
  void (*release_tensor_info)(OrtTensorInfo*) noexcept;                // 99
  void (*release_session_options)(OrtSessionOptions*) noexcept;        // 100
  OrtStatus* (*add_config_entry)(OrtSessionOptions*, const char* key,
                                 const char* value) noexcept;  // 130
};

// Copies the entries out of the library's table.
OrtCalls ReadOrtTable(const OrtApiTable* table);

}  // namespace granule::engine
