// A model file loaded by ONNX Runtime: its ports, and a way to run it over tensors of ours.
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "engine/ort/ort_library.h"

namespace granule::engine {

// An input or output of the graph as ONNX Runtime sees it.
struct OrtPort {
  std::string name;
  OrtElementType type = OrtElementType::kUndefined;
  std::vector<int64_t> dims;  // -1: a symbol

  // The number at `axis`, or -1 where it is a symbol or there is no such axis.
  int64_t Fixed(size_t axis) const { return axis < dims.size() ? dims[axis] : -1; }
};

OrtElementType OrtTypeOf(DType type);

// A tensor value. Over memory of ours it borrows the memory; as an output of a run it owns it.
class OrtTensor {
 public:
  OrtTensor() = default;
  OrtTensor(const OrtCalls& calls, OrtValue* value) : value_(value, calls.release_value) {}

  OrtValue* get() const { return value_.get(); }

 private:
  std::unique_ptr<OrtValue, void (*)(OrtValue*)> value_{nullptr, nullptr};
};

// What a tensor holds.
struct OrtContents {
  const void* data = nullptr;
  OrtElementType type = OrtElementType::kUndefined;
  std::vector<int64_t> dims;
};

// Const after Load. Run may be called by one thread at a time.
class OrtGraph {
 public:
  // Loads the file (external data beside it by path) for that many threads. kInvalidInput with the
  // library's words when it refuses the model, kExhausted when it has no memory for it.
  static Result<std::unique_ptr<OrtGraph>> Load(std::shared_ptr<const OrtLibrary> library,
                                                const std::filesystem::path& path, int threads);
  ~OrtGraph();
  OrtGraph(const OrtGraph&) = delete;
  OrtGraph& operator=(const OrtGraph&) = delete;

  const std::vector<OrtPort>& inputs() const { return inputs_; }
  const std::vector<OrtPort>& outputs() const { return outputs_; }
  const OrtPort* FindInput(std::string_view name) const;
  const OrtPort* FindOutput(std::string_view name) const;
  const OrtLibrary& library() const { return *library_; }

  // A tensor over bytes of the caller, which outlive it. The bytes are what dims and type need.
  Result<OrtTensor> Wrap(void* data, size_t bytes, std::span<const int64_t> dims,
                         OrtElementType type) const;
  Result<OrtContents> Read(const OrtTensor& tensor) const;

  // One named tensor of a run. An output whose tensor is empty is allocated by the library.
  struct Feed {
    const char* name = nullptr;
    OrtTensor tensor;
  };
  // `aliases`: outputs written in place of inputs, as pairs (output, input) of indices; their
  // output tensors stay empty. After an error, memory given as outputs may be partly written.
  struct Alias {
    size_t output = 0;
    size_t input = 0;
  };
  Status Run(std::span<const Feed> inputs, std::span<Feed> outputs,
             std::span<const Alias> aliases) const;

 private:
  explicit OrtGraph(std::shared_ptr<const OrtLibrary> library) : library_(std::move(library)) {}
  Status Open(const std::filesystem::path& path, int threads);
  Status ReadPorts();

  std::shared_ptr<const OrtLibrary> library_;
  OrtSession* session_ = nullptr;
  OrtMemoryInfo* memory_ = nullptr;
  std::vector<OrtPort> inputs_;
  std::vector<OrtPort> outputs_;
};

}  // namespace granule::engine
