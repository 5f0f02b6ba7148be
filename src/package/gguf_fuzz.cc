// Fuzz target: a GGUF file parsed, everything in it walked, and what the import reads from it read.
// parser: src/package/gguf.cc src/package/gguf_values.cc
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "package/gguf.h"
#include "package/gguf_blocks.h"
#include "package/gguf_tokenizer.h"
#include "package/llama_config.h"

namespace {

volatile uint64_t sink;  // keeps the reads

// Reads every byte that a view covers: one that reaches past the file is a finding.
void Touch(std::span<const std::byte> bytes) {
  uint64_t sum = 0;
  for (std::byte b : bytes) sum += static_cast<uint64_t>(b);
  sink = sink + sum;
}

void WalkMetadata(const granule::package::GgufFile& file) {
  for (const granule::package::GgufValue& value : file.metadata) {
    Touch(value.payload);
    sink = sink + value.TypeText().size();
    sink = sink + static_cast<uint64_t>(value.AsInt().value_or(0)) +
           (value.AsBool().value_or(false) ? 1u : 0u);
    if (const auto ints = value.AsInts()) sink = sink + ints->size();
    if (const auto strings = value.AsStrings()) {
      for (std::string_view text : *strings) Touch(std::as_bytes(std::span(text)));
    }
    const std::string key(value.key);
    (void)file.Int(key);
    (void)file.Float(key);
    (void)file.Bool(key);
    (void)file.String(key);
  }
}

void WalkTensors(const granule::package::GgufFile& file) {
  for (const granule::package::GgufTensor& tensor : file.tensors) {
    Touch(tensor.bytes);
    if (file.FindTensor(tensor.name) != &tensor) __builtin_trap();
    if (!granule::package::IsSupported(tensor.type)) continue;
    std::vector<float> row(static_cast<size_t>(tensor.row()));
    granule::package::Dequantize(tensor.type, tensor.bytes.data(), row);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // A copy of exactly this size, so that a read past the end is seen.
  const std::vector<std::byte> bytes(reinterpret_cast<const std::byte*>(data),
                                     reinterpret_cast<const std::byte*>(data) + size);
  granule::Result<granule::package::GgufFile> file = granule::package::ParseGguf(bytes);
  if (!file.ok()) {
    if (file.status().message().empty()) __builtin_trap();
    return 0;
  }
  WalkMetadata(*file);
  WalkTensors(*file);
  std::vector<std::string> warnings;
  granule::Result<granule::package::LlamaConfig> config =
      granule::package::ReadLlamaConfig(*file, &warnings);
  (void)granule::package::ImportTokenizer(*file, config.ok() ? config->vocab : 1000, &warnings);
  return 0;
}
