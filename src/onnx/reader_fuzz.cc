// libFuzzer target: any bytes are read or refused, and what was read survives inference and
// simplification. Every byte of every constant is touched, so that a view beyond its file is seen.
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "onnx/checks.h"
#include "onnx/reader.h"
#include "onnx/words.h"

namespace granule::onnx {
namespace {

namespace fs = std::filesystem;

// A folder for external data: w.bin of 16 bytes, a link to it, and a link that leaves the folder.
class DataFolder {
 public:
  DataFolder()
      : outer_(fs::temp_directory_path() / ("granule_reader_fuzz." + std::to_string(getpid()))) {
    fs::create_directories(root());
    std::ofstream(root() / "w.bin") << "0123456789abcdef";
    std::ofstream(outer_ / "outside.bin") << "0123456789abcdef";
    std::error_code ignored;
    fs::create_symlink("w.bin", root() / "same.bin", ignored);
    fs::create_symlink("../outside.bin", root() / "link.bin", ignored);
  }
  ~DataFolder() {
    std::error_code ignored;
    fs::remove_all(outer_, ignored);
  }
  fs::path root() const { return outer_ / "root"; }

 private:
  fs::path outer_;
};

// Reads all that the model points at; the sum keeps the compiler from leaving it out.
uint64_t Touch(const Model& model) {
  uint64_t sum = 0;
  const auto add = [&](const Tensor& tensor) {
    for (std::byte b : tensor.bytes) sum += std::to_integer<uint64_t>(b);
  };
  for (const Tensor& tensor : model.graph.tensors) add(tensor);
  for (const Value& value : model.graph.values)
    sum += Describe(value).size() + Quoted(value.name).size();
  for (const Node& node : model.graph.nodes) {
    sum += Describe(model.graph, node).size();
    for (const Attribute& attribute : node.attributes) {
      if (const auto* tensor = std::get_if<Tensor>(&attribute.value)) add(*tensor);
    }
  }
  return sum;
}

void ReadAndUse(const uint8_t* data, size_t size) {
  // A copy of exactly this size: a read beyond its end is then a finding.
  const std::unique_ptr<std::byte[]> copy(new std::byte[size]);
  if (size > 0) std::memcpy(copy.get(), data, size);
  static const DataFolder data_folder;
  static const ReadOptions options_with_root{data_folder.root()};
  auto model = ReadModelFromBytes(nullptr, {copy.get(), size}, options_with_root);
  if (!model.ok()) return;
  volatile uint64_t sink = Touch(*model);
  if (!InferShapes(*model).ok()) return;
  SimplifyOptions options;
  options.max_folded_bytes = 4096;
  if (!Simplify(*model, options).ok()) return;
  sink = sink + Touch(*model);
  // What Simplify leaves must still be a graph, with shapes that infer without contradiction of its
  // own making.
  if (!CheckAndSort(*model).ok()) std::abort();
  (void)InferShapes(*model).ok();
}

}  // namespace
}  // namespace granule::onnx

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  granule::onnx::ReadAndUse(data, size);
  return 0;
}
